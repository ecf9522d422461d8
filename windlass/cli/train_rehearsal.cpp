// `windlass train --rehearse`.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/cli/subject.h"
#include "windlass/cli/train_ranks.h"
#include "windlass/graph/batch.h"
#include "windlass/run/runtime.h"

namespace windlass {

ExitCode run_rehearsal(const TrainFlags& flags) {
  const std::string& source = flags.model.request.source;
  const bool planned = is_plan_file(source);
  if (!planned && (flags.strategy.empty() || flags.machine.machine.empty()))
    fail_input("--rehearse: give a plan, or a model with --strategy and --on");
  const Subject subject = planned ? subject_from_plan(source, flags.machine)
                                  : subject_from_flags(flags.model, flags.machine, flags.strategy);
  Pricing pricing = pricing_of(subject);
  const SimulatedStep step = simulate_step(subject.training, subject.strategy, subject.machine,
                                           pricing.cost(), {}, pricing.reprice());
  if (step.result.status != SimStatus::Done)
    throw Error(ErrorKind::OutOfMemory, "the step does not fit: windlass simulate says why");
  const RehearsalReport found =
      open_runtime().rehearse(subject.training, step, subject.machine,
                              find_batch(subject.model.graph).axis, flags.rehearse);
  if (flags.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"processes", found.ranks},
                                              {"devices", subject.machine.devices.size()},
                                              {"tasks", found.tasks},
                                              {"jobs", found.jobs},
                                              {"messages", found.messages},
                                              {"bytes", found.bytes},
                                              {"faults", found.faults}}
                           .dump());
  } else {
    fmt::print("rehearsed: {} device{} in {} process{}, {} tasks, {} jobs, {} messages with {}\n",
               subject.machine.devices.size(), subject.machine.devices.size() == 1 ? "" : "s",
               found.ranks, found.ranks == 1 ? "" : "es", found.tasks, found.jobs, found.messages,
               format_bytes(Bytes(found.bytes)));
    for (const std::string& fault : found.faults) fmt::print("wrong: {}\n", fault);
    if (found.faults.empty()) fmt::print("all messages meet, and nobody waits for ever\n");
  }
  return found.faults.empty() ? ExitCode::Done : ExitCode::RunFailed;
}

}  // namespace windlass
