// What the methods of a search share: the network cut into micro-batches, the clock, and the book
// of what has been simulated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "windlass/base/stopwatch.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/search/book/effort.h"
#include "windlass/search/book/evaluate.h"
#include "windlass/strategy/baselines.h"

namespace windlass {

// The training step of one micro-batch, and what evaluates strategies for it.
struct Cut {
  int64_t micro_batches = 1;
  TrainingGraph training;
  BatchAxes batch;
  std::unique_ptr<Evaluator> evaluator;
};

// Where weights and optimizer state live, from the fastest to the most frugal.
struct WeightHome {
  bool host_update = false, host_weights = false;
  bool together = true;  // weights and gradients travel in batches, or each alone

  void apply_to(BaselineSpec& spec) const {
    spec.host_update = host_update;
    spec.host_weights = host_weights;
    if (!together) spec.bucket = Bytes(1);
  }
};
inline constexpr WeightHome kWeightHomes[] = {{false, false, true},
                                              {true, false, true},
                                              {true, false, false},
                                              {true, true, true},
                                              {true, true, false}};

class Ledger {
 public:
  struct Entry {
    Strategy strategy;
    int64_t micro_batches = 1;
    Nanoseconds time = 0;
  };

  // Both must outlive it. Throws Error{Input} if the network cannot be cut into the number of
  // micro-batches that is asked for.
  Ledger(const Problem& problem, const SearchOptions& options);
  // An empty book of the same problem that shares clock and cuts with this one. Nothing found in
  // one is known in the other, until take(). What takes `ceiling` or longer is of no interest.
  Ledger branch(Nanoseconds ceiling) const;
  // All that the branch has found.
  void take(const Ledger& branch);

  const Problem& problem() const { return problem_; }
  const SearchOptions& options() const { return options_; }
  const BatchAxes& batch() const { return batch_; }
  // What a method keeps for its next search of the same problem, under other limits of the devices:
  // an object of its own, shared by a book and its branches.
  template <typename T>
  T& kept() {
    std::shared_ptr<void>& slot = (*kept_)[typeid(T)];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

  // --- effort
  // Ends the stage that is under way and begins another, which may use up so many units, times
  // SearchOptions::effort or at least a tenth.
  void begin(std::string stage, double units);
  // Whether the stage is to begin nothing more: its effort is used up, or interrupted(). Whoever
  // hears yes leaves something out, which the result then says.
  bool over();
  // Asked to stop, or past the time limit. Whoever hears yes leaves something out.
  bool interrupted();
  // The same, without saying so; for several threads.
  bool late() const;
  // What the stage leaves out, for the result.
  void leave_out(std::string what) { effort_->stages.back().left_out = std::move(what); }
  void cut_short(bool by_time);
  // Units beside those of evaluators.
  void charge(double units) { effort_->charged += units; }
  double units_left() const;
  // Seconds since the book was begun, without those spent measuring.
  double elapsed() const;
  // Whether kernels of a cut may be measured: of one that was not begun yet only until the time
  // limit, measuring included, unless nothing fits. A search that hears no is cut short.
  bool may_measure(int64_t micro_batches);
  void report();
  void report(SearchProgress progress);
  // work_bound(), found once for a book and its branches.
  Seconds bound();

  // --- micro-batches
  // Powers of two and, if there is an only one, that; up to `most`.
  std::vector<int64_t> micro_batches(int64_t most) const;
  // Throws Error{Input} if the network cannot be cut so.
  Cut& cut(int64_t micro_batches);
  bool can_cut(int64_t micro_batches);

  // --- strategies
  // As a user would name it; none if the model or the machine does not allow it.
  std::optional<Strategy> named(BaselineSpec spec, int64_t micro_batches);
  // The same on these devices only, as if there were no others.
  std::optional<Strategy> named(BaselineSpec spec, int64_t micro_batches,
                                const std::vector<DeviceId>& devices);
  // Simulates without limits and, unless it is much slower than the best, inside of them.
  // Strategies that cannot be carried out do not fit.
  Evaluation consider(const Strategy& strategy, int64_t micro_batches);
  // One that does not fit but needs little, as found by looking for that.
  void add_frugal(const Strategy& strategy, int64_t micro_batches) {
    sought_.push_back({strategy, micro_batches, 0});
  }
  // The one that needs least, and the limit at which it runs, whatever else was tried.
  void set_least(const Strategy& strategy, int64_t micro_batches, int64_t limit) {
    least_ = Entry{strategy, micro_batches, limit};
  }
  // One that is known to fit.
  void add(const Strategy& strategy, int64_t micro_batches, Nanoseconds time);

  bool fits() const { return !entries_.empty(); }
  // Whether something fits in the book that this is a branch of, and whether here or there.
  bool beside_answer() const { return elsewhere_best_.has_value(); }
  bool answered() const { return fits() || beside_answer(); }
  Nanoseconds best_time() const { return entries_.front().time; }
  // What a step has to be below to be of interest.
  Nanoseconds ceiling() const { return fits() ? std::min(ceiling_, best_time()) : ceiling_; }
  // Whether a step of so long is no better than what is known.
  bool beaten(Nanoseconds time) const { return time >= ceiling(); }
  // Those that fit, the fastest first; of equal times and cuts one. At most kEntries.
  const std::vector<Entry>& entries() const { return entries_; }
  // Those that need least memory, if nothing fits; of each number of micro-batches at least one.
  const std::vector<Entry>& frugal() const { return frugal_; }
  // Whether something would be faster than the best if memory were no matter.
  bool memory_binds() const;
  int64_t tried() const;
  void count(int64_t simulations) { effort_->simulated += simulations; }

  // What the branch has simulated, tells of the trade of time against bytes, not what fits in it.
  void take_points(const Ledger& branch);
  // Whether the independent checker refuses it.
  bool refused(const Entry& entry);
  // What a step takes, with what is spared on the host.
  Nanoseconds whole_time(const Entry& entry) const;
  // The fastest whose whole time is within [least, most], or one with fewer moving parts that takes
  // no longer but for noise; then `passed_over` is what the other takes. None if there is none.
  std::optional<Entry> choose(Nanoseconds least, Nanoseconds most,
                              std::optional<Nanoseconds>& passed_over);

  // The one that needs least, if nothing fits; `time` is the limit at which it runs. The strategy
  // is there in any case, the limit (0) is not if a host is too small.
  Entry least();

  // The best that fits, or the one that needs least, with the least limit at which it runs.
  SearchResult finish();

  static constexpr size_t kEntries = 24;

 private:
  // What a strategy takes without limits.
  struct Point {
    int64_t peak = 0;
    Nanoseconds time = 0;
    Nanoseconds spared = 0;  // on the host
  };
  double seconds() const;  // since the book was begun
  double units() const;    // spent
  void end_stage();
  double measuring() const;
  // Without limits; found again if it was asked for before.
  Evaluation evaluate_free(const Strategy& strategy, int64_t micro_batches);
  // Whether a step of this peak runs as it does without limits.
  bool fits_freely(const Strategy& strategy, const Evaluation& free) const;
  void add_point(const Strategy& strategy, const Evaluation& free);
  void drop_refused();
  // Puts another plan before packs that are faster by no more than noise; what those take.
  std::optional<Seconds> prefer_simpler();
  void add_frugal(const Strategy& strategy, int64_t micro_batches, int64_t peak);

  const Problem& problem_;
  const SearchOptions& options_;
  Stopwatch watch_;
  double clock_begin_ = 0, measured_before_ = 0;
  BatchAxes batch_;
  std::shared_ptr<std::map<int64_t, std::unique_ptr<Cut>>> cuts_;
  std::shared_ptr<EffortBook> effort_;
  std::shared_ptr<std::map<std::type_index, std::shared_ptr<void>>> kept_;
  std::shared_ptr<std::unordered_map<uint64_t, Evaluation>> free_;  // by strategy_hash()
  std::vector<Entry> entries_, frugal_;  // `time` of frugal ones: their peaks
  std::vector<Entry> sought_;            // found by looking for what needs least
  std::optional<Entry> least_;           // `time`: its limit
  std::vector<Point> points_;
  std::optional<Nanoseconds> elsewhere_best_;  // in the book that this is a branch of
  Nanoseconds ceiling_ = std::numeric_limits<Nanoseconds>::max();
};

// Methods: each adds what it finds.
// SearchOptions::starts. Throws Error{Input} if one is not a strategy for the problem.
void consider_starts(Ledger& ledger);
// Whether everything fits on the device as it is, so that there is nothing to decide.
bool run_one_device(Ledger& ledger);
// On each of the sets of devices.
void run_grid(Ledger& ledger, const std::vector<std::vector<DeviceId>>& sets);
void run_chain(Ledger& ledger);
// `alone`: with the whole frontier of its sums, whether or not that is of use for the plan.
void run_exact(Ledger& ledger, const std::vector<DeviceId>& devices, SearchResult& facts,
               bool alone = false);
// What the exact search says of its sums, copied from one result to another.
void take_exact_facts(SearchResult& result, const SearchResult& facts);
// Whether a machine is one for packs of layers: devices alike, on one node.
bool suits_packs(const Machine& machine);
// Packs of layers. Throws Error{Unsupported} if the network cannot be carried out in packs.
void run_packs(Ledger& ledger);
// The same where packs may be the better plan: nothing else fits, or the best so far keeps weights
// or optimizer state on the host. They know nothing of decisions that the user has made, clipping
// needs all gradients at once, kernels of parts of a batch are not measured, and no other runner
// has them: then nothing is done, nor for networks that are none for packs.
void try_packs(Ledger& ledger);
// Markov chains from the best that is there, or from what needs least. `anyway`: even if the effort
// is hardly enough for a few simulations.
void run_walks(Ledger& ledger, SearchResult& facts, bool anyway = true);

}  // namespace windlass
