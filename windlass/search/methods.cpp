// The table of search methods.

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"

namespace windlass {

const std::vector<SearchMethod>& search_methods() {
  static const std::vector<SearchMethod> methods = {
      {"auto", "the best of all that suit the machine; more memory never gives a slower plan",
       search_all},
      {"one-device", "keep, recompute or move tensors of one device to the host",
       search_one_device},
      {"exact", "split every op in its own way over all devices", search_exact},
      {"grid", "replicas, tensor parallelism, pipelines and remedies against full memory",
       search_grid},
      {"mcmc", "Markov chains over all decisions, from named strategies or from --from PLAN",
       search_mcmc},
      {"chain", "replicas, and what to keep, recompute or move by dynamic programming",
       search_chain},
      {"harmony", "packs of layers that pass through the devices, weights streamed from the host",
       search_harmony},
  };
  return methods;
}

const SearchMethod& find_search_method(std::string_view name, const Machine& machine) {
  std::string known;
  for (const SearchMethod& method : search_methods()) {
    if (method.name != name) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", method.name);
      continue;
    }
    if (name == "one-device" && machine.devices.size() != 1)
      fail_input("--search one-device: {} has {} devices; use --devices 1, or another search",
                 machine.name, machine.devices.size());
    if (name == "harmony" && !suits_packs(machine))
      fail_input(
          "--search harmony: packs of layers want devices that are alike, on one node; {} "
          "has others; use another search",
          machine.name);
    return method;
  }
  fail_input("--search \"{}\": there is no such method; known: {}", name, known);
}

}  // namespace windlass
