#include "windlass/model/weights.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/convert.h"

namespace windlass {
namespace {

// Bytes read at a time when they must be converted.
constexpr size_t kChunk = size_t{1} << 18;

// An open file, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : path_(path), value_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) fail_input("{}: cannot open the file: {}", path, std::strerror(errno));
  }
  ~Descriptor() { close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void read(int64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t count = pread(value_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_input("{}: cannot read the file: {}", path_, std::strerror(errno));
      if (count == 0)
        fail_input("{}: ends before byte {}; it was cut off after it was opened", path_,
                   checked_add(offset, static_cast<int64_t>(out.size())));
      offset += count;
      out = out.subspan(static_cast<size_t>(count));
    }
  }

 private:
  std::string path_;
  int value_;
};

}  // namespace

int64_t stored_elements(const WeightLocation& location) {
  const int64_t width = element_bytes(location.dtype);
  ensure(width > 0 && location.bytes % width == 0, "a weight of no whole number of elements");
  return location.bytes / width;
}

void read_weight(const WeightLocation& location, DType as, std::span<std::byte> out) {
  const int64_t width = element_bytes(as);
  ensure(static_cast<int64_t>(out.size()) == checked_mul(stored_elements(location), width),
         "a weight is read to a place of another size");
  if (!location.parts.empty()) {
    for (const WeightLocation& part : location.parts) {
      const auto size = static_cast<size_t>(stored_elements(part) * width);
      ensure(size <= out.size(), "parts are larger than the whole");
      read_weight(part, as, out.first(size));
      out = out.subspan(size);
    }
    ensure(out.empty(), "parts are smaller than the whole");
    return;
  }
  if (out.empty()) return;
  if (!location.value.empty()) {
    convert_values(location.value, location.dtype, out, as);
    return;
  }
  const Descriptor file(location.file);
  if (location.dtype == as) {
    file.read(location.offset, out);
    return;
  }
  const auto stored_width = static_cast<size_t>(element_bytes(location.dtype));
  std::vector<std::byte> chunk(std::min(kChunk, static_cast<size_t>(location.bytes)));
  for (size_t done = 0; done < static_cast<size_t>(location.bytes);) {
    const size_t size = std::min(chunk.size(), static_cast<size_t>(location.bytes) - done);
    const std::span<std::byte> piece(chunk.data(), size);
    file.read(location.offset + static_cast<int64_t>(done), piece);
    const auto to_width = static_cast<size_t>(width);
    convert_values(piece, location.dtype,
                   out.subspan(done / stored_width * to_width, size / stored_width * to_width), as);
    done += size;
  }
}

}  // namespace windlass
