// `windlass answer`: what "windlass serve" starts for each question of its page. The first plan
// that fits at once, better ones as they are found, each as a line of JSON for the page.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/plan_methods.h"
#include "windlass/cli/planning.h"
#include "windlass/report/page/page.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;
using AnswerClock = std::chrono::steady_clock;

struct AnswerFlags {
  ModelFlags model;
  MachineFlags machine;
  SearchFlags search;
};

constexpr double kFirstSeconds = 0.4;  // in which the first plan is looked for, longer if none fits
constexpr double kSecondSeconds = 2;   // of the search before the one that was asked for
constexpr int64_t kMostAnswerMemory = int64_t{4} << 30;
constexpr double kMostAnswerSeconds = 120;  // of all cores together, beside the time limit

void set_limit(decltype(RLIMIT_CPU) which, int64_t value) {
  rlimit limit = {};
  getrlimit(which, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(value));
  setrlimit(which, &limit);
}

// What a question may take of this host, whatever it is. Nothing is left when the server goes.
void bound_process(const AnswerFlags& flags) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == 1) std::_Exit(static_cast<int>(ExitCode::RunFailed));
#if !defined(__SANITIZE_ADDRESS__)
#if !defined(__has_feature)
  set_limit(RLIMIT_AS, kMostAnswerMemory);
#elif !__has_feature(address_sanitizer)
  set_limit(RLIMIT_AS, kMostAnswerMemory);
#endif
#endif
  const double cores = static_cast<double>(std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
  set_limit(RLIMIT_CPU, static_cast<int64_t>(kMostAnswerSeconds + cores * flags.search.time_limit));
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_FSIZE, int64_t{1} << 30);
}

void say(const ordered_json& json) {
  const std::string text = json.dump(-1, ' ', true, ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// One question: what was found so far, and what the page shall show of it.
class Answering {
 public:
  Answering(const AnswerFlags& flags, AnswerClock::time_point begin)
      : flags_(flags), begin_(begin), pricing_(false, 1, 1, {}, flags.model.request.runner) {
    subject_.machine = machine_under(flags.model.request.runner, flags.machine.load());
    if (runs_here(subject_.machine))
      fail_unsupported(
          "local: kernels of this host are measured, which takes too long for a page; use "
          "\"windlass plan --on local\"");
    subject_.request = flags.model.model();
    subject_.model = load_model(subject_.request);
  }

  double seconds() const {
    return std::chrono::duration<double>(AnswerClock::now() - begin_).count();
  }

  // Searches, and says what was found if it is better than all before.
  void look(const SearchMethod& method, const SearchOptions& options, bool last) {
    const Problem problem = {.network = subject_.model.graph,
                             .machine = subject_.machine,
                             .training = subject_.request.training,
                             .cost = pricing_.cost()};
    SearchResult found = method.search(problem, options);
    const bool fits = found.termination != Termination::Infeasible;
    tried_ += found.tried;
    const bool better = fits ? !fits_ || found.step_time < best_.step_time : last && !fits_;
    if (better) {
      fits_ = fits;
      subject_.training = std::move(found.training);
      subject_.strategy = std::move(found.strategy);
      name_by_degrees(subject_);
      best_ = std::move(found);
      method_ = method.name;
    }
    // The first answer does not wait for what a user would have done; the last one has all of it.
    if (better) show(true, false);
    if (last) show(take_usual(options), true);
    if (last) say({{"done", true}, {"seconds", seconds()}, {"tried", tried_}, {"fits", fits_}});
  }

 private:
  // A search that its time limit has cut short may not have come to what a user would have done.
  // Whether one of these is better, and is taken.
  bool take_usual(const SearchOptions& options) {
    Progress progress("answering");
    baselines_ = usual_rows(subject_, pricing_, progress);
    const StrategyRow* best = nullptr;
    for (const StrategyRow& row : baselines_)
      if (row.fits && (best == nullptr || row.step_time < best->step_time) &&
          (!fits_ || row.step_time < best_.step_time) && allows(options, row))
        best = &row;
    if (best == nullptr) return false;
    PreparedStep step = prepared(*best);
    subject_.training = std::move(step.training);
    subject_.strategy = std::move(step.strategy);
    best_.step_time = best->step_time;
    best_.samples = step.samples;
    best_.termination = Termination::Limit;
    method_ = "usual strategies";
    fits_ = true;
    return true;
  }
  PreparedStep prepared(const StrategyRow& row) const {
    return prepare_step(subject_.model.graph, parse_baseline(row.name), subject_.machine,
                        subject_.request.training);
  }
  bool allows(const SearchOptions& options, const StrategyRow& row) const {
    const PreparedStep step = prepared(row);
    return options.fixed.allows(step.spec) && options.fixed.allows(step.strategy) &&
           !step.strategy.virtual_memory &&
           (options.micro_batches == 0 || options.micro_batches == step.spec.micro_batches);
  }

  void show(bool better, bool last) {
    fill_facts(subject_, best_.samples);
    subject_.facts.provenance = pricing_.provenance();
    fill_range(subject_);
    const SimulatedStep step = simulate_step(subject_.training, subject_.strategy, subject_.machine,
                                             pricing_.cost(), {}, pricing_.reprice());
    constexpr size_t kLargest = 12;
    const SimulationReport report = report_simulation(step, &subject_.training.graph,
                                                      subject_.machine, subject_.facts, kLargest);
    Plan plan = plan_of(subject_, step, std::string(termination_name(best_.termination)), method_,
                        pricing_, flags_.search.seed);
    plan.prediction.frontier = best_.frontier;
    PagePlan page = {.path = "what-if",
                     .plan = plan,
                     .network = subject_.model.graph,
                     .training = subject_.training,
                     .strategy = subject_.strategy,
                     .machine = subject_.machine,
                     .step = step,
                     .report = report};
    Progress progress("answering");
    if (last) {
      PlanMethods beside = methods_beside(subject_, pricing_, progress);
      page.methods = std::move(beside.report);
      page.no_methods = std::move(beside.why_not);
    } else {
      page.no_methods = "simulated when the search is done";
    }
    if (shown_++ == 0 && !last)
      page.no_baselines = "simulated while the search goes on";
    else
      page.baselines = baselines();
    PageOptions options;
    options.timeline.most_slices = 40'000;
    say({{"seconds", seconds()}, {"better", better}, {"plan", page_plan_json(page, options)}});
  }

  const std::vector<StrategyRow>& baselines() {
    if (baselines_.empty())
      for (const std::string& name : usual_strategies(subject_.machine.devices.size()))
        baselines_.push_back(baseline_row(name, subject_.model.graph, subject_.machine,
                                          subject_.request.training, pricing_));
    return baselines_;
  }

  const AnswerFlags& flags_;
  AnswerClock::time_point begin_;
  Pricing pricing_;
  Subject subject_;
  std::vector<StrategyRow> baselines_;
  int64_t tried_ = 0;
  int shown_ = 0;
  bool fits_ = false;
  SearchResult best_;  // without training graph and strategy: those are the subject's
  std::string method_;
};

void answer(const AnswerFlags& flags) {
  Answering answering(flags, AnswerClock::now());
  const Machine machine = flags.machine.load();
  const double limit = flags.search.time_limit;
  SearchOptions options = flags.search.options();
  // The quick one: usual strategies, then stop as soon as one fits and its time is over.
  SearchOptions quick = options;
  bool fits = false;
  quick.time_limit = Seconds(std::min(limit, 10.0));
  quick.progress = [&](const SearchProgress& now) { fits = fits || now.best.has_value(); };
  quick.stop = [&] { return fits && answering.seconds() > kFirstSeconds; };
  const bool many = machine.devices.size() > 1;
  answering.look(find_search_method(many ? "grid" : "auto", machine), quick, false);
  const SearchMethod& method = find_search_method(flags.search.method, machine);
  if (limit > 2 * kSecondSeconds) {
    SearchOptions second = options;
    second.time_limit = Seconds(kSecondSeconds);
    answering.look(method, second, false);
  }
  // What "windlass plan" would do.
  answering.look(method, options, true);
}

}  // namespace

void add_answer(CLI::App& program) {
  CLI::App* verb = program.add_subcommand("answer", "What \"windlass serve\" starts.");
  verb->group("");
  auto flags = std::make_shared<AnswerFlags>();
  flags->model.add_to(*verb, ModelFlags::Runners::Any);
  flags->machine.add_to(*verb, "machine");
  flags->search.add_to(*verb);
  verb->callback([flags] {
    bound_process(*flags);
    try {
      answer(*flags);
    } catch (const Error& error) {
      say({{"error", printable(error.message(), 2000)}});
      throw;
    } catch (const std::bad_alloc&) {
      say({{"error",
            "this takes more memory than a search of the page may have; use \"windlass "
            "plan\""}});
      throw;
    }
  });
}

}  // namespace windlass
