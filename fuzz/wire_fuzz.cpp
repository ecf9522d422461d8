// The skeleton of an ONNX file, and the values that were cut out of it.

#include <span>

#include "fuzz/exercise.h"

#include "windlass/model/onnx/wire.h"

namespace windlass::fuzz {
namespace {

void check_payloads(const Skeleton& skeleton, std::span<const std::byte> file) {
  int64_t end = 0;
  for (const Payload& payload : skeleton.payloads) {
    ensure(payload.offset >= end && payload.length >= 0, "payloads overlap");
    end = payload.offset + payload.length;
    ensure(end <= static_cast<int64_t>(file.size()), "a payload leaves the file");
    for (int64_t width : {1, 2, 4, 8}) {
      tolerate([&] {
        const auto value = read_payload(file, payload, width);
        ensure(static_cast<int64_t>(value.size()) <= payload.length * 8, "a value grew");
      });
    }
  }
}

void read(std::span<const std::byte> file, int64_t threshold) {
  const Skeleton skeleton = read_skeleton(file, {.threshold = threshold, .location = "model.onnx"});
  ensure(skeleton.model.size() <= file.size(), "a skeleton is larger than its file");
  check_payloads(skeleton, file);
  const std::span<const char> model = skeleton.model;
  if (skeleton.payloads.empty()) {
    ensure(std::string_view(model.data(), model.size()) ==
               std::string_view(reinterpret_cast<const char*>(file.data()), file.size()),
           "a file without large values is not its own skeleton");
    return;
  }
  // What was cut out is marked with a reserved key, so a skeleton does not pass for a file.
  bool refused = false;
  try {
    read_skeleton(std::as_bytes(model), {.threshold = threshold, .location = "model.onnx"});
  } catch (const Error& error) {
    refused = error.kind() == ErrorKind::Input;
  }
  ensure(refused, "a skeleton was read as a file");
}

}  // namespace
}  // namespace windlass::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  const auto file = std::as_bytes(std::span(data, size));
  for (int64_t threshold : {0, 100, 4096}) fuzz::tolerate([&] { fuzz::read(file, threshold); });
  return 0;
}
