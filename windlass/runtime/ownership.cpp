#include "windlass/runtime/ownership.h"

#include "windlass/base/error.h"

namespace windlass {

std::vector<int32_t> device_ranks(const Machine& machine, int32_t ranks) {
  const size_t devices = machine.devices.size(), nodes = machine.nodes.size();
  const auto count = static_cast<size_t>(ranks);
  if (count != 1 && count != nodes && count != devices)
    fail_input(
        "{} processes: the plan is for {} host{} with {} device{} in all, so that it runs in one "
        "process, in one for each host, or in one for each device",
        ranks, nodes, nodes == 1 ? "" : "s", devices, devices == 1 ? "" : "s");
  std::vector<int32_t> list;
  for (size_t d = 0; d < devices; ++d) {
    const bool by_node = count == nodes;
    const size_t rank = count == 1 ? 0 : by_node ? machine.devices[d].node.index() : d;
    list.push_back(static_cast<int32_t>(rank));
  }
  return list;
}

Ownership share_out(const Program& program, const Machine& machine, int32_t rank, int32_t ranks) {
  const std::vector<int32_t> by_device = device_ranks(machine, ranks);
  std::vector<int32_t> by_node(machine.nodes.size(), -1);
  for (size_t d = 0; d < by_device.size(); ++d) {
    int32_t& node = by_node[machine.devices[d].node.index()];
    if (node < 0) node = by_device[d];
  }
  Ownership made = {.rank = rank, .ranks = ranks, .of_memory = {}, .of_slot = {}};
  for (const RealMemory& memory : program.memories)
    made.of_memory.push_back(memory.device.valid() ? by_device[memory.device.index()]
                                                   : by_node[memory.node.index()]);
  for (const Slot& slot : program.slots)
    made.of_slot.push_back(made.of_memory[static_cast<size_t>(slot.memory)]);
  return made;
}

}  // namespace windlass
