#include "windlass/data/formats.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"

namespace windlass {
namespace {

// IDX: two zero bytes, the element type (8: unsigned bytes), the number of axes, then a big-endian
// 32-bit size for each axis (yann.lecun.com/exdb/mnist).
constexpr int64_t kIdxHeader = 4;

std::vector<int64_t> idx_sizes(std::span<const std::byte> file, int64_t axes,
                               const std::string& where) {
  const int64_t header = kIdxHeader + 4 * axes;
  if (static_cast<int64_t>(file.size()) < header)
    fail_input("{}: {} bytes, an IDX file of {} axes has at least {}", where, file.size(), axes,
               header);
  const auto byte = [&](int64_t i) {
    return std::to_integer<int64_t>(file[static_cast<size_t>(i)]);
  };
  if (byte(0) != 0 || byte(1) != 0 || byte(2) != 8 || byte(3) != axes)
    fail_input(
        "{}: begins with bytes {:02x} {:02x} {:02x} {:02x}, expected 00 00 08 {:02x}: an "
        "uncompressed IDX file of bytes with {} axes",
        where, byte(0), byte(1), byte(2), byte(3), axes, axes);
  std::vector<int64_t> sizes;
  for (int64_t i = kIdxHeader; i < header; i += 4)
    sizes.push_back(byte(i) << 24 | byte(i + 1) << 16 | byte(i + 2) << 8 | byte(i + 3));
  int64_t expected = 0;
  try {
    expected = checked_add(header, checked_product(sizes));
  } catch (const Error& error) {
    throw error.within(where);
  }
  if (static_cast<int64_t>(file.size()) != expected)
    fail_input("{}: {} bytes, its header announces {}; it was cut off or damaged", where,
               file.size(), expected);
  return sizes;
}

}  // namespace

int64_t TokenRun::operator[](int64_t index) const {
  const auto at = static_cast<size_t>(index * width);
  int64_t token = 0;
  for (int i = width; i-- > 0;)
    token = token << 8 | std::to_integer<int64_t>(bytes[at + static_cast<size_t>(i)]);
  return token;
}

TokenRun parse_tokens(std::span<const std::byte> file, int token_bytes, const std::string& where) {
  if (token_bytes != 1 && token_bytes != 2 && token_bytes != 4)
    fail_input("tokens of {} bytes are not known; expected 2 or 4", token_bytes);
  const auto begins = [&](unsigned a, unsigned b) {
    return file.size() >= 2 && file[0] == std::byte(a) && file[1] == std::byte(b);
  };
  if (begins(0x93, 'N') && token_bytes > 1)
    fail_input("{}: a NumPy file; write the raw tokens with array.tofile()", where);
  if (begins(0x1f, 0x8b)) fail_input("{}: compressed; unpack it with gunzip", where);
  if (file.size() % static_cast<size_t>(token_bytes) != 0)
    fail_input("{}: {} bytes are no whole number of {}-byte tokens", where, file.size(),
               token_bytes);
  return {.where = where, .bytes = file, .width = token_bytes};
}

ImageRun parse_mnist(std::span<const std::byte> images, std::span<const std::byte> labels,
                     const std::string& where, const std::string& labels_where) {
  const std::vector<int64_t> sizes = idx_sizes(images, 3, where);
  const std::vector<int64_t> classes = idx_sizes(labels, 1, labels_where);
  if (sizes[0] != classes[0])
    fail_input("{}: {} images, but {} has {} labels", where, sizes[0], labels_where, classes[0]);
  if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0)
    fail_input("{}: {} images of {}x{}: nothing to train on", where, sizes[0], sizes[1], sizes[2]);
  return {.where = where,
          .labels_where = labels_where,
          .pixels = images,
          .labels = labels,
          .pixel_offset = kIdxHeader + 12,
          .pixel_stride = sizes[1] * sizes[2],
          .label_offset = kIdxHeader + 4,
          .label_stride = 1,
          .channels = 1,
          .height = sizes[1],
          .width = sizes[2],
          .count = sizes[0]};
}

ImageRun parse_cifar(std::span<const std::byte> file, const std::string& where) {
  constexpr int64_t kSide = 32, kPixels = 3 * kSide * kSide, kRecord = 1 + kPixels;
  const auto size = static_cast<int64_t>(file.size());
  if (size == 0 || size % kRecord != 0)
    fail_input(
        "{}: {} bytes are no whole number of CIFAR-10 records of {} bytes; it was cut off or is "
        "something else",
        where, size, kRecord);
  return {.where = where,
          .labels_where = where,
          .pixels = file,
          .labels = file,
          .pixel_offset = 1,
          .pixel_stride = kRecord,
          .label_offset = 0,
          .label_stride = kRecord,
          .channels = 3,
          .height = kSide,
          .width = kSide,
          .count = size / kRecord};
}

PartRange part_range(int64_t count, const DatasetOptions& options) {
  if (options.part == DataPart::All) return {0, count};
  const double fraction = options.eval_fraction;
  if (!(fraction > 0 && fraction < 1))
    fail_input("the evaluated part is {}, expected more than 0 and less than 1", fraction);
  const auto rounded = static_cast<int64_t>(std::llround(static_cast<double>(count) * fraction));
  const int64_t cut = count - std::clamp<int64_t>(rounded, std::min<int64_t>(count, 1), count);
  return options.part == DataPart::Train ? PartRange{0, cut} : PartRange{cut, count};
}

}  // namespace windlass
