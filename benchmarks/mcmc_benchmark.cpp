// Proposals a second of one Markov chain on one core: drawn, bounded or simulated, and decided.
//
// Public figures beside, measured elsewhere and not like for like (their proposals are always
// simulated): FlexFlow 290 to 1,350 a second for Inception-v3 on 8 devices; 14 to 37 ms each for a
// 12-layer transformer on 64.

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/search/mcmc/markov_chain.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

struct Subject {
  const char* model;
  const char* machine;
  const char* strategy;
  int64_t batch;
  double memory;  // share of the machine's
  const char* others;
};

void run(const Subject& subject, int rounds) {
  ModelOptions options;
  options.batch = subject.batch;
  const Model model = load_model(subject.model, options);
  Machine machine = load_machine(subject.machine);
  for (Device& device : machine.devices)
    device.limit =
        Bytes(static_cast<int64_t>(subject.memory * static_cast<double>(device.limit.value)));
  const auto cost = analytic_cost_model();
  const PreparedStep step =
      prepare_step(model.graph, parse_baseline(subject.strategy), machine, TrainingOptions());
  const Problem problem = {.network = model.graph, .machine = machine, .cost = *cost};
  // As windlass plan walks where memory does not bind.
  Moves moves(step.training, machine,
              {.one_tensor = 0, .tensors_alike = 0, .exchange = 0, .weights = 0.1, .pace = 0.05});
  StepJudge judge(problem, step.training);
  Strategy start = step.strategy;
  moves.adopt(start);
  MarkovChain chain(moves, judge, start, Rng(1), {});
  const double first = chain.best_energy();
  fmt::print("{} on {}, from {}: public {}\n", subject.model, subject.machine, subject.strategy,
             subject.others);
  for (int round = 0; round < rounds; ++round) {
    const int64_t proposals = chain.proposals(), simulated = judge.simulated();
    const int64_t remembered = judge.remembered(), walked = judge.evaluator().walked();
    const std::clock_t begin = std::clock();
    chain.run(40000, 0, {});
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    const auto made = static_cast<double>(chain.proposals() - proposals);
    const auto share = [&](int64_t now, int64_t before) {
      return 100 * static_cast<double>(now - before) / made;
    };
    fmt::print(
        "  {:8.0f} proposals/s ({:.1f} us of processor time each), {:.1f} % simulated, {:.1f} % "
        "walked to the end, {:.1f} % remembered, best {:.2f} % below the start\n",
        made / seconds, 1e6 * seconds / made, share(judge.simulated(), simulated),
        share(judge.evaluator().walked(), walked), share(judge.remembered(), remembered),
        100 * (1 - chain.best_energy() / first));
    chain.back_to_best();
  }
}

}  // namespace
}  // namespace windlass

// Of one subject by its number, or of all; rounds of 40,000 proposals each.
int main(int argc, char** argv) {
  using namespace windlass;
  const Subject subjects[] = {
      {"inception-v3", "8x1080ti", "data-parallel", 256, 1, "290 to 1,350 proposals/s"},
      {"inception-v3", "8xa100-80g", "data-parallel", 512, 1, "290 to 1,350 proposals/s"},
      {"gpt2-small", "8xa100-80g*8", "data-parallel", 512, 1, "14 to 37 ms"},
      {"inception-v3", "8x1080ti", "data-parallel", 256, 0.35, "none with memory"},
  };
  const int rounds = argc < 3 ? 3 : std::atoi(argv[2]);
  try {
    for (const Subject& subject : subjects)
      if (argc < 2 || std::atoi(argv[1]) == &subject - subjects) run(subject, rounds);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
