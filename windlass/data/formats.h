// Where the values of the known file formats lie. Nothing here owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "windlass/base/mapped_file.h"
#include "windlass/data/dataset.h"

namespace windlass {

// A run of token ids of 1, 2 or 4 bytes, little-endian.
struct TokenRun {
  std::string where;  // the file, for messages
  std::span<const std::byte> bytes;
  int width = 1;
  int64_t first = 0;  // place in the file of token 0, for messages

  int64_t size() const { return static_cast<int64_t>(bytes.size()) / width; }
  int64_t operator[](int64_t index) const;
};

// Images of one size with a class each; pixel and label bytes of record i lie at
// offset + i * stride.
struct ImageRun {
  std::string where;
  std::string labels_where;
  std::span<const std::byte> pixels;
  std::span<const std::byte> labels;
  int64_t pixel_offset = 0, pixel_stride = 0;
  int64_t label_offset = 0, label_stride = 0;
  int64_t channels = 0, height = 0, width = 0;
  int64_t count = 0;  // records
};

// Each checks magic numbers and sizes, and throws Error{Input} beginning with `where`.
TokenRun parse_tokens(std::span<const std::byte> file, int token_bytes, const std::string& where);
ImageRun parse_mnist(std::span<const std::byte> images, std::span<const std::byte> labels,
                     const std::string& where, const std::string& labels_where);
ImageRun parse_cifar(std::span<const std::byte> file, const std::string& where);

using MappedFiles = std::vector<std::unique_ptr<MappedFile>>;

// Data sets over parsed files, which they keep mapped.
std::unique_ptr<Dataset> token_dataset(MappedFiles files, TokenRun run, std::vector<SlotSpec> slots,
                                       const DatasetOptions& options);
std::unique_ptr<Dataset> image_dataset(MappedFiles files, std::vector<ImageRun> runs,
                                       std::vector<SlotSpec> slots, const DatasetOptions& options);
std::unique_ptr<Dataset> synthetic_dataset(std::vector<SlotSpec> slots,
                                           const DatasetOptions& options);

// First and past-the-end index of the part that the options choose of `count` things in a row.
struct PartRange {
  int64_t begin = 0, end = 0;
};
PartRange part_range(int64_t count, const DatasetOptions& options);

}  // namespace windlass
