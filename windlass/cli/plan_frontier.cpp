#include "windlass/cli/plan_frontier.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/interrupt.h"
#include "windlass/cli/progress.h"
#include "windlass/report/device_frontier_table.h"
#include "windlass/report/json.h"
#include "windlass/search/advice/device_frontier.h"

namespace windlass {
namespace {

std::vector<Bytes> limits_of(const PlanFrontierFlags& flags, const Machine& machine) {
  Bytes most{0};
  for (const Device& device : machine.devices) most = std::max(most, device.limit);
  std::vector<std::string> texts = flags.limits;
  if (texts.empty()) texts = {"25%", "50%", "75%", "100%"};
  std::vector<Bytes> limits;
  for (const std::string& text : texts) {
    const auto size = [&] {
      try {
        if (!text.ends_with('%')) return parse_bytes(text);
        return Bytes(static_cast<int64_t>(static_cast<double>(most.value) * parse_percent(text)));
      } catch (const Error& error) {
        throw error.within("--limits");
      }
    };
    limits.push_back(size());
    if (limits.back().value <= 0) fail_input("--limits {}: must be more than 0", text);
  }
  std::ranges::sort(limits);
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  return limits;
}

}  // namespace

ExitCode run_plan_frontier(const PlanFrontierFlags& flags) {
  if (flags.model.batch_choice != BatchChoice::Given)
    fail_input("--frontier: give the batch a number: plans of one batch are compared");
  const Runner& runner = flags.model.request.runner;
  Machine machine = machine_under(runner, flags.machine.load());
  set_host_memory(machine, flags.host_memory);
  // By figures of the machine, also of this host: to measure the pieces of all these plans would
  // take longer than most trainings.
  Pricing pricing(false, 1, static_cast<int>(machine.devices.size()), {}, runner);
  Subject subject;
  subject.machine = machine;
  subject.request = flags.model.model();
  subject.model = load_model(subject.request);
  const Problem problem = {.network = subject.model.graph,
                           .machine = machine,
                           .training = subject.request.training,
                           .cost = pricing.cost()};
  Progress progress("planning");
  const InterruptScope interrupts;
  DeviceFrontierOptions options = {.devices = usual_device_counts(machine.devices.size()),
                                   .limits = limits_of(flags, machine),
                                   .search = flags.search.options()};
  options.search.stop = [] { return InterruptScope::interrupted(); };
  options.progress = [&](size_t done, size_t all) {
    progress.show(fmt::format("planning: {} of {} numbers of devices and limits", done, all));
  };
  const SearchMethod* method = flags.method;
  if (method == nullptr && flags.search.method != "auto")
    method = &find_search_method(flags.search.method, machine);
  const std::vector<FrontierCell> cells = device_frontier(problem, method, options);
  const int64_t samples = find_batch(subject.model.graph).samples;
  subject.facts = {};
  subject.facts.model = subject.request.source;
  subject.facts.samples = samples;
  subject.facts.runner = runner;
  subject.facts.provenance = pricing.provenance();
  if (flags.json) {
    nlohmann::ordered_json json = device_frontier_json(cells, samples);
    json["runner"] = runner.name;
    fmt::print("{}", json_text(json));
  } else {
    fmt::print("{}", device_frontier_text(cells, machine, subject.facts));
  }
  return std::ranges::any_of(cells, &FrontierCell::fits) ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace windlass
