#include "windlass/run/library_threads.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace windlass {

int library_threads() {
  for (const char* name : {"MKL_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    int threads = 0;
    if (text != nullptr) std::from_chars(text, text + std::strlen(text), threads);
    if (threads > 0) return threads;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace windlass
