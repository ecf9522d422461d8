// Each op as the strategy splits it, found again only where it changed, and the redistributions
// that were asked for lately.

#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {
namespace {

constexpr size_t kRecentMoves = 1 << 14;
constexpr size_t kMostGroups = 64;

}  // namespace

const std::vector<MoveTemplate>& StepBound::State::moves_of(TensorId tensor, int32_t from,
                                                            int32_t to) {
  const uint64_t key = uint64_t{type_of[tensor.index()]} << 44 | static_cast<uint64_t>(from) << 22 |
                       static_cast<uint64_t>(to);
  RecentMove& recent = recent_moves[key * 0x9e3779b97f4a7c15ULL >> 50];
  if (recent.key != key || recent.group != group)
    recent = {key, group, &tables.moves(training.graph[tensor].type, from, group, to, group)};
  return *recent.moves;
}

const StepBound::State::Choice& StepBound::State::make_choice(size_t op, int32_t sharding) {
  // Throws if it is not a sharding of the op.
  const OpTemplate& made = tables.op(OpId(op), sharding, group);
  Choice& own = in_group->choices.emplace_back();
  own.made = &made;
  own.forward = time_of_op(made.work, made.exchange);
  own.backward = time_of_op(made.backward_work, made.backward_exchange);
  const auto couple = [&](const ExchangeTemplate& exchange) -> Coupled {
    if (!exchange.needed()) return {};
    own.bytes += allocated(exchange.bytes.value).value;
    return {flow_of(exchange.traffic), time_of_work(exchange.begin)};
  };
  own.coupled = couple(made.exchange);
  own.backward_coupled = couple(made.backward_exchange);
  const TensorId* const tensors = tables.tensors(OpId(op));
  const auto add = [&](std::span<const ReadTemplate> reads) {
    uint32_t count = 0;
    for (const ReadTemplate& read : reads) {
      const TensorId tensor = tensors[read.place];
      if (facts.origin[tensor.index()] != TrainingFacts::Origin::Made) {
        own.bytes += allocated(read.want.elements * facts.element_size[tensor.index()]).value;
        continue;
      }
      own.operands.push_back({tensor, read.want.layout});
      ++count;
    }
    return count;
  };
  own.reads = add(made.reads());
  own.gradients = add(made.gradient_reads());
  add(made.saved_reads());
  own.view_of_made =
      !made.reads().empty() &&
      facts.origin[tensors[made.reads()[0].place].index()] == TrainingFacts::Origin::Made;
  const auto make = [&](std::span<const ResultTemplate> results) {
    for (const ResultTemplate& result : results) {
      const TensorId tensor = tensors[result.place];
      const int32_t update = result.term ? facts.term_of[tensor.index()] : -1;
      own.results.push_back(
          {tensor, result.buffer.layout, update, result.buffer.bytes.value, result.elements});
      own.bytes += result.buffer.bytes.value;
      // A share of the sum beside it, and optimizer state.
      if (update >= 0)
        own.bytes +=
            result.buffer.bytes.value +
            allocated(result.elements * facts.updates[static_cast<size_t>(update)].state_size)
                .value;
    }
  };
  make(made.results());
  own.makes = static_cast<uint32_t>(own.results.size());
  make(made.backward_results());
  return own;
}

const StepBound::State::Choice& StepBound::State::choice(size_t op, int32_t sharding) {
  std::vector<const Choice*>& list = in_group->of[op];
  const auto at = static_cast<size_t>(sharding);
  if (list.size() <= at) list.resize(at + 1, nullptr);
  if (list[at] == nullptr) list[at] = &make_choice(op, sharding);
  return *list[at];
}

// Of the group that is at hand.
void StepBound::State::open_choices() {
  in_group = &choices_of[group];
  in_group->of.resize(training.forward_ops);
  if (recent_moves.empty()) recent_moves.assign(kRecentMoves, {});
}

// Before anything of the strategy is chosen.
void StepBound::State::trim_choices() {
  if (choices_of.size() <= kMostGroups) return;
  choices_of.clear();
  chosen_group = -1;
}

// Ops that are split otherwise than last time.
void StepBound::State::choose() {
  open_choices();
  if (chosen_group != group || chosen.empty()) {
    chosen.assign(training.forward_ops, &nothing);
    chosen_shardings.assign(training.forward_ops, -1);
    chosen_group = group;
    plain_work = plain_bytes = 0;
    known_delays.assign(windows.size(), {});
    delays.assign(windows.size(), {});
    outdated.assign(windows.size(), true);
    all_delays = {};
  }
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const int32_t sharding = known_ids[static_cast<size_t>(strategy->ops[i])];
    if (chosen_shardings[i] == sharding) continue;
    const Choice& now = choice(i, sharding);
    const Choice& before = *chosen[i];
    chosen_shardings[i] = sharding;
    chosen[i] = &now;
    outdated[window_of[i]] = outdated[enters[i]] = true;
    plain_work += now.forward + now.backward - before.forward - before.backward;
    plain_bytes += now.bytes - before.bytes;
    for (int32_t u : updates_of[i]) {
      const auto input = static_cast<size_t>(facts.first_use[static_cast<size_t>(u)].second);
      const OperandTemplate weight = tables.kept_weight(
          facts.updates[static_cast<size_t>(u)].weight, now.made->inputs()[input]);
      update_elements[static_cast<size_t>(u)] = static_cast<double>(weight.elements);
      update_parts[static_cast<size_t>(u)] = static_cast<double>(
          tables.members(tables.partial_digits(now.made->input_gradients()[input].layout)));
    }
  }
}

}  // namespace windlass
