#include "windlass/search/exact/reference/every_fate.h"

#include <algorithm>
#include <cmath>

#include "windlass/cost/allocation.h"
#include "windlass/graph/op_info.h"
#include "windlass/search/exact/sharding/local_choices.h"
#include "windlass/search/exact/sharding/move_prices.h"
#include "windlass/search/exact/sharding/sharding_options.h"
#include "windlass/task/recompute.h"
#include "windlass/task/tables.h"

namespace windlass {
namespace {

using Origin = TrainingFacts::Origin;

void keep_best(std::vector<TimeBytes>& list) {
  std::ranges::sort(list);
  std::vector<TimeBytes> front;
  for (const TimeBytes& point : list)
    if (front.empty() || point.bytes < front.back().bytes) front.push_back(point);
  list = std::move(front);
}

TimeBytes added(const TimeBytes& a, const TimeBytes& b) {
  return {a.time + b.time, a.bytes + b.bytes};
}

class EveryFate {
 public:
  EveryFate(const TrainingGraph& training, const Machine& machine, const CostModel& cost,
            int64_t micro_batches)
      : training_(training),
        micro_batches_(static_cast<double>(micro_batches)),
        facts_(training),
        devices_(machine.devices.size()),
        rules_(training, facts_, devices_),
        tables_(training, facts_, machine),
        group_(tables_.intern(all_devices(machine))),
        moves_(machine, tables_, group_),
        local_({.training = training,
                .facts = facts_,
                .machine = machine,
                .cost = cost,
                .tables = tables_,
                .moves = moves_,
                .group = group_,
                .micro_batches = micro_batches_,
                .fates = &rules_}) {
    const auto hints = block_hints(training.graph, training.forward_ops);
    for (size_t i = 0; i < training.forward_ops; ++i) {
      const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
      options_.push_back(shardings_of(nest, hints[i], static_cast<int64_t>(devices_)));
    }
    for (size_t s = 0; s < training.saved.size(); ++s)
      if (const OpId producer = training.saved[s].producer; producer.valid())
        if (std::ranges::find(savers_, producer.index()) == savers_.end())
          savers_.push_back(producer.index());
  }

  std::optional<std::vector<TimeBytes>> run(double most) {
    double count = std::pow(3, static_cast<double>(savers_.size()));
    for (const auto& list : options_) count *= static_cast<double>(list.size());
    if (count > most) return std::nullopt;
    std::vector<size_t> actions(savers_.size(), 0);
    do {
      act(actions);
      if (allowed()) try_shardings();
    } while (next(actions, [](size_t) { return size_t{3}; }));
    keep_best(found_);
    return std::move(found_);
  }

 private:
  template <typename Count>
  static bool next(std::vector<size_t>& choice, Count&& count) {
    for (size_t v = 0; v < choice.size(); ++v) {
      if (++choice[v] < count(v)) return true;
      choice[v] = 0;
    }
    return false;
  }

  // What each op's saved results become, and what follows for the others.
  void act(const std::vector<size_t>& actions) {
    constexpr MemoryAction kActions[] = {MemoryAction::Keep, MemoryAction::Offload,
                                         MemoryAction::Recompute};
    action_.assign(training_.forward_ops, MemoryAction::Keep);
    for (size_t k = 0; k < savers_.size(); ++k) action_[savers_[k]] = kActions[actions[k]];
    Strategy strategy;
    strategy.saved.assign(training_.saved.size(), MemoryAction::Keep);
    for (size_t s = 0; s < training_.saved.size(); ++s)
      if (const OpId producer = training_.saved[s].producer; producer.valid())
        strategy.saved[s] = action_[producer.index()];
    again_.assign(training_.forward_ops, false);
    const std::vector<int32_t> stages(training_.graph.ops.size(), 0);
    for (const auto& list : plan_recompute(training_, strategy, stages, facts_.roots).before)
      for (OpId op : list) again_[op.index()] = true;
    used_again_.assign(training_.forward_ops, false);
    for (size_t i = training_.forward_ops; i-- > 0;)
      for (TensorId id : training_.graph.ops[i].inputs)
        if (made(id) && (view(i) ? used_again_[i] : again_[i]))
          used_again_[training_.graph[id].producer.index()] = true;
  }

  bool made(TensorId id) const { return id.valid() && facts_.origin[id.index()] == Origin::Made; }
  bool view(size_t i) const { return op_info(training_.graph.ops[i].kind).view; }
  bool saved(TensorId id) const { return facts_.saved_index[id.index()] >= 0; }
  // Of a saved tensor's storage.
  MemoryAction action_on(TensorId id) const {
    const OpId owner = training_.graph[facts_.roots[id.index()]].producer;
    return owner.valid() ? action_[owner.index()] : MemoryAction::Keep;
  }
  // Whether the backward pass reads what op i makes of its input, a view, or a view of that.
  bool view_is_read(size_t i) const {
    const TensorId seen = training_.graph.ops[i].outputs[0];
    for (size_t r = 0; r < training_.forward_ops; ++r)
      for (TensorId id : training_.graph.ops[r].inputs)
        if (id == seen && (rules_.reads_back(r, seen) || (view(r) && view_is_read(r)))) return true;
    return false;
  }

  bool allowed() const {
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      if (!again_[i] || view(i)) continue;
      if (std::ranges::find(savers_, i) != savers_.end() && action_[i] != MemoryAction::Recompute)
        return false;
      for (TensorId id : training_.graph.ops[i].inputs)
        if (devices_ > 1 && made(id) && saved(id) && action_on(id) == MemoryAction::Offload &&
            !rules_.reads_back(i, id))
          return false;
    }
    return true;
  }

  void try_shardings() {
    std::vector<size_t> choice(training_.forward_ops, 0);
    do {
      TimeBytes sum;
      std::vector<TimeBytes> list = {TimeBytes{}};
      for (size_t i = 0; i < choice.size(); ++i) {
        sum = added(sum, of_inputs(i, choice));
        std::vector<TimeBytes> longer;
        for (const TimeBytes& own : of_op(i, choice[i]))
          for (const TimeBytes& before : list) longer.push_back(added(before, own));
        keep_best(longer);
        list = std::move(longer);
      }
      for (const TimeBytes& point : list) found_.push_back(added(point, sum));
      if (found_.size() > 100'000) keep_best(found_);
    } while (next(choice, [&](size_t v) { return options_[v].size(); }));
  }

  const OpTemplate& template_of(size_t i, size_t option) {
    return tables_.op(OpId(i), tables_.intern(options_[i][option]), group_);
  }
  double bytes_of(TensorId id, const OperandTemplate& operand) const {
    return static_cast<double>(allocated(operand.elements * facts_.element_size[id.index()]).value);
  }

  // By home of its weights.
  std::vector<TimeBytes> of_op(size_t i, size_t option) {
    const OpTemplate& made = template_of(i, option);
    const Op& op = training_.graph.ops[i];
    TimeBytes own = {micro_batches_ * local_.time_of_both(made), 0};
    if (again_[i]) own.time += micro_batches_ * local_.time_again(i, made);
    const auto save = [&](TensorId id, const OperandTemplate& operand) {
      if (!id.valid() || !saved(id) || facts_.roots[id.index()] != id) return;
      const double bytes = bytes_of(id, operand);
      if (action_[i] == MemoryAction::Keep) own.bytes += bytes;
      if (action_[i] == MemoryAction::Offload)
        own.time += micro_batches_ * local_.there_and_back(static_cast<int64_t>(bytes));
    };
    for (size_t o = 0; o < op.outputs.size(); ++o) save(op.outputs[o], made.outputs()[o]);
    for (size_t o = 0; o < op.auxiliaries.size(); ++o)
      save(op.auxiliaries[o], made.auxiliaries()[o]);
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const TensorId id = op.inputs[k];
      if (!id.valid() || facts_.origin[id.index()] != Origin::Data) continue;
      const bool wanted = again_[i] || (view(i) && used_again_[i] && !view_is_read(i));
      const bool there = rules_.reads_back(i, id) || (saved(id) && devices_ == 1);
      if (wanted && !there) own.bytes += bytes_of(id, made.inputs()[k]);
    }
    std::vector<TimeBytes> list;
    for (const LocalChoice& weights : local_.weight_choices(i, made))
      list.push_back(
          {std::nearbyint(weights.cost.time + own.time), weights.cost.bytes + own.bytes});
    return list;
  }

  // Of the tensors that op i reads, with their gradients.
  TimeBytes of_inputs(size_t i, const std::vector<size_t>& choice) {
    const Op& op = training_.graph.ops[i];
    const OpTemplate& to = template_of(i, choice[i]);
    TimeBytes sum;
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const TensorId id = op.inputs[k];
      if (made(id)) sum = added(sum, of_result(i, k, choice));
      if (!id.valid() || facts_.update_index[id.index()] < 0) continue;
      const auto& first = facts_.first_use[static_cast<size_t>(facts_.update_index[id.index()])];
      if (first.first.index() == i) continue;
      const OpTemplate& home = template_of(first.first.index(), choice[first.first.index()]);
      const int32_t layout = tables_.kept_weight(id, home.inputs()[first.second]).layout;
      double time = moves_.time(training_.graph[id].type, layout, to.inputs()[k].layout);
      if (const TensorId gradient = training_.gradient_of[id.index()]; gradient.valid())
        time += moves_.time(training_.graph[gradient].type, to.input_gradients()[k].layout, layout);
      sum.time += std::nearbyint(time);
      if (tables_.settled(layout) != to.inputs()[k].layout)
        sum.bytes += bytes_of(id, to.inputs()[k]);
    }
    return sum;
  }

  TimeBytes of_result(size_t i, size_t k, const std::vector<size_t>& choice) {
    const TensorId id = training_.graph.ops[i].inputs[k];
    const size_t from = training_.graph[id].producer.index();
    const auto& outputs = training_.graph.ops[from].outputs;
    const auto at = static_cast<size_t>(std::ranges::find(outputs, id) - outputs.begin());
    const OpTemplate& producer = template_of(from, choice[from]);
    const OpTemplate& reader = template_of(i, choice[i]);
    const int32_t layout = producer.outputs()[at].layout, want = reader.inputs()[k].layout;
    const double there = moves_.time(training_.graph[id].type, layout, want);
    double time = there;
    if (const TensorId gradient = training_.gradient_of[id.index()]; gradient.valid())
      time += moves_.time(training_.graph[gradient].type, reader.input_gradients()[k].layout,
                          producer.output_gradients()[at].layout);
    TimeBytes sum = {std::nearbyint(micro_batches_ * time), 0};
    const bool reads = rules_.reads_back(i, id);
    if (again_[from] && (reads || again_[i])) sum.time += std::nearbyint(micro_batches_ * there);
    const bool holds = view(i) ? used_again_[i] || view_is_read(i) : reads || again_[i];
    const bool as_it_was = saved(id) && action_on(id) != MemoryAction::Recompute;
    if (as_it_was && holds && tables_.settled(layout) != want)
      sum.bytes += bytes_of(id, reader.inputs()[k]);
    return sum;
  }

  const TrainingGraph& training_;
  double micro_batches_;
  TrainingFacts facts_;
  size_t devices_;
  FateRules rules_;
  Tables tables_;
  int32_t group_;
  MovePrices moves_;
  LocalChoices local_;
  std::vector<std::vector<Sharding>> options_;  // by forward op
  std::vector<size_t> savers_;                  // forward ops of which something is saved
  // Of the actions at hand, by forward op: on what is saved of it; whether it is run again; whether
  // an op that is run again reads what it makes, or a view of it.
  std::vector<MemoryAction> action_;
  std::vector<bool> again_, used_again_;
  std::vector<TimeBytes> found_;
};

}  // namespace

std::optional<std::vector<TimeBytes>> trade_by_brute_force(const TrainingGraph& training,
                                                           const Machine& machine,
                                                           const CostModel& cost,
                                                           int64_t micro_batches, double most) {
  return EveryFate(training, machine, cost, micro_batches).run(most);
}

}  // namespace windlass
