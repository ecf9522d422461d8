#include "windlass/runtime/threads.h"

#include <ATen/Parallel.h>

namespace windlass {

int library_threads() { return at::get_num_threads(); }

}  // namespace windlass
