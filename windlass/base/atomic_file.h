// A file that appears whole or not at all.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace windlass {

// Writes to a temporary file beside `path`; commit() syncs it, renames it and syncs the folder, so
// that a power cut loses nothing that was committed. Without commit() nothing is left. If `path` is
// something else than a regular file (a pipe, a device), it is written directly.
class AtomicFile {
 public:
  // Throws Error{Input} if the file cannot be made, Error{Runtime} if the disk is full or fails.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throw Error{Runtime} if the disk is full or fails.
  void write(std::string_view text);
  void commit();

 private:
  [[noreturn]] void fail_writing() const;

  std::string path_;       // symbolic links followed
  std::string temporary_;  // empty: written directly
  std::FILE* file_ = nullptr;
};

// A name is kept over a power cut only once its folder is on the disk, too. Some file systems
// cannot sync folders; there is nothing to do about that.
void sync_folder_of(const std::string& path);

}  // namespace windlass
