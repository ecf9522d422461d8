// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace windlass {

// Holds the mapping as long as it lives. Pages are read when touched. Throws Error{Input} if the
// file cannot be read.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace windlass
