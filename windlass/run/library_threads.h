// How many threads libtorch divides a kernel over, known without libtorch.
#pragma once

namespace windlass {

// Unless it is told otherwise: what MKL_NUM_THREADS or else OMP_NUM_THREADS says, else the number
// of cores.
int library_threads();

}  // namespace windlass
