// `windlass explain`: why a plan is as it is, and what other choices would have cost.

#include "windlass/search/explain/explain.h"

#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/subject.h"
#include "windlass/report/explain_text.h"
#include "windlass/report/json.h"

namespace windlass {
namespace {

struct ExplainFlags {
  std::string plan;
  std::string op, tensor;
  bool json = false;
  size_t top = 8;
};

struct Named {
  std::string name;
  size_t index = 0;
};

// The one that has the name, or the only one that has it in its name. Throws Error{Input} that
// lists what fits if there are several. None: index is `known.size()`.
size_t find_named(const std::vector<Named>& known, const std::string& wanted,
                  std::string_view flag) {
  std::vector<size_t> found;
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].name == wanted) return i;
    if (known[i].name.find(wanted) != std::string::npos) found.push_back(i);
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) return known.size();
  constexpr size_t kShown = 8;
  std::string list;
  for (size_t i = 0; i < std::min(kShown, found.size()); ++i)
    list += (i == 0 ? "" : ", ") + known[found[i]].name;
  if (found.size() > kShown) list += fmt::format(" and {} more", found.size() - kShown);
  fail_input("{} \"{}\": {} have that in their names: {}; give the whole name of one", flag, wanted,
             found.size(), list);
}

[[noreturn]] void fail_unknown(const std::vector<Named>& known, const std::string& wanted,
                               std::string_view flag, std::string_view what) {
  std::vector<std::string> names;
  for (const Named& entry : known) names.push_back(entry.name);
  fail_input("{} \"{}\": the plan's model has no such {}{}; \"windlass inspect\" lists the model",
             flag, wanted, what, did_you_mean(wanted, names));
}

void explain_op(const ExplainFlags& flags, const Explained& explained, Explainer& explainer) {
  const TrainingGraph& training = explained.training;
  std::vector<Named> known;
  for (size_t i = 0; i < training.forward_ops; ++i)
    known.push_back({training.graph.ops[i].name, i});
  const size_t found = find_named(known, flags.op, "--op");
  if (found == known.size()) fail_unknown(known, flags.op, "--op", "op of the forward pass");
  const OpId op(known[found].index);
  const OpParts parts = parts_of(explained.step, training, op);
  const std::vector<Alternative> others = explainer.shardings(op, flags.top);
  const size_t alike = explainer.ops_alike(op).size();
  if (flags.json)
    fmt::print("{}", json_text(op_json(explained, op, parts, others, alike)));
  else
    fmt::print("{}", op_text(explained, op, parts, others, alike, flags.top));
}

// Saved tensors and weights have something to decide about; others may be asked for by their whole
// name.
TensorId find_tensor(const TrainingGraph& training, const std::string& wanted) {
  const Graph& graph = training.graph;
  std::vector<Named> known, all;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    all.push_back({graph.tensors[t].name, t});
    if (graph.tensors[t].name == wanted) return storage_roots(graph)[t];
  }
  for (const SavedTensor& saved : training.saved)
    known.push_back({graph[saved.tensor].name, saved.tensor.index()});
  for (size_t u = training.forward_ops + training.backward_ops; u < graph.ops.size(); ++u)
    known.push_back({graph[graph.ops[u].inputs[0]].name, graph.ops[u].inputs[0].index()});
  size_t found = find_named(known, wanted, "--tensor");
  if (found < known.size()) return TensorId(known[found].index);
  found = find_named(all, wanted, "--tensor");
  if (found == all.size()) fail_unknown(all, wanted, "--tensor", "tensor");
  return storage_roots(graph)[found];
}

std::string home_of(const Residency& home) {
  std::string text =
      home.zero > 0 ? fmt::format("is shared out by ZeRO stage {}, ", int{home.zero}) : "";
  text += home.host ? "rests in host memory" : "stays on the device";
  return text + (home.host_update ? ", is updated on the host" : ", is updated on the device");
}

void explain_tensor(const ExplainFlags& flags, const Explained& explained, Explainer& explainer) {
  const TrainingGraph& training = explained.training;
  const Strategy& strategy = explained.strategy;
  TensorChoice choice = {.tensor = find_tensor(training, flags.tensor)};
  choice.bytes = byte_size(training.graph[choice.tensor].type);
  std::vector<Alternative> others;
  const auto saved = std::ranges::find(training.saved, choice.tensor, &SavedTensor::tensor) -
                     training.saved.begin();
  if (const auto s = static_cast<size_t>(saved); s < training.saved.size()) {
    choice.choice = action_name(strategy.saved[s]);
    choice.phrase = fmt::format("is {}", action_phrase(strategy.saved[s]));
    choice.alike = explainer.saved_alike(s).size();
    others = explainer.actions(s);
  }
  const size_t first = training.forward_ops + training.backward_ops;
  for (size_t u = 0; u < strategy.weights.size(); ++u) {
    if (training.graph.ops[first + u].inputs[0] != choice.tensor) continue;
    choice.choice = choice.phrase = home_of(strategy.weights[u]);
    choice.alike = explainer.weights_alike(u).size();
    others = explainer.homes(u);
  }
  const TensorParts parts = parts_of(explained.step, choice.tensor);
  if (flags.json)
    fmt::print("{}", json_text(tensor_json(explained, choice, parts, others)));
  else
    fmt::print("{}", tensor_text(explained, choice, parts, others));
}

ExitCode run_explain(const ExplainFlags& flags) {
  if (read_plan(flags.plan).strategy.packs && (!flags.op.empty() || !flags.tensor.empty()))
    fail_input("{}: packs decide for layers, not for ops and tensors: leave --op and --tensor out",
               flags.plan);
  if (const auto done = explain_pack_plan(flags.plan, flags.top, flags.json)) return *done;
  const Subject subject = subject_from_plan(flags.plan, {}, ForWhom::AnyRunner);
  Pricing pricing = pricing_of(subject);
  Progress progress("explaining");
  pricing.watch(&progress);
  const Problem problem = {.network = subject.model.graph,
                           .machine = subject.machine,
                           .training = subject.request.training,
                           .cost = pricing.cost(),
                           .reprice = pricing.reprice()};
  const SimulatedStep step = simulate_step(subject.training, subject.strategy, subject.machine,
                                           problem.cost, {}, problem.reprice);
  const SimulationReport report =
      report_simulation(step, &subject.training.graph, subject.machine, subject.facts, flags.top);
  Explainer explainer(problem, subject.training, subject.strategy);
  const Explained explained = {subject.training,
                               subject.strategy,
                               subject.machine,
                               subject.plan->provenance.method == "given",
                               step,
                               report,
                               explainer.plan()};
  if (!flags.op.empty()) {
    explain_op(flags, explained, explainer);
  } else if (!flags.tensor.empty()) {
    explain_tensor(flags, explained, explainer);
  } else {
    const std::vector<Alternative> others = explainer.decisions();
    if (flags.json)
      fmt::print("{}", json_text(overview_json(explained, others)));
    else
      fmt::print("{}", overview_text(explained, others));
  }
  return explainer.plan().fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace

void add_explain(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "explain", "Why a plan is as it is: what every other choice would have cost.");
  auto flags = std::make_shared<ExplainFlags>();
  verb->add_option("PLAN", flags->plan, "plan file, as plan -o and simulate --save write it")
      ->required();
  CLI::Option* op = verb->add_option("--op", flags->op,
                                     "one op of the forward pass: its name, or a part of it that "
                                     "no other has");
  verb->add_option("--tensor", flags->tensor, "one saved tensor or weight, likewise")->excludes(op);
  verb->add_option("--top", flags->top, "how many choices and tensors to list")
      ->capture_default_str()
      ->check(positive_number());
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "Every number is simulated: one decision is changed, all else stays, and the step is run "
      "again\n"
      "in the simulator. Times and peaks of choices that do not fit are those they would have "
      "without\n"
      "limits. \"all alike\" makes the same change to every op or tensor of the same kind and "
      "size.\n"
      "Examples:\n"
      "  windlass plan gpt2-xl --batch 8 --on 4x3090 --memory 8GiB -o plan.json\n"
      "  windlass explain plan.json\n"
      "  windlass explain plan.json --op transformer.h.3.mlp.c_fc\n"
      "  windlass explain plan.json --tensor transformer.h.3.mlp.c_fc --json");
  verb->callback([flags, &exit_code] { exit_code = run_explain(*flags); });
}

}  // namespace windlass
