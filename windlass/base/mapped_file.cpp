#include "windlass/base/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "windlass/base/error.h"

namespace windlass {

MappedFile::MappedFile(const std::string& path) {
  // A pipe that nobody writes to would not be opened before somebody does.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail_input("cannot open the file: {}", std::strerror(errno));
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file);
    fail_input("not a regular file");
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int reason = errno;
    close(file);
    if (mapping == MAP_FAILED) fail_input("cannot read the file: {}", std::strerror(reason));
    // Weights are stepped over: reading ahead would bring in what nobody asked for.
    madvise(mapping, size_, MADV_RANDOM);
    data_ = static_cast<const std::byte*>(mapping);
    return;
  }
  close(file);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace windlass
