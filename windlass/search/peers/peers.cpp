#include "windlass/search/peers/peers.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/mcmc/walks.h"
#include "windlass/task/tables.h"

namespace windlass {
namespace {

constexpr double kNanosecondsPerMegabyte = 1e6 / 1e6;  // 1 ms a MB: 1 ns a byte
constexpr double kRefused = 0x1.0p60;

// What a device holds if nothing is ever freed: all that an op reads and makes, and the gradients
// of that.
class TouchedBytes {
 public:
  TouchedBytes(const TrainingGraph& training, const Machine& machine)
      : training_(training), facts_(training), tables_(training, facts_, machine) {}

  double of(const Strategy& strategy) {
    const int32_t group = tables_.intern(strategy.groups[0]);
    double sum = 0;
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      const Sharding& sharding = strategy.shardings[static_cast<size_t>(strategy.ops[i])];
      const OpTemplate& made = tables_.op(OpId(i), tables_.intern(sharding), group);
      const TensorId* const tensors = tables_.tensors(OpId(i));
      for (const ReadTemplate& read : made.reads())
        sum += static_cast<double>(read.want.elements *
                                   facts_.element_size[tensors[read.place].index()]);
      for (const ResultTemplate& result : made.results())
        sum += static_cast<double>(result.buffer.bytes.value);
    }
    return 2 * sum;
  }

 private:
  const TrainingGraph& training_;
  const TrainingFacts facts_;
  Tables tables_;
};

// time_weight * time + byte_weight * bytes of all devices + penalty * bytes above the limits.
struct Energy {
  double time_weight = 1;
  double byte_weight = 0;
  double penalty = 0;
  bool touched = false;  // bytes are those that ops touch; else the peak of what is live
};

class WeightedJudge : public Judge {
 public:
  WeightedJudge(const Problem& problem, const TrainingGraph& training, const Energy& energy)
      : problem_(problem),
        evaluator_(problem, training),
        touched_(training, problem.machine),
        energy_(energy) {}

  std::optional<double> energy(const Strategy& strategy, uint64_t, double most) override {
    double found = kRefused;
    try {
      ++simulated_;
      const Evaluation free = evaluator_.evaluate_unlimited(strategy);
      const double bytes = energy_.touched ? touched_.of(strategy) : static_cast<double>(free.peak);
      double excess = 0;
      for (const Device& device : problem_.machine.devices)
        excess += std::max(0.0, bytes - static_cast<double>(device.limit.value));
      const auto devices = static_cast<double>(problem_.machine.devices.size());
      found = energy_.time_weight * static_cast<double>(free.time) +
              energy_.byte_weight * bytes * devices + energy_.penalty * excess;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
    }
    if (found > most) return std::nullopt;
    return found;
  }
  bool valid(double) const override { return true; }

 private:
  const Problem& problem_;
  Evaluator evaluator_;
  TouchedBytes touched_;
  Energy energy_;
};

class Peer {
 public:
  Peer(const Problem& problem, const PeerOptions& options)
      : problem_(problem), options_(options), ledger_(problem, search_options_) {
    const auto start = ledger_.named(parse_baseline("data-parallel"), 1);
    if (!start) fail_input("{}: data parallelism is not possible here", problem.machine.name);
    start_ = *start;
  }

  PeerResult walk_for(const Energy& energy, bool recompute) {
    WalkOptions walks;
    walks.mix = {.one_op = 3,
                 .ops_alike = 0,
                 .propagation = 1,
                 .one_tensor = recompute ? 3.0 : 0.0,
                 .tensors_alike = 0,
                 .exchange = 0,
                 .weights = 0,
                 .border = 0,
                 .pace = 0};
    walks.mix.regather = walks.mix.offload = false;
    walks.mix.batch_only = true;
    // exp(-0.05 x milliseconds), and back to the best a hundred times.
    walks.temperatures = {{.hot = 0, .cold = 0, .absolute = 20e6}};
    walks.chains = 1;
    walks.rounds = 100;
    walks.proposals = options_.simulations * 4;
    walks.simulations = options_.simulations;
    walks.threads = 1;
    walks.seed = options_.seed;
    walks.stop = options_.stop;
    Cut& cut = ledger_.cut(1);
    const auto judge = [&] {
      return std::make_unique<WeightedJudge>(problem_, cut.training, energy);
    };
    const WalkResult found = walk(cut.training, problem_.machine, {start_}, judge, walks);
    return judged(found.best, found.simulated);
  }

  // Time alone; if that does not fit, memory alone; if that fits, ten weights in between.
  PeerResult bisect() {
    // Milliseconds against megabytes: nanoseconds against bytes.
    const auto at = [&](double weight) {
      PeerResult found =
          walk_for({.time_weight = weight, .byte_weight = 1 - weight, .touched = true}, false);
      simulated_ += found.simulated;
      return found;
    };
    PeerResult best = at(1);
    if (!best.fits) {
      best = at(0);
      if (best.fits) {
        double fitting = 0, beyond = 1;
        constexpr int kSteps = 10;
        for (int step = 0; step < kSteps; ++step) {
          const double middle = (fitting + beyond) / 2;
          PeerResult found = at(middle);
          (found.fits ? fitting : beyond) = middle;
          if (found.fits && found.step_time < best.step_time) best = std::move(found);
        }
      }
    }
    best.simulated = simulated_;
    return best;
  }

 private:
  PeerResult judged(const Strategy& strategy, int64_t simulated) {
    Evaluator& evaluator = *ledger_.cut(1).evaluator;
    const Evaluation free = evaluator.evaluate_unlimited(strategy);
    const Evaluation inside = evaluator.evaluate(strategy);
    return {.strategy = strategy,
            .fits = inside.fits,
            .step_time = step_time(problem_, inside.fits ? inside.time : free.time),
            .peak = Bytes(free.peak),
            .simulated = simulated};
  }

  const Problem& problem_;
  PeerOptions options_;
  SearchOptions search_options_;
  Ledger ledger_;
  Strategy start_;
  int64_t simulated_ = 0;
};

}  // namespace

const std::vector<std::string_view>& peer_names() {
  static const std::vector<std::string_view> names = {"time-only", "flexflow", "memflow", "unity"};
  return names;
}

PeerResult search_as(std::string_view peer, const Problem& problem, const PeerOptions& options) {
  Peer search(problem, options);
  if (peer == "time-only") return search.walk_for({}, false);
  if (peer == "flexflow")
    return search.walk_for({.penalty = kNanosecondsPerMegabyte, .touched = true}, false);
  if (peer == "memflow") return search.walk_for({.penalty = kNanosecondsPerMegabyte}, true);
  if (peer == "unity") return search.bisect();
  fail_input("\"{}\": no such searcher; known: time-only, flexflow, memflow, unity", peer);
}

}  // namespace windlass
