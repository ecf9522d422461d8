#include "windlass/cli/infeasible.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "windlass/cli/interrupt.h"
#include "windlass/cli/progress.h"
#include "windlass/search/advice/advice.h"

namespace windlass {
namespace {

Graph network_of(ModelRequest request, int64_t samples) {
  request.batch = samples;
  return load_model(request).graph;
}

bool in_fp32(const Graph& graph) {
  return std::ranges::any_of(graph.tensors, [](const Tensor& tensor) {
    return tensor.role == TensorRole::Weight && tensor.type.dtype == DType::F32;
  });
}

// The same machine with twice the devices: "4x3090*2", or more CPU devices of this host.
MachineFlags doubled(const MachineFlags& flags, size_t devices) {
  MachineFlags twice = flags;
  if (flags.machine == "local") {
    twice.devices = static_cast<int64_t>(2 * devices);
    return twice;
  }
  const size_t star = flags.machine.rfind('*');
  int64_t nodes = 1;
  if (star != std::string::npos) {
    const char* const end = flags.machine.data() + flags.machine.size();
    std::from_chars(flags.machine.data() + star + 1, end, nodes);
  }
  twice.machine = fmt::format("{}*{}", flags.machine.substr(0, star), 2 * nodes);
  return twice;
}

std::vector<ProblemChange> changes_for(const InfeasibleRequest& request,
                                       const PlannedSubject& planned, const CostModel& analytic,
                                       bool measured) {
  const int64_t samples = planned.search.samples;
  // Kernels of other shapes would have to be run first, which takes longer than all else here.
  const CostModel* const prices = measured ? &analytic : nullptr;
  std::vector<ProblemChange> list;
  if (in_fp32(planned.subject.model.graph)) {
    ModelRequest half = planned.subject.request;
    half.dtype = DType::BF16;
    list.push_back({.change = "weights and activations of 16 bits",
                    .flags = "--dtype bf16",
                    .network = [half, samples] { return network_of(half, samples); },
                    .cost = prices,
                    .same_result = false});
  }
  const auto tokens = planned.subject.facts.tokens_per_sample;
  if (tokens && *tokens >= 2) {
    ModelRequest shorter = planned.subject.request;
    shorter.sequence = *tokens / 2;
    list.push_back({.change = fmt::format("{} tokens a sample instead of {}", *tokens / 2, *tokens),
                    .flags = fmt::format("--seq {}", *tokens / 2),
                    .network = [shorter, samples] { return network_of(shorter, samples); },
                    .cost = prices,
                    .same_result = false});
  }
  const size_t devices = planned.subject.machine.devices.size();
  const MachineFlags twice = doubled(request.machine, devices);
  list.push_back({.change = fmt::format("{} devices instead of {}", 2 * devices, devices),
                  .flags = twice.machine == "local" ? fmt::format("--devices {}", 2 * devices)
                                                    : fmt::format("--on '{}'", twice.machine),
                  .machine =
                      [twice, host = request.host_memory, runner = planned.subject.request.runner] {
                        Machine machine = machine_under(runner, twice.load());
                        set_host_memory(machine, host);
                        return machine;
                      },
                  .cost = &analytic});
  return list;
}

}  // namespace

InfeasibleAnswer answer_infeasible(const InfeasibleRequest& request, const PlannedSubject& planned,
                                   Pricing& pricing) {
  const Subject& subject = planned.subject;
  InfeasibleAnswer answer;
  answer.limit = subject.machine.devices[0].limit;
  answer.least_limit = planned.search.least_limit;
  answer.tried = planned.search.tried;
  answer.time_cuts = time_cuts(planned.search.stages);
  answer.report = report_simulation(planned.step, &subject.training.graph, subject.machine,
                                    subject.facts, request.top);
  answer.reason = answer.report.failure ? failure_reason(*answer.report.failure)
                                        : std::string("the host has too little memory");
  // Who has ended the search does not wait for this either.
  if (!request.look || InterruptScope::interrupted()) return answer;
  answer.looked = true;
  const InterruptScope interrupts;
  Progress progress("looking for what helps");
  pricing.watch(&progress);
  SearchOptions options = request.search.options();
  options.stop = [] { return InterruptScope::interrupted(); };
  const Problem problem = {.network = subject.model.graph,
                           .machine = subject.machine,
                           .training = subject.request.training,
                           .cost = pricing.cost(),
                           .reprice = pricing.reprice(),
                           .measuring = pricing.measured_seconds()};
  const std::unique_ptr<CostModel> analytic =
      analytic_cost_model(analytic_options(subject.request.runner));
  const bool measured = static_cast<bool>(problem.reprice);
  const AdviceProblem advice = {
      .problem = problem,
      .options = options,
      .frugal = subject.strategy,
      .least_limit = planned.search.least_limit,
      .network = [&](int64_t samples) { return network_of(subject.request, samples); },
      .batch_cost = measured ? analytic.get() : nullptr,
      .changes = changes_for(request, planned, *analytic, measured)};
  const double limit = request.search.time_limit;
  const double left = std::max(limit - planned.search.seconds.value, 0.1 * limit);
  answer.advice = advise(advice, Seconds(left));
  pricing.watch(nullptr);
  return answer;
}

}  // namespace windlass
