#include "windlass/run/event_file.h"

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <typename Number>
void append_bytes(std::string& text, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    text += static_cast<char>(value & 0xff);
    value = static_cast<Number>(value >> 8);
  }
}

void append_varint(std::string& text, uint64_t value) {
  for (; value >= 128; value >>= 7) text += static_cast<char>(value % 128 + 128);
  text += static_cast<char>(value);
}

// Of fields: number, and how they are written (0 varint, 1 eight bytes, 2 with length, 5 four).
void append_key(std::string& text, int field, int wire) {
  append_varint(text, static_cast<uint64_t>(field * 8 + wire));
}
void append_text(std::string& text, int field, std::string_view value) {
  append_key(text, field, 2);
  append_varint(text, value.size());
  text += value;
}

uint32_t masked_checksum(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

std::string timed_event(double time) {
  std::string event;
  append_key(event, 1, 1);
  append_bytes(event, std::bit_cast<uint64_t>(time));
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value % 2 == 1 ? 0x82f63b78U : 0);
      table[i] = value;
    }
    return table;
  }();
  uint32_t sum = 0xffffffffU;
  for (char byte : bytes) sum = sum >> 8 ^ kTable[(sum ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~sum;
}

std::string event_record(std::string_view event) {
  std::string record;
  append_bytes(record, static_cast<uint64_t>(event.size()));
  append_bytes(record, masked_checksum(record));
  record += event;
  append_bytes(record, masked_checksum(event));
  return record;
}

std::string version_event(double time) {
  std::string event = timed_event(time);
  append_text(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(double time, int64_t step,
                         const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [name, number] : values) {
    std::string value;
    append_text(value, 1, name);
    append_key(value, 2, 5);
    append_bytes(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
    append_text(summary, 1, value);
  }
  std::string event = timed_event(time);
  append_key(event, 2, 0);
  append_varint(event, static_cast<uint64_t>(step));
  append_text(event, 5, summary);
  return event;
}

EventFile::EventFile(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_input("{}: cannot be made: {}", folder, error.message());
  // Viewers take files whose name has "tfevents" in it, in the order of their names.
  for (int number = 0; path_.empty(); ++number) {
    const std::string path =
        (std::filesystem::path(folder) /
         fmt::format("events.out.tfevents.{:.0f}.windlass.{}.{}", wall_time(), getpid(), number))
            .string();
    if (!std::filesystem::exists(path)) path_ = path;
  }
  file_.open(path_, std::ios::binary);
  file_ << event_record(version_event(wall_time()));
  file_.flush();
  if (!file_) fail_input("{}: cannot be written", path_);
}

void EventFile::add(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  file_ << event_record(scalar_event(wall_time(), step, values));
  file_.flush();
  if (!file_) fail(ErrorKind::Runtime, "{}: cannot be written: disk full?", path_);
}

}  // namespace windlass
