// Machine files, and the routes through what they describe.

#include <algorithm>

#include "fuzz/exercise.h"

#include "windlass/machine/machine.h"
#include "windlass/machine/read_machine.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    constexpr std::size_t kMaxEndpoints = 32;
    const Machine machine = machine_from_json(fuzz::as_text(data, size), "machine.json");
    check_machine(machine);
    const std::size_t count = std::min(machine.endpoints.size(), kMaxEndpoints);
    for (std::size_t from = 0; from < count; ++from)
      for (std::size_t to = 0; to < count; ++to)
        fuzz::tolerate([&] { find_route(machine, EndpointId(from), EndpointId(to)); });
  });
  return 0;
}
