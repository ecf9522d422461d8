// Structures in the order of what they take at least: replicas x tensor-parallel parts x pipeline
// stages, micro-batches, borders.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "windlass/search/book/ledger.h"
#include "windlass/search/bounds/work_bound.h"
#include "windlass/search/grid/recut.h"

namespace windlass {

// Who runs which part.
struct Borders {
  std::vector<Stage> stages;
  std::vector<std::vector<DeviceId>> groups;
  bool operator==(const Borders&) const = default;

  void apply_to(Strategy& strategy) const {
    strategy.stages = stages;
    strategy.groups = groups;
  }
};

struct Structure {
  std::vector<DeviceId> devices;
  BaselineSpec spec;
  int64_t micro_batches = 1;
  Nanoseconds time = 0;
  std::vector<Borders> cuts = {};     // at least one
  std::vector<int32_t> samples = {};  // of each replica; none: equally many
};

// What does not depend on limits, for the next queue of the same problem.
struct StructureMemo {
  std::optional<WorkBound> work;
  std::map<std::string, std::vector<Structure>> measured;  // by what makes it another one
  std::map<int64_t, StageCutter> cutters;                  // by micro-batches

  StageCutter& cutter(const Problem& problem, int64_t micro_batches, Cut& cut) {
    return cutters.try_emplace(micro_batches, problem, cut.training, *cut.evaluator).first->second;
  }
};

// A structure is made and bounded only when its turn may have come: not while work alone takes
// longer than the least of those that were, and without a pipeline not before the same with fewer
// micro-batches, which is faster.
class StructureQueue {
 public:
  static constexpr int64_t kMostMicroBatches = 64;

  // All must outlive it.
  StructureQueue(Ledger& ledger, const std::vector<std::vector<DeviceId>>& sets)
      : ledger_(ledger),
        fixed_(ledger.options().fixed),
        sets_(sets),
        memo_(ledger.kept<StructureMemo>()) {}

  // The one that takes least of those that are left; none if it is no better than what is known, or
  // the effort is used up.
  std::optional<Structure> next();
  StageCutter& cutter(int64_t micro);

 private:
  void begin();
  std::vector<int64_t> context_degrees(int64_t devices) const;
  std::vector<int64_t> expert_degrees(int64_t replicas) const;
  void add_structures(const std::vector<DeviceId>& members);
  // With all numbers of micro-batches.
  void add_micro_batches(Structure structure);
  // With what it takes at least, and with more samples on faster devices; nothing if it is not
  // possible.
  std::vector<Structure> measured(const Structure& structure);
  std::vector<Structure> measure(Structure structure);
  void add_balanced(const Strategy& strategy, Structure structure, std::vector<Structure>& result);
  Nanoseconds least_time(Evaluator& evaluator, const Strategy& strategy) const;
  void delay(const Structure& made);

  Ledger& ledger_;
  const FixedDecisions& fixed_;
  const std::vector<std::vector<DeviceId>>& sets_;
  bool begun_ = false;
  std::vector<Structure> rough_;  // to be made, by what their work takes
  std::vector<Structure> ready_;  // made: a heap
  StructureMemo& memo_;
};

}  // namespace windlass
