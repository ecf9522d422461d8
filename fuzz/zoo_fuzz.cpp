// Zoo names with parameters.

#include "fuzz/exercise.h"

#include "windlass/model/zoo.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    const std::string name(fuzz::as_text(data, size));
    is_zoo_name(name);
    fuzz::exercise(build_zoo_model(name));
  });
  return 0;
}
