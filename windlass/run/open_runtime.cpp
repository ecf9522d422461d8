#include <dlfcn.h>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/version.h"
#include "windlass/run/runtime.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libwindlass_runtime.so";

// Where the library may lie, the likeliest first. The program says where it is itself, so that
// neither the working folder nor the environment matters.
std::vector<fs::path> library_paths() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error)
    fail(ErrorKind::Runtime, "/proc/self/exe: cannot be read ({}); is /proc mounted?",
         error.message());
  const fs::path folder = program.parent_path();
  return {folder / kLibrary, (folder / WINDLASS_LIBRARY_FOLDER / kLibrary).lexically_normal()};
}

fs::path find_library() {
  const std::vector<fs::path> paths = library_paths();
  std::error_code ignored;
  for (const fs::path& path : paths)
    if (fs::exists(path, ignored)) return path;
  fail(ErrorKind::Runtime,
       "{}: not found; what runs kernels needs it beside the program ({}) or installed ({}): build "
       "it with \"make build\", or install windlass with \"cmake --install\"",
       kLibrary, paths[0].string(), paths[1].string());
}

Runtime& open_library() {
  const fs::path path = find_library();
  // Its own symbols are bound at once (-z now), libtorch's when they are called first.
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr)
    fail(
        ErrorKind::Runtime,
        "{}: cannot be opened: {}; is libtorch installed (\"make setup\"), and of the version that "
        "windlass was built with? else build it again with \"make build\"",
        path.string(), dlerror());
  auto* entry = reinterpret_cast<RuntimeEntry*>(dlsym(library, kRuntimeEntry));
  Runtime* runtime = entry == nullptr ? nullptr : entry(kVersion.data());
  if (runtime == nullptr)
    fail(ErrorKind::Runtime,
         "{}: belongs to another windlass than this one ({}): build or install "
         "both together",
         path.string(), kVersion);
  return *runtime;
}

}  // namespace

Runtime& open_runtime() {
  static Runtime& runtime = open_library();
  return runtime;
}

}  // namespace windlass
