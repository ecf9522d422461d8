#include "windlass/task/packs/lower_packs.h"

#include "windlass/base/error.h"
#include "windlass/task/packs/op_sink.h"
#include "windlass/task/packs/pack_program.h"

namespace windlass {
namespace {

void check_places(const PackStrategy& strategy, const Machine& machine, int64_t samples) {
  if (samples % strategy.replicas != 0)
    fail_input("{} samples for {} pipelines, expected equal shares", samples, strategy.replicas);
  for (int32_t d = 0; d < strategy.devices(); ++d) {
    const Device& device = machine.devices[static_cast<size_t>(d)];
    if (device.node.index() != 0 || device.type != machine.devices[0].type)
      fail_unsupported("{}: packs of layers want devices that are alike, on one node",
                       machine.name);
  }
}

}  // namespace

TaskGraph lower_packs(const TrainingGraph& training, const PackStrategy& strategy,
                      const Machine& machine) {
  if (training.squares.valid())
    fail_unsupported("clipping: packs of layers update weights as their gradients come");
  const OpChain chain(training);
  const int64_t samples = chain.samples.samples;
  check_packs(strategy, static_cast<int64_t>(chain.layers.size()), samples,
              static_cast<int64_t>(machine.devices.size()));
  check_places(strategy, machine, samples);
  ChainTables tables(chain.bytes);
  PackLowering lowering(tables, machine);
  PackTeams teams(machine, strategy.replicas, strategy.depth);
  OpSink sink(chain, teams, strategy);
  PackProgram program(lowering, teams, strategy, samples, &sink);
  if (!program.add_step()) fail_input("{}", small_window_text(strategy));
  return std::move(teams.graph());
}

}  // namespace windlass
