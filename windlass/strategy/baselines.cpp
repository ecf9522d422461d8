#include "windlass/strategy/baselines.h"

#include <algorithm>
#include <map>

#include "windlass/base/error.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/graph/network_layers.h"
#include "windlass/strategy/context_parallel.h"
#include "windlass/strategy/expert_parallel.h"
#include "windlass/strategy/replicas.h"
#include "windlass/strategy/stages.h"
#include "windlass/strategy/tensor_parallel.h"

namespace windlass {
namespace {

class Generator {
 public:
  Generator(const BaselineSpec& spec, const TrainingGraph& training, const BatchAxes& batch,
            const Machine& machine)
      : spec_(spec), training_(training), batch_(batch), machine_(machine) {}

  Strategy run() {
    result_ = plain_strategy(training_, DeviceId(size_t{0}));
    result_.name = spec_.name;
    result_.micro_batches = spec_.micro_batches;
    result_.bucket = spec_.bucket;
    result_.virtual_memory = spec_.virtualise;
    make_stages();
    split_ops();
    size_parts();
    choose_actions();
    for (Residency& weight : result_.weights)
      weight = {.zero = static_cast<uint8_t>(spec_.zero),
                .host = spec_.host_weights,
                .host_update = spec_.host_update};
    return std::move(result_);
  }

 private:
  const Graph& graph() const { return training_.graph; }

  void make_stages() {
    result_.groups.clear();
    const int64_t each = spec_.dp * spec_.cp * spec_.tp;
    for (int64_t p = 0; p < spec_.pp; ++p) {
      std::vector<DeviceId>& group = result_.groups.emplace_back();
      for (int64_t i = 0; i < each; ++i)
        group.push_back(DeviceId(static_cast<size_t>(p * each + i)));
    }
    const std::vector<size_t> ends =
        cut_evenly(training_, static_cast<size_t>(spec_.pp * spec_.interleave), spec_.whole_layers);
    result_.stages.clear();
    for (size_t s = 0; s < ends.size(); ++s) {
      const auto group = static_cast<int32_t>(s % static_cast<size_t>(spec_.pp));
      result_.stages.push_back({s == 0 ? 0 : ends[s - 1], ends[s], group});
    }
    if (spec_.pp > 1)
      result_.schedule = spec_.gpipe ? ScheduleKind::GPipe : ScheduleKind::OneFOneB;
    else if (spec_.gpipe)
      result_.schedule = ScheduleKind::GPipe;
  }

  void split_ops() {
    const auto parts = static_cast<int32_t>(spec_.tp);
    const auto dp = static_cast<int32_t>(spec_.dp);
    if (spec_.one_weird_trick) {
      splits_ = dense_splits(graph(), training_.forward_ops, dp);
    } else {
      splits_ =
          megatron_splits(graph(), training_.forward_ops, batch_, parts, spec_.sequence_parallel);
    }
    split_further();
    result_.shardings.clear();
    std::map<Sharding, int32_t> known;
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      Sharding sharding;
      if (spec_.one_weird_trick && splits_[i].split.loop >= 0) {
        sharding.splits = {splits_[i].split};
      } else {
        const bool split = !experts_.empty() && experts_[i].loop >= 0;
        sharding.splits = {along_batch(i, split ? dp / experts_[i].parts : dp)};
        if (split) sharding.splits.push_back(experts_[i]);
        add_inside(i, sharding);
      }
      const auto [entry, fresh] =
          known.try_emplace(sharding, static_cast<int32_t>(result_.shardings.size()));
      if (fresh) result_.shardings.push_back(sharding);
      result_.ops[i] = entry->second;
    }
  }

  // Positions and experts.
  void split_further() {
    const size_t ops = training_.forward_ops;
    try {
      if (spec_.cp > 1) {
        const int64_t all = spec_.cp * (spec_.sequence_parallel ? spec_.tp : 1);
        const int32_t stripes = spec_.stripes > 0 ? static_cast<int32_t>(spec_.stripes)
                                                  : even_stripes(graph(), ops, all);
        positions_ = context_splits(graph(), ops, batch_, static_cast<int32_t>(spec_.cp), stripes);
      }
      if (spec_.ep > 1) experts_ = expert_splits(graph(), ops, static_cast<int32_t>(spec_.ep));
    } catch (const Error& error) {
      throw error.within(fmt::format("strategy \"{}\"", spec_.name));
    }
  }

  // What is split inside of a replica: positions, then channels. What is split along the tokens
  // outside of the tensor-parallel regions is one split with that of the positions.
  void add_inside(size_t op, Sharding& sharding) const {
    if (spec_.one_weird_trick) return;
    const Split& channels = splits_[op].split;
    if (positions_.empty() || positions_[op].loop < 0 || positions_[op].loop != channels.loop) {
      if (!positions_.empty()) sharding.splits.push_back(positions_[op]);
      sharding.splits.push_back(channels);
      return;
    }
    Split both = positions_[op];
    both.parts *= channels.parts;
    const LoopNest nest = loops_of(graph(), graph().ops[op]);
    const int64_t size = nest.loops[static_cast<size_t>(both.loop)].size;
    if (size % (int64_t{both.parts} * both.blocks) == 0) {
      sharding.splits.push_back(both);
    } else {
      sharding.splits.push_back(positions_[op]);
      sharding.splits.push_back({-1, channels.parts});
    }
  }

  // Samples of replicas that are not equally fast.
  void size_parts() {
    if (!spec_.balance && spec_.parts.empty()) return;
    std::vector<std::vector<int32_t>> samples;
    for (const auto& group : result_.groups) {
      samples.emplace_back();
      if (static_cast<int64_t>(group.size()) < spec_.dp) continue;
      samples.back() = samples_by_speed(
          batch_.samples, spec_.balance
                              ? replica_speeds(training_, machine_, group, spec_.dp)
                              : std::vector<double>(spec_.parts.begin(), spec_.parts.end()));
    }
    size_replicas(training_, batch_, samples, result_);
  }

  Split along_batch(size_t op, int32_t parts) const {
    const int32_t loop = batch_.loop[op];
    if (loop < 0 || parts == 1) return {-1, parts};
    const LoopNest nest = loops_of(graph(), graph().ops[op]);
    const LoopDim& dim = nest.loops[static_cast<size_t>(loop)];
    if (dim.role == LoopRole::Whole) return {-1, parts};
    if (dim.size < parts)
      fail_input("strategy \"{}\": \"{}\" has {} rows of samples, too few for {} replicas",
                 spec_.name, graph().ops[op].name, dim.size, parts);
    return {loop, parts};
  }

  bool keeps_parts(size_t producer) const {
    return splits_[producer].sequence || (!positions_.empty() && positions_[producer].loop >= 0);
  }

  void choose_actions() {
    if (spec_.sequence_parallel || spec_.cp > 1) {
      // Parts are kept; whoever reads the whole gathers it again.
      for (size_t s = 0; s < training_.saved.size(); ++s) {
        const OpId producer = training_.saved[s].producer;
        if (producer.valid() && producer.index() < splits_.size() && keeps_parts(producer.index()))
          result_.saved[s] = MemoryAction::Regather;
      }
    }
    if (spec_.offload) {
      for (size_t s = 0; s < training_.saved.size(); ++s)
        if (training_.saved[s].producer.valid()) result_.saved[s] = MemoryAction::Offload;
    }
    if (spec_.compress > 0) {
      for (size_t s = 0; s < training_.saved.size(); ++s) {
        const Tensor& tensor = graph()[training_.saved[s].tensor];
        if (training_.saved[s].producer.valid() && tensor.role == TensorRole::Activation &&
            is_float(tensor.type.dtype))
          result_.saved[s] = compressions(spec_.compress).back();
      }
    }
    switch (spec_.recompute) {
      case RecomputePolicy::None: break;
      case RecomputePolicy::Selective: recompute_attention(); break;
      case RecomputePolicy::Full: recompute_between(block_checkpoints(training_)); break;
      case RecomputePolicy::Sqrt: recompute_between(sqrt_checkpoints(training_)); break;
    }
  }

  // A saved tensor that passes one of the ends, or belongs to no piece, stays; others go.
  void recompute_between(const Checkpoints& checkpoints) {
    const auto consumers = consumers_of(graph());
    const std::vector<TensorId> roots = storage_roots(graph());
    std::vector<size_t> last_reader(graph().tensors.size(), 0);
    for (size_t t = 0; t < graph().tensors.size(); ++t)
      for (OpId reader : consumers[t])
        if (reader.index() < training_.forward_ops)
          last_reader[roots[t].index()] = std::max(last_reader[roots[t].index()], reader.index());
    for (size_t s = 0; s < training_.saved.size(); ++s) {
      const OpId producer = training_.saved[s].producer;
      if (!producer.valid()) continue;
      const size_t made = producer.index();
      if (made < checkpoints.first || made >= checkpoints.last) continue;
      const auto end = std::ranges::upper_bound(checkpoints.ends, made);
      const bool passes =
          end != checkpoints.ends.end() && last_reader[training_.saved[s].tensor.index()] >= *end;
      if (!passes) result_.saved[s] = MemoryAction::Recompute;
    }
  }

  // Scores, probabilities and masks: what lies between the two products of unfused attention.
  void recompute_attention() {
    std::vector<bool> inside(training_.forward_ops, false);
    const auto consumers = consumers_of(graph());
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      if (graph().ops[i].kind != OpKind::Softmax) continue;
      std::vector<size_t> marked = {i};
      bool before = false, after = false;
      // Back to the product that makes the scores.
      for (std::vector<TensorId> pending = graph().ops[i].inputs; !pending.empty();) {
        const TensorId id = pending.back();
        pending.pop_back();
        if (!id.valid() || !graph()[id].producer.valid()) continue;
        const size_t at = graph()[id].producer.index();
        const OpKind kind = graph().ops[at].kind;
        const bool product = kind == OpKind::MatMul;
        if (!product && kind != OpKind::Binary && kind != OpKind::Unary && kind != OpKind::Where)
          continue;
        marked.push_back(at);
        before = before || product;
        if (!product) pending.push_back(graph().ops[at].inputs[0]);
      }
      // On to the product with the values.
      for (std::vector<TensorId> pending = graph().ops[i].outputs; !pending.empty();) {
        const TensorId id = pending.back();
        pending.pop_back();
        for (OpId reader : consumers[id.index()]) {
          if (reader.index() >= training_.forward_ops) continue;
          const OpKind kind = graph()[reader].kind;
          if (kind == OpKind::MatMul) after = true;
          if (kind != OpKind::Dropout && kind != OpKind::Cast) continue;
          marked.push_back(reader.index());
          for (TensorId out : graph()[reader].outputs) pending.push_back(out);
        }
      }
      if (before && after)
        for (size_t op : marked) inside[op] = true;
    }
    for (size_t s = 0; s < training_.saved.size(); ++s) {
      const OpId producer = training_.saved[s].producer;
      if (producer.valid() && producer.index() < training_.forward_ops && inside[producer.index()])
        result_.saved[s] = MemoryAction::Recompute;
    }
  }

  const BaselineSpec& spec_;
  const TrainingGraph& training_;
  const BatchAxes& batch_;
  const Machine& machine_;
  std::vector<TensorSplit> splits_;
  std::vector<Split> positions_, experts_;  // by op; none: positions or experts are not split
  Strategy result_;
};

// As many packs as keep the weights, gradients and activations of one within half of a device.
size_t default_packs(const BaselineSpec& spec, const TrainingGraph& training,
                     const Machine& machine) {
  const TrainingTotals totals = totals_of(training);
  int64_t limit = machine.devices[0].limit.value;
  for (const Device& device : machine.devices) limit = std::min(limit, device.limit.value);
  const int64_t wanted = totals.weights.value + totals.weight_gradients.value +
                         totals.saved.value / std::max<int64_t>(1, spec.dp);
  const auto n = static_cast<int64_t>(machine.devices.size());
  int64_t packs = std::max<int64_t>(n, (2 * wanted + limit - 1) / std::max<int64_t>(1, limit));
  packs = (packs + n - 1) / n * n;
  return std::min(static_cast<size_t>(packs), most_pieces(training));
}

// Even packs as Harmony's runtime carries them out.
Strategy make_packs(const BaselineSpec& spec, const TrainingGraph& training,
                    const Machine& machine) {
  const std::vector<int32_t> layer_of = find_layers(training.graph);
  HarmonyPlan plan = {.mode = spec.dp > 1 || machine.devices.size() == 1 ? HarmonyMode::Data
                                                                         : HarmonyMode::Pipeline,
                      .devices = static_cast<int32_t>(machine.devices.size()),
                      .forward_microbatch = spec.micro,
                      .backward_microbatch = spec.micro};
  const size_t count =
      spec.packs > 0 ? static_cast<size_t>(spec.packs) : default_packs(spec, training, machine);
  for (size_t end : cut_evenly(training, count)) {
    const int32_t first = plan.backward_packs.empty() ? 0 : plan.backward_packs.back().last + 1;
    if (layer_of[end - 1] >= first) plan.backward_packs.push_back({first, layer_of[end - 1]});
  }
  plan.forward_packs.assign(plan.backward_packs.begin(), plan.backward_packs.end() - 1);
  return strategy_of_packs(harmony_runtime(plan), spec.name);
}

}  // namespace

Strategy make_baseline(const BaselineSpec& spec, const TrainingGraph& training,
                       const BatchAxes& batch, const Machine& machine) {
  if (spec.harmony_packs) return make_packs(spec, training, machine);
  return Generator(spec, training, batch, machine).run();
}

PreparedStep prepare_step(const Graph& graph, const BaselineSpec& spec, const Machine& machine,
                          const TrainingOptions& options) {
  PreparedStep step;
  step.spec = spec;
  const BatchAxes batch = find_batch(graph);
  step.samples = batch.samples;
  // A batch that must stay whole goes through a pipeline as one, unless the user wants it cut.
  if (!batch.obstacle.empty() && spec.micro == 0 && spec.micro_batches == 0)
    step.spec.micro_batches = 1;
  resolve(step.spec, machine, batch.samples);
  // Packs cut the batch themselves.
  const int64_t parts = step.spec.harmony_packs ? 1 : step.spec.micro_batches;
  MicroBatch part = cut_training(graph, batch, parts, options);
  step.training = std::move(part.training);
  step.strategy = make_baseline(step.spec, step.training, part.batch, machine);
  return step;
}

}  // namespace windlass
