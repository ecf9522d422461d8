#include "windlass/cli/planning.h"

#include <fmt/format.h>

#include "windlass/cli/cli.h"
#include "windlass/cli/progress.h"
#include "windlass/plan/check.h"

namespace windlass {

PlannedSubject plan_subject(const ModelFlags& model, Machine machine, Pricing& pricing,
                            const PlanningOptions& planning) {
  PlannedSubject planned;
  Subject& subject = planned.subject;
  subject.machine = std::move(machine);
  const SearchMethod& method = find_search_method(planning.method, subject.machine);
  planned.method = method.name;
  subject.request = request_of(model);
  subject.model = load_model(model.model, model.model_options());

  Progress progress("planning");
  pricing.watch(&progress);
  const Problem problem = {.network = subject.model.graph,
                           .machine = subject.machine,
                           .training = model.training_options(),
                           .cost = pricing.cost(),
                           .reprice = pricing.reprice()};
  SearchOptions options = {.time_limit = planning.time_limit,
                           .micro_batches = planning.micro_batches,
                           .threads = planning.threads};
  options.progress = [&](const SearchProgress& now) {
    std::string text = fmt::format("planning: {} strategies tried", now.tried);
    if (now.best) text += ", best " + format_seconds(*now.best);
    if (now.proposals_per_second > 0)
      text += fmt::format(", {:.0f} proposals/s", now.proposals_per_second);
    progress.show(text);
  };
  planned.search = method.search(problem, options);
  subject.training = std::move(planned.search.training);
  subject.strategy = std::move(planned.search.strategy);
  planned.step = simulate_step(subject.training, subject.strategy, subject.machine, pricing.cost(),
                               {}, pricing.reprice());
  planned.fits = planned.search.termination != Termination::Infeasible;
  fill_facts(subject, model.model, planned.search.samples);
  subject.facts.provenance = pricing.provenance();
  return planned;
}

Plan plan_of(const Subject& subject, const SimulatedStep& step, const std::string& termination,
             const std::string& method, Pricing& pricing) {
  Plan plan = make_plan(subject.request, subject.model.graph, subject.facts.samples,
                        subject.training, subject.machine, subject.strategy);
  plan.prediction = predict(subject.machine, step.tasks, step.result, termination, step.overhead);
  plan.provenance = {
      .windlass = std::string(kVersion), .method = method, .seed = 0, .cost = pricing.provenance()};
  plan.kernels = pricing.used_by(subject.training, step.tasks);
  return plan;
}

}  // namespace windlass
