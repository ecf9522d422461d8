#include "windlass/base/stopwatch.h"

#include <chrono>

namespace windlass {
namespace {

int64_t now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

Stopwatch::Stopwatch() : begin_(now()) {}

double Stopwatch::seconds() const { return static_cast<double>(now() - begin_) * 1e-9; }

}  // namespace windlass
