// How many threads libtorch divides a kernel over unless told otherwise.
#pragma once

namespace windlass {

int library_threads();

}  // namespace windlass
