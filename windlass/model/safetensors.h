// Safetensors files: an 8-byte length, a JSON header, then the tensors' bytes without gaps.
//
// The format is that of github.com/huggingface/safetensors; what its reference implementation
// refuses is refused here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "windlass/base/atomic_file.h"
#include "windlass/model/model.h"

namespace windlass {

struct StoredTensor {
  std::string name;
  TensorType type;
  WeightLocation location;
};

// What a file, or a checkpoint of several files, holds. The values stay on disk.
struct Safetensors {
  std::vector<StoredTensor> tensors;            // in the order of their bytes, file by file
  std::map<std::string, std::string> metadata;  // of all files; the first counts
};

// Reads the header of a file that lies in memory; `path` is what locations and messages name. Every
// byte after the header belongs to exactly one tensor. Throws Error{Input}, or Error{Unsupported}
// for element types windlass does not have.
Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& path);

// Reads the headers of `path`: a safetensors file, or an index (`.json`) that names the file of
// each tensor; those lie beside it.
Safetensors read_safetensors(const std::string& path);

// The checkpoint of a Hugging Face folder: model.safetensors, else model.safetensors.index.json.
std::optional<std::string> find_safetensors(const std::string& folder);

struct NamedType {
  std::string name;
  TensorType type;
};

// Writes a file tensor by tensor, without holding more than what it is handed. The file appears
// under its name with finish(), complete and synced; until then, and if that never comes, whatever
// lay there stays.
class SafetensorsWriter {
 public:
  // The header is written at once: `tensors` is the order in which the bytes follow. Throws
  // Error{Input} if the file cannot be made, a name comes twice or is not UTF-8.
  SafetensorsWriter(const std::string& path, const std::vector<NamedType>& tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // The next bytes, little-endian and row-major. A tensor may come in pieces, and a piece may hold
  // several tensors. Throws Error{Runtime} if the disk is full or fails.
  void write(std::span<const std::byte> bytes);

  // Throws Error{Runtime} if the disk is full or fails.
  void finish();

 private:
  AtomicFile file_;
  int64_t missing_ = 0;  // bytes still to come
};

}  // namespace windlass
