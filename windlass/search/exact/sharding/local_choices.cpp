#include "windlass/search/exact/sharding/local_choices.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "windlass/cost/allocation.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

double nanoseconds(Seconds time) { return std::nearbyint(time.value * 1e9); }

bool is_half(DType dtype) { return dtype == DType::F16 || dtype == DType::BF16; }

// Leaves out what another choice is at least as good as in both.
void keep_front(std::vector<LocalChoice>& choices) {
  std::ranges::stable_sort(choices, {}, [](const LocalChoice& c) { return c.cost; });
  std::vector<LocalChoice> front;
  for (const LocalChoice& choice : choices)
    if (front.empty() || choice.cost.bytes < front.back().cost.bytes) front.push_back(choice);
  choices = std::move(front);
}

}  // namespace

bool owns_weight(const TrainingGraph& training, const TrainingFacts& facts, size_t i, size_t k) {
  const TensorId id = training.graph.ops[i].inputs[k];
  if (!id.valid() || facts.update_index[id.index()] < 0) return false;
  const auto& first = facts.first_use[static_cast<size_t>(facts.update_index[id.index()])];
  return first.first == OpId(i) && static_cast<size_t>(first.second) == k;
}

bool is_saved(const TrainingFacts& facts, TensorId id) {
  return facts.saved_index[id.index()] >= 0 && facts.roots[id.index()] == id;
}

LocalChoices::LocalChoices(const ChoiceContext& context) : in_(context) {
  const std::vector<DeviceId>& devices = in_.tables.group(in_.group);
  members_.resize(devices.size());
  std::iota(members_.begin(), members_.end(), 0);
  for (DeviceId device : devices) types_.push_back(in_.machine[device].type);
  std::ranges::sort(types_);
  types_.erase(std::unique(types_.begin(), types_.end()), types_.end());
}

double LocalChoices::work_of(const OpTemplate& made) {
  return price_of(made.work) + price_of(made.exchange.begin) + price_of(made.backward_work) +
         price_of(made.backward_exchange.begin);
}

double LocalChoices::price_of(int32_t work) {
  if (work < 0) return 0;
  const auto at = static_cast<size_t>(work);
  if (prices_.size() <= at) prices_.resize(in_.tables.works.size(), -1);
  if (prices_[at] < 0) {
    double slowest = 0;
    for (size_t type : types_)
      slowest = std::max(
          slowest,
          nanoseconds(in_.cost.price(in_.tables.works[at], in_.machine.device_types[type]).time));
    prices_[at] = slowest;
  }
  return prices_[at];
}

// Weights are moved in buckets: a weight's share of the time of a full one.
double LocalChoices::bucketed(Collective collective, int32_t digits, int64_t bytes) {
  if (in_.tables.members(digits) == 1) return 0;
  const int64_t bucket = std::max<int64_t>(bytes, Strategy().bucket.value);
  const double whole = time_of(
      in_.tables.collective(collective, in_.group, in_.tables.digits(digits), Bytes(bucket)));
  return whole * static_cast<double>(bytes) / static_cast<double>(bucket);
}
double LocalChoices::host_copy(bool to_host, int64_t bytes) {
  // Times of copies are linear beyond their start: one price for each power of two.
  if (bytes <= 0) return 0;
  int64_t size = 1 << 16;
  while (size < bytes) size *= 2;
  const double whole = time_of(in_.tables.host_copies(in_.group, members_, to_host, Bytes(size)));
  return whole * static_cast<double>(bytes) / static_cast<double>(size);
}

double LocalChoices::time_of_both(const OpTemplate& made) {
  return work_of(made) + time_of(made.exchange.traffic) + time_of(made.backward_exchange.traffic);
}

// What the backward op reads of its results comes whole.
double LocalChoices::time_again(size_t i, const OpTemplate& made) {
  double time =
      price_of(made.work) + price_of(made.exchange.begin) + time_of(made.exchange.traffic);
  const Op& op = in_.training.graph.ops[i];
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    if (!op.outputs[o].valid() || !in_.fates->reads_back(i, op.outputs[o])) continue;
    const int32_t layout = made.outputs()[o].layout;
    time +=
        in_.moves.time(in_.training.graph[op.outputs[o]].type, layout, in_.tables.settled(layout));
  }
  return time;
}

double LocalChoices::held_data(size_t i, const OpTemplate& made, Fate fate) const {
  const Op& op = in_.training.graph.ops[i];
  double bytes = 0;
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (in_.fates != nullptr && in_.fates->holds_data(i, k, fate))
      bytes += static_cast<double>(
          allocated(made.inputs()[k].elements * in_.facts.element_size[op.inputs[k].index()])
              .value);
  return bytes;
}

// What becomes of what is saved of the op.
std::vector<LocalChoice> LocalChoices::saved_choices(size_t i, const OpTemplate& made, Fate fate) {
  const Op& op = in_.training.graph.ops[i];
  LocalChoice plain;
  plain.cost = {in_.micro_batches * time_of_both(made), held_data(i, made, fate)};
  if (fate == Fate::Again) {
    plain.cost.time += in_.micro_batches * time_again(i, made);
    plain.saved = MemoryAction::Recompute;
    return {plain};
  }
  // Saved results, and what it takes to copy them out and back.
  LocalChoice away = plain;
  away.saved = MemoryAction::Offload;
  bool any = false;
  const auto save = [&](TensorId id, const OperandTemplate& operand) {
    if (!id.valid() || !is_saved(in_.facts, id)) return;
    any = true;
    const auto bytes = allocated(operand.elements * in_.facts.element_size[id.index()]).value;
    // Micro-batches run one after the other: what is saved is of one of them.
    plain.cost.bytes += static_cast<double>(bytes);
    away.cost.time += in_.micro_batches * there_and_back(bytes);
  };
  for (size_t o = 0; o < op.outputs.size(); ++o) save(op.outputs[o], made.outputs()[o]);
  for (size_t o = 0; o < op.auxiliaries.size(); ++o) save(op.auxiliaries[o], made.auxiliaries()[o]);
  if (fate == Fate::Away) return {away};
  const bool apart = in_.fates != nullptr && in_.fates->tells_away(i);
  if (any && in_.memory_choices && !apart) return {plain, away};
  return {plain};
}

std::vector<LocalChoice> LocalChoices::weight_choices(size_t i, const OpTemplate& made) {
  const Op& op = in_.training.graph.ops[i];
  std::vector<LocalChoice> weights = {LocalChoice{}};
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (owns_weight(in_.training, in_.facts, i, k)) add_weight(op.inputs[k], made, k, weights);
  return weights;
}

std::vector<LocalChoice> LocalChoices::of(size_t i, const OpTemplate& made, Fate fate) {
  std::vector<LocalChoice> result;
  const std::vector<LocalChoice> weights = weight_choices(i, made);
  for (const LocalChoice& s : saved_choices(i, made, fate))
    for (const LocalChoice& w : weights) {
      LocalChoice both = w;
      both.saved = s.saved;
      both.cost.time = std::nearbyint(both.cost.time + s.cost.time);
      both.cost.bytes += s.cost.bytes;
      result.push_back(both);
    }
  keep_front(result);
  return result;
}

// All weights of an op live alike.
void LocalChoices::add_weight(TensorId tensor, const OpTemplate& made, size_t input,
                              std::vector<LocalChoice>& weights) {
  const auto& update =
      in_.facts.updates[static_cast<size_t>(in_.facts.update_index[tensor.index()])];
  std::vector<Residency> ways = {Residency{}};
  if (in_.memory_choices) {
    const int32_t replicas = in_.tables.replica_digits(made.inputs()[input].layout);
    const int32_t partial = in_.tables.partial_digits(made.input_gradients()[input].layout);
    if (in_.tables.members(replicas) > 1 && partial == replicas) {
      ways.push_back({.zero = 2});
      ways.push_back({.zero = 3});
    }
    ways.push_back({.host = true, .host_update = true});
  }
  const bool first = weights.size() == 1 && weights[0].cost == TimeBytes{};
  std::vector<LocalChoice> result;
  for (const Residency& way : ways) {
    const LocalChoice choice = weight_choice(way, update, made, input);
    for (const LocalChoice& before : weights) {
      // Weights of an op are treated alike, but the first one has nothing to follow.
      if (!first && !(before.residency == way)) continue;
      LocalChoice sum_of_both = choice;
      sum_of_both.cost.time += before.cost.time;
      sum_of_both.cost.bytes += before.cost.bytes;
      sum_of_both.hideable += before.hideable;
      result.push_back(sum_of_both);
    }
  }
  weights = std::move(result);
}

LocalChoice LocalChoices::weight_choice(const Residency& way, const TrainingFacts::Update& update,
                                        const OpTemplate& made, size_t input) {
  const OperandTemplate& want = made.inputs()[input];
  const OperandTemplate kept = in_.tables.kept_weight(update.weight, want);
  const bool moved = kept.layout != want.layout;
  const int32_t gradient = made.input_gradients()[input].layout;
  const int64_t elements = kept.elements;
  const int32_t replicas = in_.tables.replica_digits(kept.layout);
  const int32_t partial = moved ? 0 : in_.tables.partial_digits(gradient);
  const int64_t copies = in_.tables.members(replicas);
  const int64_t weight = elements * update.weight_size, sum = elements * update.gradient_size;
  const int64_t share = way.zero >= 1 ? (elements + copies - 1) / copies : elements;
  TimeBytes cost;
  const auto add_bytes = [&](int64_t bytes) {
    cost.bytes += static_cast<double>(allocated(bytes).value);
  };
  if (way.zero >= 1)
    cost.time = (bucketed(Collective::ReduceScatter, partial, sum) *
                     (way.zero >= 2 ? in_.micro_batches : 1) +
                 bucketed(Collective::AllGather, replicas, weight) *
                     (way.zero == 3 ? 2 * in_.micro_batches : 1));
  else
    cost.time = bucketed(Collective::AllReduce, partial, sum);
  const double hideable = cost.time;
  if (moved) {
    const Graph& graph = in_.training.graph;
    cost.time += in_.moves.time(graph[update.weight].type, kept.layout, want.layout) +
                 in_.moves.time(graph[update.gradient].type, gradient, kept.layout);
    add_bytes(want.elements * (update.weight_size + update.gradient_size));
  }
  if (way.host) {
    cost.time += 2 * in_.micro_batches * host_copy(false, weight) + host_copy(true, sum);
  } else {
    add_bytes((way.zero == 3 ? share : elements) * update.weight_size);
    add_bytes((way.zero >= 2 ? share : elements) * update.gradient_size);
    if (update.state_size > 0) add_bytes(share * update.state_size);
    cost.time += update_time(update, share);
  }
  return {.cost = cost, .hideable = hideable, .residency = way};
}

double LocalChoices::update_time(const TrainingFacts::Update& update, int64_t elements) {
  const Tensor& weight = in_.training.graph[update.weight];
  const bool master = is_half(weight.type.dtype) && in_.training.options.master_weights;
  return price_of(in_.tables.work(
      update_work(in_.training.options.optimizer, static_cast<double>(elements), weight.type.dtype,
                  in_.training.graph[update.gradient].type.dtype, master)));
}

}  // namespace windlass
