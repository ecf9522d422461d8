#include "windlass/cli/planning.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/progress.h"
#include "windlass/export/torch_script.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/plan/check.h"
#include "windlass/search/advice/batch_size.h"
#include "windlass/search/settings/settings_search.h"
#include "windlass/sweep/measured_search.h"

namespace windlass {
namespace {

const std::vector<SearchMethod>& target_methods() {
  static const std::vector<SearchMethod> methods = [] {
    std::vector<SearchMethod> list;
    const auto add = [&](std::string_view name, const TargetRules& rules) {
      list.push_back({name, "settings of another system",
                      [rules](const Problem& problem, const SearchOptions& options) {
                        return search_settings(problem, options, rules);
                      }});
    };
    for (const SettingsExporter& exporter : settings_exporters())
      add(exporter.name, exporter.rules);
    add("pytorch", torch_script_rules());
    return list;
  }();
  return methods;
}

// The strategy of another plan of the same model, to go on from.
StartStrategy start_of(const std::string& path, const Graph& network,
                       const TrainingOptions& training) {
  const Plan plan = read_plan(path);
  if (plan.strategy.packs)
    fail_input("--from {}: a plan of packs of layers cannot be a starting point", path);
  try {
    check_model(plan, network);
    const MicroBatch part = cut_training(network, plan.strategy.micro_batches, training);
    return {strategy_of(plan, part.training), "--from " + path};
  } catch (const Error& error) {
    throw error.within("--from " + path);
  }
}

int64_t choose_batch(const ModelFlags& model, const Machine& machine, Pricing& pricing,
                     const SearchOptions& options, Progress& progress) {
  const BatchProblem problem = {
      .network =
          [&](int64_t samples) {
            progress.show(fmt::format("choosing the batch: {} samples", samples));
            ModelFlags sized = model;
            sized.request.batch = samples;
            return load_model(sized.model()).graph;
          },
      .machine = machine,
      .training = model.request.training,
      .cost = pricing.cost(),
      .reprice = pricing.reprice()};
  const bool largest = model.batch_choice == BatchChoice::Largest;
  const auto found = largest ? largest_batch(problem, options) : fastest_batch(problem, options);
  return found.value_or(1);  // whose plan says why not
}

Problem problem_of(const Subject& subject, const Machine& machine, Pricing& pricing, bool measured,
                   const Graph* with_slots = nullptr) {
  Problem problem = {.network = subject.model.graph,
                     .machine = machine,
                     .training = subject.request.training,
                     .cost = pricing.cost(),
                     .with_slots = with_slots};
  if (measured) {
    problem.reprice = pricing.reprice();
    problem.measuring = pricing.measured_seconds();
  }
  return problem;
}

// The model with rows of experts in slots, where a search may choose it. A step whose tokens do not
// fit into the slots ends a run: what is carried out here has slots only if they were asked for.
struct SlotModel {
  ModelRequest request;
  Model model;
};

std::optional<SlotModel> slots_beside(const Subject& subject, const SearchOptions& options) {
  const Graph& network = subject.model.graph;
  if (subject.machine.devices.size() == 1 || experts_of(network) < 2 || has_expert_slots(network) ||
      options.fixed.ep == 1 || (runs_here(subject.machine) && options.fixed.ep == 0))
    return std::nullopt;
  SlotModel slots = {subject.request, {}};
  slots.request.expert_capacity = kExpertCapacity;
  try {
    slots.model = load_model(slots.request);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Unsupported || options.fixed.ep > 1) throw;
    return std::nullopt;
  }
  return slots;
}

const Graph* network_of_slots(const std::optional<SlotModel>& slots) {
  return slots ? &slots->model.graph : nullptr;
}

void take(const std::optional<SlotModel>& slots, PlannedSubject& planned) {
  Subject& subject = planned.subject;
  if (planned.search.in_slots) {
    subject.request = slots->request;
    subject.model = slots->model;
  }
  subject.training = std::move(planned.search.training);
  subject.strategy = std::move(planned.search.strategy);
  // Settings that were searched for another system are named by them.
  const std::vector<std::string> targets = search_targets();
  if (std::ranges::find(targets, planned.method) == targets.end()) name_by_degrees(subject);
}

// Every strategy that the search tries is priced by what its kernels take here.
void search_measured(const SearchMethod& method, const SearchOptions& options,
                     const std::optional<SlotModel>& slots, Pricing& pricing,
                     PlannedSubject& planned) {
  const Subject& subject = planned.subject;
  planned.search = method.search(
      problem_of(subject, subject.machine, pricing, true, network_of_slots(slots)), options);
  take(slots, planned);
  planned.step = simulate_step(subject.training, subject.strategy, subject.machine, pricing.cost(),
                               {}, pricing.reprice());
  planned.fits = planned.search.termination != Termination::Infeasible;
}

// The strategies that users name are tried where all is open.
bool tries_usual(const SearchMethod& method, const SearchOptions& options) {
  return method.name == "auto" && !options.fixed.any() && options.micro_batches == 0;
}

void search_by_measuring(const SearchMethod& method, const SearchOptions& options,
                         const std::optional<SlotModel>& slots, Pricing& pricing,
                         PlannedSubject& planned) {
  const Subject& subject = planned.subject;
  MeasuredResult found = search_then_measure(
      method, problem_of(subject, subject.machine, pricing, true, network_of_slots(slots)), options,
      tries_usual(method, options));
  planned.search = std::move(found.search);
  planned.step = std::move(found.step);
  planned.fits = found.fits;
  take(slots, planned);
}

}  // namespace

std::vector<std::string> search_targets() {
  std::vector<std::string> names;
  for (const SearchMethod& method : target_methods()) names.emplace_back(method.name);
  return names;
}

const SearchMethod* target_method(std::string_view target) {
  if (target.empty()) return nullptr;
  const auto found = std::ranges::find(target_methods(), target, &SearchMethod::name);
  if (found == target_methods().end())
    fail_input("--for {}: there is no such system; known are {}", target,
               join(search_targets(), ", "));
  return &*found;
}

PlannedSubject plan_subject(const ModelFlags& given, Machine machine, Pricing& pricing,
                            const PlanningOptions& planning) {
  PlannedSubject planned;
  Subject& subject = planned.subject;
  subject.machine = std::move(machine);
  const SearchMethod& method = planning.method
                                   ? *planning.method
                                   : find_search_method(planning.search.method, subject.machine);
  planned.method = method.name;
  Progress progress("planning");
  pricing.watch(&progress);
  const InterruptScope interrupts;
  SearchOptions options = planning.search.options();
  options.stop = [] { return InterruptScope::interrupted(); };
  options.progress = [&](const SearchProgress& now) {
    std::string text =
        fmt::format("planning: {:.0f} s, {} strategies tried", now.seconds.value, now.tried);
    if (now.best) text += ", best " + format_seconds(*now.best);
    if (now.best && now.bound)
      text += fmt::format(" ({:.0f} % above the bound)", 100 * (*now.best / *now.bound - 1));
    if (now.proposals_per_second > 0)
      text += fmt::format(", {:.0f} proposals/s", now.proposals_per_second);
    progress.show(text);
  };

  ModelFlags model = given;
  if (model.batch_choice != BatchChoice::Given) {
    model.request.batch = choose_batch(model, subject.machine, pricing, options, progress);
    // The largest batch is that of one pass.
    if (model.batch_choice == BatchChoice::Largest && options.micro_batches == 0)
      options.micro_batches = 1;
    model.batch_choice = BatchChoice::Given;
  }
  subject.request = model.model();
  subject.model = load_model(subject.request);
  if (!planning.from.empty())
    options.starts.push_back(
        start_of(planning.from, subject.model.graph, subject.request.training));
  check_fixed(options.fixed, subject.model.graph, subject.machine);
  const std::optional<SlotModel> slots = slots_beside(subject, options);
  const bool many = subject.machine.devices.size() > 1 || method.name == "harmony";
  if (pricing.reprice() && many)
    search_by_measuring(method, options, slots, pricing, planned);
  else
    search_measured(method, options, slots, pricing, planned);
  // What memory lacks has been simulated.
  if (!planned.fits && !planned.search.least_limit && options.fixed.any() &&
      planned.search.tried == 0)
    fail_input("--fix: no strategy for this model and machine has all of these; leave one out");
  planned.measuring = pricing.measuring();
  fill_facts(subject, planned.search.samples);
  subject.facts.provenance = pricing.provenance();
  fill_range(subject);
  pricing.watch(nullptr);
  return planned;
}

StrategyRow baseline_row(const std::string& name, const Graph& graph, const Machine& machine,
                         const TrainingOptions& training, Pricing& pricing) {
  StrategyRow row = {.name = name};
  try {
    const PreparedStep step = prepare_step(graph, parse_baseline(name), machine, training);
    row.fill(simulate_step(step.training, step.strategy, machine, pricing.cost(), {},
                           pricing.reprice()));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    row.why = error.message();
  }
  return row;
}

std::vector<StrategyRow> usual_rows(const Subject& subject, Pricing& pricing, Progress& progress) {
  std::vector<StrategyRow> rows;
  const auto add = [&](const std::string& name) {
    progress.show("simulating " + name);
    rows.push_back(baseline_row(name, subject.model.graph, subject.machine,
                                subject.request.training, pricing));
  };
  for (const std::string& name : usual_strategies(subject.machine.devices.size())) add(name);
  SearchOptions options;
  options.stop = [] { return InterruptScope::interrupted(); };
  const auto tuning = [&](const std::string& name) { progress.show("tuning " + name); };
  for (const std::string& name :
       tuned_strategies(problem_of(subject, subject.machine, pricing, false), options, tuning)) {
    add(name);
    StrategyRow tuned = std::move(rows.back());
    rows.pop_back();
    // Tuning may end where it began.
    const auto same = std::ranges::find_if(rows, [&](const StrategyRow& row) {
      return row.why.empty() && row.step_time == tuned.step_time && row.peak == tuned.peak;
    });
    if (same != rows.end()) {
      same->tuned = true;
      continue;
    }
    tuned.tuned = true;
    rows.push_back(std::move(tuned));
  }
  return rows;
}

void set_host_memory(Machine& machine, const std::string& bytes) {
  if (bytes.empty()) return;
  for (Node& node : machine.nodes) node.memory = parse_bytes(bytes);
}

Plan plan_of(const Subject& subject, const SimulatedStep& step, const std::string& termination,
             const std::string& method, Pricing& pricing, uint64_t seed) {
  Plan plan = make_plan(subject.request, subject.model.graph, subject.facts.samples,
                        subject.training, subject.machine, subject.strategy);
  plan.prediction = predict(subject.machine, step.tasks, step.whole(), termination, step.overhead);
  plan.provenance = {.windlass = std::string(kVersion),
                     .method = method,
                     .seed = static_cast<int64_t>(seed),
                     .cost = pricing.provenance()};
  plan.kernels = pricing.used_by(subject.training, step.tasks);
  return plan;
}

}  // namespace windlass
