#include "windlass/base/atomic_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

std::string follow_links(const std::string& path) {
  std::error_code failed;
  const fs::path real = fs::weakly_canonical(path, failed);
  return failed ? path : real.string();
}

}  // namespace

void sync_folder_of(const std::string& path) {
  std::string folder = fs::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

AtomicFile::AtomicFile(const std::string& path) : path_(follow_links(path)) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path_, ignored);
  if (fs::is_directory(status)) fail_input("{}: is a folder, expected a file to write", path);
  int reason = 0;
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    file_ = std::fopen(path_.c_str(), "w");
    reason = errno;
  } else {
    temporary_ = path_ + ".XXXXXX";
    const int descriptor = mkstemp(temporary_.data());
    reason = errno;
    if (descriptor >= 0) {
      const mode_t mask = umask(0);
      umask(mask);
      if (fchmod(descriptor, 0666 & ~mask) == 0) file_ = fdopen(descriptor, "w");
      if (!file_) {
        reason = errno;
        close(descriptor);
        unlink(temporary_.c_str());
      }
    }
  }
  if (file_) return;
  // A disk without room is no mistake of the user.
  const bool full = reason == ENOSPC || reason == EDQUOT || reason == EIO;
  fail(full ? ErrorKind::Runtime : ErrorKind::Input, "{}: cannot be written: {}", path,
       std::strerror(reason));
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  std::fclose(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::fail_writing() const {
  fail(ErrorKind::Runtime, "{}: writing failed: {}", path_, std::strerror(errno));
}

void AtomicFile::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail_writing();
}

void AtomicFile::commit() {
  if (std::fflush(file_) != 0) fail_writing();
  if (!temporary_.empty() && fsync(fileno(file_)) != 0) fail_writing();
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  const bool renamed =
      closed && (temporary_.empty() || std::rename(temporary_.c_str(), path_.c_str()) == 0);
  if (renamed) {
    if (!temporary_.empty()) sync_folder_of(path_);
    return;
  }
  const int reason = errno;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  errno = reason;
  fail_writing();
}

}  // namespace windlass
