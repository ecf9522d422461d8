// The same task for many numbers, on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace windlass {

// Runs task(0) .. task(count - 1) on so many threads, this one included; 0: as many as there are
// cores. All are run; then the exception of the first that threw is thrown again.
void in_parallel(size_t count, size_t threads, const std::function<void(size_t)>& task);

}  // namespace windlass
