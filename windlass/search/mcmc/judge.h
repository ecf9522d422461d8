// What a Markov chain minimises.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "windlass/search/book/evaluate.h"

namespace windlass {

// The energy of a strategy: lower is better. Not shared between threads.
class Judge {
 public:
  virtual ~Judge() = default;
  // `key` tells strategies apart (strategy_key). None if the energy is above `most`, or the
  // strategy cannot be carried out.
  virtual std::optional<double> energy(const Strategy& strategy, uint64_t key, double most) = 0;
  // Whether a strategy of this energy keeps to the limits.
  virtual bool valid(double energy) const = 0;
  // What relative differences of energy are relative to.
  virtual double scale(double energy) const { return energy; }

  int64_t simulated() const { return simulated_; }

 protected:
  int64_t simulated_ = 0;
};

// The step inside of the limits, in nanoseconds. As long as nothing fits: kMisfit plus the least
// limit at which the strategy runs (of large steps: the peak of the fullest device without limits),
// so that the chain first looks for what fits and then for what is fast.
//
// Strategies are looked up, then bounded, then simulated; the answer is the same as if all were
// simulated.
class StepJudge : public Judge {
 public:
  StepJudge(const Problem& problem, const TrainingGraph& training);

  std::optional<double> energy(const Strategy& strategy, uint64_t key, double most) override;
  bool valid(double energy) const override { return energy < kMisfit; }
  double scale(double energy) const override { return valid(energy) ? energy : energy - kMisfit; }
  static constexpr double kMisfit = 0x1.0p52;
  static constexpr size_t kFewTasks = 600;  // of steps whose least limit is found

  int64_t bounded() const { return bounded_; }
  int64_t remembered() const { return remembered_; }
  Evaluator& evaluator() { return evaluator_; }

 private:
  // What is known of a strategy: its energy, or a number that it is not below.
  struct Known {
    uint64_t key = 0;
    double energy = 0;
    bool exact = false;
  };
  std::optional<double> simulate(const Strategy& strategy, double most);

  Evaluator evaluator_;
  std::vector<Known> known_;  // by the low bits of the key; newer ones replace older ones
  int64_t bounded_ = 0, remembered_ = 0;
};

}  // namespace windlass
