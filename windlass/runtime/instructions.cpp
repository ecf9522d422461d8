#include "windlass/runtime/instructions.h"

#include <cstdlib>
#include <dlfcn.h>

namespace windlass {

void avoid_tiles() {
#ifdef __x86_64__
  struct Version {
    int major, minor, patch;
  };
  const auto version = reinterpret_cast<const Version* (*)()>(dlsym(RTLD_DEFAULT, "dnnl_version"));
  if (version == nullptr || version()->major >= 3) return;
  // What processors that have tiles have as well. Others are not limited by it.
  setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16", 0);
#endif
}

}  // namespace windlass
