#include "windlass/search/exact/eliminate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "windlass/search/exact/dead_ends.h"
#include "windlass/search/exact/elimination_round.h"
#include "windlass/search/exact/improve.h"
#include "windlass/search/exact/relaxation.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// What a machine does in the blink of an eye is done at once; larger tables after smaller ones.
constexpr double kFirstTable = 1 << 22, kGrowth = 16;
constexpr double kNearEnough = 2e-3;  // gap of networks whose costs were moved

class Minimisation {
 public:
  Minimisation(const CostNetwork& network, const EliminationOptions& options)
      : whole_(network),
        options_(options),
        deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(std::min(options.time_limit.value, 1e8)))),
        left_(options.most_cells) {
    result_.cost = std::numeric_limits<double>::infinity();
  }

  EliminationResult run() {
    for (int32_t count : whole_.options) result_.options += count;
    if (options_.dead_ends) {
      small_ = remove_dead_ends(whole_);
    } else {
      small_.network = whole_;
      for (int32_t count : whole_.options) {
        std::vector<int32_t>& all = small_.original.emplace_back(static_cast<size_t>(count));
        std::iota(all.begin(), all.end(), 0);
      }
    }
    for (int32_t count : small_.network.options) result_.options_left += count;
    order_ = best_order(small_.network);
    if (dense()) relax_rounds();
    if (result_.cost > result_.bound) eliminate_rounds();
    if (result_.choice.empty()) take(std::vector<int32_t>(whole_.size(), 0), true);
    result_.optimal = result_.cost == result_.bound;
    return std::move(result_);
  }

 private:
  bool dense() const { return order_.largest > options_.relax_above; }

  // A choice of the small network, improved or not.
  void take(std::vector<int32_t> choice, bool improving) {
    if (improving) improve(small_.network, choice, deadline_);
    for (size_t v = 0; v < choice.size(); ++v)
      choice[v] = small_.original[v][static_cast<size_t>(choice[v])];
    const double cost = cost_of(whole_, choice);
    if (cost >= result_.cost) return;
    result_.cost = cost;
    result_.choice = std::move(choice);
  }

  // Moves costs, and leaves out options with which no choice is better than the best one: the
  // fewer there are, the better the next bound, until what is left can be eliminated.
  void relax_rounds() {
    constexpr int kRounds = 6;
    constexpr double kShare = 0.25;   // of the cells, for all rounds
    constexpr double kEnough = 0.95;  // of the options: so many left are hardly fewer
    unit_ = relaxation_unit(small_.network);
    if (unit_ > 1) small_.network = in_units(small_.network, unit_);
    for (int round = 0; round < kRounds && dense(); ++round) {
      Relaxation found =
          relax(small_.network, {.most_cells = kShare * left_, .deadline = deadline_});
      left_ -= found.cells;
      take(found.choice, true);
      base_ += found.bound;
      result_.bound = std::max(result_.bound, unit_ * base_);
      if (result_.cost <= result_.bound) return;
      const int64_t before = count_options();
      narrow(found.rest);
      if (found.out_of_time) result_.out_of_time = true;
      if (found.out_of_time ||
          static_cast<double>(count_options()) > kEnough * static_cast<double>(before))
        return;
    }
  }

  int64_t count_options() const {
    return std::accumulate(small_.network.options.begin(), small_.network.options.end(),
                           int64_t{0});
  }

  // Goes on with the costs as they were moved.
  void narrow(const CostNetwork& rest) {
    std::vector<int32_t> best(rest.size(), -1);
    for (size_t v = 0; v < rest.size(); ++v) {
      const auto& list = small_.original[v];
      const auto at = std::ranges::find(list, result_.choice[v]);
      best[v] = static_cast<int32_t>(at - list.begin());
    }
    ReducedNetwork next =
        restrict_options(rest, options_below(rest, result_.cost / unit_ - base_, best));
    for (size_t v = 0; v < rest.size(); ++v)
      for (int32_t& option : next.original[v])
        option = small_.original[v][static_cast<size_t>(option)];
    small_ = std::move(next);
    order_ = best_order(small_.network);
  }

  void eliminate_rounds() {
    double largest = dense() ? kFirstTable : options_.largest_table;
    for (;; largest *= kGrowth) {
      largest = std::min(largest, options_.largest_table);
      // Small tables are made whatever there is left, so that there is an answer.
      const double budget =
          largest <= kFirstTable ? std::numeric_limits<double>::infinity() : left_;
      std::function<void(double)> progress;
      if (options_.progress)
        progress = [&](double done) { options_.progress(done, result_.cost, result_.bound); };
      EliminationRound round;
      try {
        round = eliminate_round(small_.network, order_, options_,
                                {.largest_table = largest, .cells = budget, .deadline = deadline_},
                                progress);
      } catch (const OutOfTime&) {
        result_.out_of_time = true;
        return;
      } catch (const OutOfCells&) {
        result_.out_of_cells = true;
        if (!result_.choice.empty()) return;
        largest = kFirstTable / kGrowth;  // for the next round
        continue;
      }
      left_ -= round.cells_computed;
      if (const double bound = unit_ * (base_ + round.bound); bound >= result_.bound) {
        result_.bound = bound;
        result_.largest_table = round.largest_table;
        result_.cells = round.cells;
        result_.cells_computed = round.cells_computed;
        result_.message_bytes = round.message_bytes;
      }
      take(round.choice, !round.exact);
      if (round.exact || result_.cost <= result_.bound || largest >= options_.largest_table) return;
      // Larger tables take many times as long, and there is not much left to find.
      if (base_ > 0 && result_.gap() <= kNearEnough) return;
    }
  }

  const CostNetwork& whole_;
  const EliminationOptions& options_;
  const Clock::time_point deadline_;
  double left_;           // of the cells
  ReducedNetwork small_;  // what is left to decide; `original` is of the whole network
  double base_ = 0;       // of all choices, beside what they cost in the small network
  double unit_ = 1;       // of the small network's costs
  EliminationOrder order_;
  EliminationResult result_;
};

}  // namespace

EliminationResult minimise(const CostNetwork& network, const EliminationOptions& options) {
  return Minimisation(network, options).run();
}

}  // namespace windlass
