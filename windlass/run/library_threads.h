// How many threads a kernel is divided over.
#pragma once

namespace windlass {

// Unless the user says otherwise: what MKL_NUM_THREADS or else OMP_NUM_THREADS says, else the cores
// that the process may use. Threads of one core count once, since kernels gain nothing from them.
int library_threads();

}  // namespace windlass
