#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/search.h"

namespace windlass {

const std::vector<SearchMethod>& search_methods() {
  static const std::vector<SearchMethod> methods = {
      {"one-device", "keep, recompute or move tensors of one device to the host",
       search_one_device},
      {"exact", "split every op in its own way over all devices", search_exact},
  };
  return methods;
}

const SearchMethod& find_search_method(std::string_view name, const Machine& machine) {
  const bool single = machine.devices.size() == 1;
  if (name == "auto") name = single ? "one-device" : "exact";
  std::string known;
  for (const SearchMethod& method : search_methods()) {
    if (method.name != name) {
      known += fmt::format(", {}", method.name);
      continue;
    }
    if (name == "one-device" && !single)
      fail_input("--search one-device: {} has {} devices; use --devices 1, or another search",
                 machine.name, machine.devices.size());
    return method;
  }
  fail_input("--search \"{}\": there is no such method; known: auto{}", name, known);
}

}  // namespace windlass
