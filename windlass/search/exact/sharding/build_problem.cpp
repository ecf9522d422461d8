#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "windlass/cost/allocation.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/blocks.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/search/exact/sharding/local_choices.h"
#include "windlass/search/exact/sharding/move_prices.h"
#include "windlass/search/exact/sharding/sharding_options.h"
#include "windlass/search/exact/sharding/sharding_problem.h"
#include "windlass/task/lower.h"
#include "windlass/task/tables.h"

namespace windlass {
namespace {

// What makes two ops alike.
struct OpLook {
  uint64_t structure = 0;
  std::vector<int32_t> blocks;
  std::vector<int32_t> operands;  // of each: what is asked of it
  std::vector<int32_t> fates;     // and what they hang on
  auto operator<=>(const OpLook&) const = default;
};

class Builder {
 public:
  Builder(const TrainingGraph& training, const Machine& machine, const CostModel& cost,
          int64_t micro_batches, const ShardingProblemOptions& options)
      : training_(training),
        micro_batches_(static_cast<double>(micro_batches)),
        options_(options),
        facts_(training),
        tables_(training, facts_, machine) {
    result_.devices = options.devices.empty() ? all_devices(machine) : options.devices;
    group_ = tables_.intern(result_.devices);
    moves_ = std::make_unique<MovePrices>(machine, tables_, group_);
    if (options.recompute)
      rules_ = std::make_unique<FateRules>(training, facts_, result_.devices.size());
    local_ = std::make_unique<LocalChoices>(ChoiceContext{.training = training,
                                                          .facts = facts_,
                                                          .machine = machine,
                                                          .cost = cost,
                                                          .tables = tables_,
                                                          .moves = *moves_,
                                                          .group = group_,
                                                          .micro_batches = micro_batches_,
                                                          .memory_choices = options.memory_choices,
                                                          .fates = rules_.get()});
  }

  ShardingProblem run() {
    sort_kinds();
    for (size_t kind = 0; kind < representatives_.size(); ++kind) add_kind(representatives_[kind]);
    bound_slack();
    for (size_t i = 0; i < training_.forward_ops; ++i)
      visit_edges(i, [&](const EdgeLook& look, size_t from, size_t to) { join(from, to, look); });
    for (auto& [pair, edge] : joined_) result_.edges.push_back(edge);
    return std::move(result_);
  }

 private:
  const Graph& graph() const { return training_.graph; }

  void sort_kinds() {
    const auto hints = block_hints(graph(), training_.forward_ops);
    std::vector<OpId> backward(training_.forward_ops);
    for (size_t i = training_.forward_ops; i < graph().ops.size(); ++i)
      if (const OpId forward = graph().ops[i].forward; forward.valid())
        backward[forward.index()] = OpId(i);
    std::map<OpLook, int32_t> kinds;
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      const Op& op = graph().ops[i];
      OpLook look = {structure_hash(graph(), i, i + 1), hints[i], {}, {}};
      for (size_t k = 0; k < op.inputs.size(); ++k) {
        const TensorId id = op.inputs[k];
        look.operands.push_back(id.valid() ? static_cast<int32_t>(facts_.origin[id.index()]) : -1);
        look.operands.push_back(owns_weight(training_, facts_, i, k) ? 1 : 0);
      }
      for (const auto* ids : {&op.outputs, &op.auxiliaries})
        for (TensorId id : *ids)
          look.operands.push_back(id.valid() && is_saved(facts_, id) ? 1 : 0);
      if (backward[i].valid())
        for (TensorId id : graph()[backward[i]].outputs)
          look.operands.push_back(id.valid() ? 1 : 0);
      if (rules_) look.fates = rules_->look_of(i);
      const auto [entry, fresh] = kinds.try_emplace(look, static_cast<int32_t>(kinds.size()));
      if (fresh) {
        representatives_.push_back(i);
        hints_.push_back(hints[i]);
      }
      result_.kind_of.push_back(entry->second);
    }
  }

  void add_kind(size_t i) {
    const Graph& smallest = smallest_of(training_).graph;
    const LoopNest nest = loops_of(smallest, smallest.ops[i]);
    const std::vector<Sharding> found = shardings_of(nest, hints_[result_.shardings.size()],
                                                     static_cast<int64_t>(result_.devices.size()));
    auto& shardings = result_.shardings.emplace_back();
    auto& fates = result_.fates.emplace_back();
    auto& choices = result_.choices.emplace_back();
    double least = std::numeric_limits<double>::infinity();
    for (const Sharding& sharding : found) {
      const OpTemplate& made = tables_.op(OpId(i), tables_.intern(sharding), group_);
      least = std::min(least, local_->work_of(made));
      for (Fate fate : rules_ ? rules_->of(i) : std::vector<Fate>{Fate::Once}) {
        shardings.push_back(sharding);
        fates.push_back(fate);
        choices.push_back(local_->of(i, made, fate));
      }
    }
    result_.work.push_back(micro_batches_ * least);
  }

  struct EdgeLook {
    int32_t from_kind, output, to_kind, input;
    int32_t weight;
    auto operator<=>(const EdgeLook&) const = default;
  };

  // Time of an op under a sharding if memory does not matter, above that under its best one.
  double excess(size_t op, size_t sharding) const {
    return result_.choices_of(op)[sharding][0].cost.time -
           least_time_[static_cast<size_t>(result_.kind_of[op])];
  }

  // How much more than the least times of all ops a best strategy can take: what data parallelism
  // takes. Whatever is above need not be priced exactly.
  void bound_slack() {
    if (rules_) {
      slack_ = std::numeric_limits<double>::infinity();
      least_time_.assign(result_.choices.size(), 0);
      return;
    }
    for (const auto& kind : result_.choices) {
      double least = kind[0][0].cost.time;
      for (const auto& front : kind) least = std::min(least, front[0].cost.time);
      least_time_.push_back(least);
    }
    Graph forward = graph();
    forward.ops.resize(training_.forward_ops);
    const BatchAxes batch = find_batch(forward);
    std::vector<size_t> split(training_.forward_ops, 0);
    slack_ = 0;
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      int32_t most = 1;
      for (size_t s = 0; s < result_.of(i).size(); ++s) {
        const Split& first = result_.of(i)[s].splits.front();
        if (first.loop < 0 || first.loop != batch.loop[i] || first.blocks > 1) continue;
        const bool alone =
            result_.of(i)[s].splits.size() == 1 || result_.of(i)[s].splits[1].loop < 0;
        if (!alone || first.parts <= most) continue;
        most = first.parts;
        split[i] = s;
      }
      slack_ += excess(i, split[i]);
    }
    for (size_t i = 0; i < training_.forward_ops; ++i)
      visit_edges(i, [&](const EdgeLook& look, size_t from, size_t to) {
        slack_ += edge_time(sides_of(look, from, to), split[from], split[to], true);
      });
  }

  // Tensors that op i reads of others, and weights that another op owns.
  template <typename Visit>
  void visit_edges(size_t i, Visit&& visit) {
    const Op& op = graph().ops[i];
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const TensorId id = op.inputs[k];
      if (!id.valid()) continue;
      if (facts_.origin[id.index()] == TrainingFacts::Origin::Made) {
        const size_t from = graph()[id].producer.index();
        const auto outputs = graph().ops[from].outputs;
        const auto at = std::ranges::find(outputs, id);
        if (at == outputs.end()) continue;
        visit(EdgeLook{result_.kind_of[from], static_cast<int32_t>(at - outputs.begin()),
                       result_.kind_of[i], static_cast<int32_t>(k), 0},
              from, i);
      } else if (facts_.update_index[id.index()] >= 0 && !owns_weight(training_, facts_, i, k)) {
        const auto& first = facts_.first_use[static_cast<size_t>(facts_.update_index[id.index()])];
        if (first.first.index() == i) continue;
        visit(EdgeLook{result_.kind_of[first.first.index()], first.second, result_.kind_of[i],
                       static_cast<int32_t>(k), 1},
              first.first.index(), i);
      }
    }
  }

  void join(size_t from, size_t to, const EdgeLook& look) {
    const auto [known, fresh] = edge_tables_.try_emplace(look, -1);
    if (fresh) {
      known->second = static_cast<int32_t>(result_.tables.size());
      result_.tables.push_back(edge_table(from, to, look));
    }
    const std::pair<size_t, size_t> pair = {std::min(from, to), std::max(from, to)};
    const auto [edge, alone] = joined_.try_emplace(
        pair,
        ParetoNetwork::Edge{static_cast<int32_t>(from), static_cast<int32_t>(to), known->second});
    if (alone) return;
    const auto [both, new_sum] = sums_.try_emplace({edge->second.table, known->second}, -1);
    if (new_sum) {
      std::vector<TimeBytes> cells = result_.tables[static_cast<size_t>(edge->second.table)];
      const std::vector<TimeBytes>& more = result_.tables[static_cast<size_t>(known->second)];
      for (size_t c = 0; c < cells.size(); ++c) {
        const bool never = is_never(cells[c]) || is_never(more[c]);
        cells[c] = never ? kNeverCost
                         : TimeBytes{cells[c].time + more[c].time, cells[c].bytes + more[c].bytes};
      }
      both->second = static_cast<int32_t>(result_.tables.size());
      result_.tables.push_back(std::move(cells));
    }
    edge->second.table = both->second;
  }

  // Layouts of an operand under all shardings of an op; of a weight, where it is at home.
  struct Side {
    std::vector<int32_t> value, gradient;  // by sharding
    std::vector<int64_t> elements;
  };
  Side side_of(size_t op, int32_t operand, bool output, TensorId home = {}) {
    Side side;
    const auto at = static_cast<size_t>(operand);
    for (const Sharding& sharding : result_.of(op)) {
      const OpTemplate& made = tables_.op(OpId(op), tables_.intern(sharding), group_);
      OperandTemplate value = output ? made.outputs()[at] : made.inputs()[at];
      if (home.valid()) value = tables_.kept_weight(home, value);
      side.value.push_back(value.layout);
      side.elements.push_back(value.elements);
      side.gradient.push_back(
          (output ? made.output_gradients()[at] : made.input_gradients()[at]).layout);
    }
    return side;
  }

  // A tensor between two ops.
  struct EdgeSides {
    Side from, to;
    TensorId tensor;
    TensorId gradient;  // none if it has none
    double times = 1;   // that it is moved in a step
    bool weight = false;
  };
  EdgeSides sides_of(const EdgeLook& look, size_t from, size_t to) {
    EdgeSides sides;
    sides.weight = look.weight != 0;
    sides.tensor = graph().ops[to].inputs[static_cast<size_t>(look.input)];
    sides.gradient = training_.gradient_of[sides.tensor.index()];
    sides.from =
        side_of(from, look.output, !sides.weight, sides.weight ? sides.tensor : TensorId());
    sides.to = side_of(to, look.input, false);
    // A weight's gradient is settled where the weight is at home.
    if (sides.weight) sides.from.gradient = sides.from.value;
    sides.times = sides.weight ? 1 : micro_batches_;
    return sides;
  }
  // From sharding i to sharding j, and the gradient back. `exactly`: else it may be less.
  double edge_time(const EdgeSides& sides, size_t i, size_t j, bool exactly) {
    const auto time = [&](TensorId id, int32_t from, int32_t to) {
      const TensorType& type = graph()[id].type;
      return exactly ? moves_->time(type, from, to) : moves_->least_time(type, from, to);
    };
    double total = time(sides.tensor, sides.from.value[i], sides.to.value[j]);
    if (sides.gradient.valid())
      total += time(sides.gradient, sides.to.gradient[j], sides.from.gradient[i]);
    return std::nearbyint(sides.times * total);
  }

  // By sharding: the number of its pair of layouts, of `count`.
  static std::vector<size_t> layouts_of(const Side& side, size_t& count) {
    std::map<std::pair<int32_t, int32_t>, size_t> numbers;
    std::vector<size_t> result;
    for (size_t i = 0; i < side.value.size(); ++i)
      result.push_back(
          numbers.try_emplace({side.value[i], side.gradient[i]}, numbers.size()).first->second);
    count = numbers.size();
    return result;
  }

  std::vector<TimeBytes> edge_table(size_t from, size_t to, const EdgeLook& look) {
    const EdgeSides sides = sides_of(look, from, to);
    const Side &u = sides.from, &v = sides.to;
    const bool saved = !sides.weight && facts_.saved_index[sides.tensor.index()] >= 0 &&
                       reads_saved(to, sides.tensor);
    const auto meet = [&](size_t i, size_t j) {
      if (!rules_ || sides.weight) return FateRules::Meeting{.kept = saved || sides.weight};
      return rules_->meet(from, fate_of(from, i), sides.tensor, to, fate_of(to, j));
    };
    // Layouts repeat: times by those of both sides, exact and not; negative: not asked for yet.
    size_t rows = 0, columns = 0;
    const std::vector<size_t> row = layouts_of(u, rows), column = layouts_of(v, columns);
    std::vector<double> known(2 * rows * columns, -1);
    const auto time = [&](size_t i, size_t j, bool exactly) {
      double& entry = known[2 * (row[i] * columns + column[j]) + (exactly ? 1 : 0)];
      if (entry < 0) entry = edge_time(sides, i, j, exactly);
      return entry;
    };
    std::vector<TimeBytes> cells;
    cells.reserve(u.value.size() * v.value.size());
    for (size_t i = 0; i < u.value.size(); ++i)
      for (size_t j = 0; j < v.value.size(); ++j) {
        const double beside = excess(from, i) + excess(to, j);
        TimeBytes cell;
        if (out_of_time()) slack_ = -1;  // nothing is priced from now on
        if (beside <= slack_) cell.time = time(i, j, false);
        if (beside + cell.time <= slack_) cell.time = time(i, j, true);
        const FateRules::Meeting meeting = meet(i, j);
        if (meeting.again)
          cell.time += std::nearbyint(
              sides.times * moves_->time(graph()[sides.tensor].type, u.value[i], v.value[j]));
        const bool another = tables_.settled(u.value[i]) != v.value[j];
        if (meeting.kept && another)
          cell.bytes = static_cast<double>(
              allocated(v.elements[j] * facts_.element_size[sides.tensor.index()]).value);
        cells.push_back(meeting.allowed ? cell : kNeverCost);
      }
    return cells;
  }

  Fate fate_of(size_t op, size_t option) const {
    return result_.fates[static_cast<size_t>(result_.kind_of[op])][option];
  }

  bool out_of_time() {
    if (result_.complete && options_.out_of_time && options_.out_of_time())
      result_.complete = false;
    return !result_.complete;
  }

  // Whether the backward op of `op` reads a tensor that was saved.
  bool reads_saved(size_t op, TensorId tensor) const {
    const auto& saved = training_.saved[static_cast<size_t>(facts_.saved_index[tensor.index()])];
    return std::ranges::any_of(
        saved.consumers, [&](OpId consumer) { return graph()[consumer].forward == OpId(op); });
  }

  const TrainingGraph& training_;
  double micro_batches_;
  ShardingProblemOptions options_;
  TrainingFacts facts_;
  Tables tables_;
  int32_t group_ = -1;
  std::unique_ptr<MovePrices> moves_;
  std::unique_ptr<FateRules> rules_;  // none: every op is run once
  std::unique_ptr<LocalChoices> local_;
  std::vector<double> least_time_;  // by kind
  double slack_ = 0;
  std::vector<size_t> representatives_;      // by kind: an op
  std::vector<std::vector<int32_t>> hints_;  // by kind
  std::map<EdgeLook, int32_t> edge_tables_;
  std::map<std::pair<size_t, size_t>, ParetoNetwork::Edge> joined_;
  std::map<std::pair<int32_t, int32_t>, int32_t> sums_;
  ShardingProblem result_;
};

}  // namespace

ShardingProblem make_sharding_problem(const TrainingGraph& training, const Machine& machine,
                                      const CostModel& cost, int64_t micro_batches,
                                      const ShardingProblemOptions& options) {
  return Builder(training, machine, cost, micro_batches, options).run();
}

}  // namespace windlass
