#include "windlass/search/bounds/split_costs.h"

#include <algorithm>
#include <cmath>

#include "windlass/graph/blocks.h"
#include "windlass/graph/coupled.h"
#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

constexpr double kRoundedTime = 0.5e-9;  // the simulator's, to nanoseconds

// Every way to cut loops whose product divides the number of devices; what is left over is copies.
void list_parts(const LoopNest& nest, const std::vector<int64_t>& sizes, int64_t left,
                std::vector<int64_t>& parts, std::vector<std::vector<int64_t>>& found) {
  const size_t loop = parts.size();
  if (loop == nest.loops.size()) {
    found.push_back(parts);
    return;
  }
  for (int64_t p = 1; p <= left; ++p) {
    if (p > 1 && (nest.loops[loop].role == LoopRole::Whole || sizes[loop] < p)) break;
    if (left % p != 0) continue;
    parts.push_back(p);
    list_parts(nest, sizes, left / p, parts, found);
    parts.pop_back();
  }
}

// Of a work, as if everything in it were so many times as much.
Work scaled_work(Work work, double factor) {
  const auto scale = [&](Bytes bytes) {
    return Bytes(static_cast<int64_t>(static_cast<double>(bytes.value) * factor));
  };
  for (Kernel& kernel : work.kernels) {
    kernel.multiply_adds *= factor;
    kernel.pointwise *= factor;
    kernel.read = scale(kernel.read);
    kernel.written = scale(kernel.written);
  }
  return work;
}

size_t index_of(std::vector<TensorShare>& list, const TensorShare& share) {
  const auto at = std::ranges::find(list, share);
  if (at != list.end()) return static_cast<size_t>(at - list.begin());
  list.push_back(share);
  return list.size() - 1;
}

}  // namespace

SplitCosts::SplitCosts(const Problem& problem, const TrainingGraph& training)
    : problem_(problem),
      training_(training),
      type_(problem.machine.device_types[problem.machine.devices[0].type]),
      facts_(training),
      traffic_(problem.machine) {
  Graph forward = training.graph;
  forward.ops.resize(training.forward_ops);
  batch_ = find_batch(forward);
  backward_of_.resize(training.forward_ops);
  for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i)
    if (const OpId of = graph().ops[i].forward; of.valid() && !facts_.dropped[i])
      backward_of_[of.index()] = OpId(i);
  sort_kinds();
  find_rough();
}

// Ops that are alike, and stand alike to the op before and to the next one.
void SplitCosts::sort_kinds() {
  std::map<std::vector<uint64_t>, int32_t> known;
  std::vector<size_t> working;
  kind_of_.assign(training_.forward_ops, -1);
  for (size_t i = 0; i < training_.forward_ops; ++i)
    if (!op_info(graph().ops[i].kind).view) working.push_back(i);
  const auto root = [&](TensorId id) { return id.valid() ? facts_.roots[id.index()] : TensorId(); };
  // An output of one op and an input of a later one that are the same tensor, or a view of it.
  const auto joined = [&](size_t from, size_t to) {
    const Op &a = graph().ops[from], &b = graph().ops[to];
    for (size_t o = 0; o < a.outputs.size(); ++o)
      for (size_t k = 0; k < b.inputs.size(); ++k)
        if (a.outputs[o].valid() && root(b.inputs[k]) == a.outputs[o])
          return std::pair(static_cast<int32_t>(o), static_cast<int32_t>(k));
    return std::pair(-1, -1);
  };
  for (size_t w = 0; w < working.size(); ++w) {
    const size_t i = working[w];
    Kind kind = {i};
    if (w > 0) kind.in = joined(working[w - 1], i).second;
    if (kind.in >= 0) {
      const TensorId read = graph().ops[i].inputs[static_cast<size_t>(kind.in)];
      kind.viewed = root(read) != read;
    }
    if (w + 1 < working.size()) kind.out = joined(i, working[w + 1]).first;
    std::vector<uint64_t> look = {
        structure_hash(graph(), i, i + 1), static_cast<uint64_t>(kind.in + 1),
        static_cast<uint64_t>(kind.out + 1), static_cast<uint64_t>(batch_.loop[i] + 1)};
    look.push_back(kind.viewed ? 1 : 0);
    look.push_back(backward_of_[i].valid() ? 1 : 0);
    if (backward_of_[i].valid())
      for (TensorId id : graph()[backward_of_[i]].outputs) look.push_back(id.valid() ? 1 : 0);
    for (TensorId id : graph().ops[i].inputs)
      look.push_back(id.valid() && facts_.update_index[id.index()] >= 0 ? 1 : 0);
    const auto [entry, fresh] = known.try_emplace(look, static_cast<int32_t>(kinds_.size()));
    if (fresh) kinds_.push_back(kind);
    kind_of_[i] = entry->second;
  }
}

void SplitCosts::find_rough() {
  std::vector<PassPair> of_kinds;
  constexpr double kMuch = 1 << 20;
  for (const Kind& kind : kinds_) {
    PassPair pair;
    const LoopNest nest = loops_of(graph(), graph().ops[kind.op]);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    for (const OpId op : {OpId(kind.op), backward_of_[kind.op]}) {
      if (!op.valid()) continue;
      const Work work = work_of(graph(), graph()[op], nest, sizes);
      const auto least = [&](double factor) {
        return problem_.cost.least_time(scaled_work(work, factor), type_).value;
      };
      Rough& rough = op == OpId(kind.op) ? pair.forward : pair.backward;
      rough.fixed = least(0);
      rough.work = (least(2 * kMuch) - least(kMuch)) / kMuch;
      rough.tail = std::clamp(least(kMuch) - kMuch * rough.work, 0.0, rough.fixed);
    }
    of_kinds.push_back(pair);
  }
  rough_.resize(training_.forward_ops);
  for (size_t i = 0; i < training_.forward_ops; ++i)
    if (kind_of_[i] >= 0) rough_[i] = of_kinds[static_cast<size_t>(kind_of_[i])];
}

// The largest piece, which exchanges statistics where loops that couple are cut.
double SplitCosts::time_of(OpId id, const LoopNest& nest, const std::vector<int64_t>& parts,
                           const std::vector<int64_t>& local) {
  const Op& op = graph()[id];
  const auto price = [&](const Work& work) {
    if (work.kernels.empty()) return 0.0;
    return std::max(1e-9, problem_.cost.price(work, type_).time.value - kRoundedTime);
  };
  int64_t coupled = 1;
  for (size_t l = 0; l < parts.size(); ++l)
    if (couples(nest.loops[l])) coupled *= parts[l];
  if (coupled > 1) {
    std::vector<LoopPart> piece;
    for (int64_t size : local) piece.push_back({{0, size}});
    const OpPiece made = piece_of(signature_of(graph(), op), nest, piece);
    const TensorType statistics = exchange_of(made, op.pass, wanted_of(op)).type;
    const Bytes bytes = statistics.present() ? byte_size(statistics) : Bytes();
    if (bytes.value > 0) {
      const CoupledWork steps = coupled_work_of(graph(), op, nest, local, bytes);
      return price(steps.begin) + price(steps.end) + traffic_.all_reduce(coupled, bytes.value);
    }
  }
  return price(work_of(graph(), op, nest, local));
}

TensorShare SplitCosts::share_of(TensorId tensor, const OperandMap& map, const LoopNest& nest,
                                 const std::vector<int64_t>& parts,
                                 const std::vector<int64_t>& local) const {
  TensorShare share;
  const Shape& shape = graph()[tensor].type.shape;
  for (size_t a = 0; a < std::min(map.size(), shape.size()); ++a) {
    if (map[a].loop < 0 || shape[a] == 0) continue;
    const auto loop = static_cast<size_t>(map[a].loop);
    if (parts[loop] == 1) continue;
    const int64_t size = local[loop];
    const int64_t begin = std::min(size, nest.loops[loop].size - size);
    const int64_t run = shape[a] / map[a].blocks;
    const int64_t here = axis_range(map[a], {begin, begin + size}, run).size() * map[a].blocks;
    const double of_axis = static_cast<double>(here) / static_cast<double>(shape[a]);
    share.all *= of_axis;
    if (shape.size() <= share.axes.size()) share.axes[a] = of_axis;
    if (static_cast<int32_t>(a) != batch_.axis[tensor.index()]) {
      share.inner *= of_axis;
      continue;
    }
    // Samples are the outermost part of the axis.
    const int64_t samples = std::max<int64_t>(1, batch_.samples);
    const int64_t each = std::max<int64_t>(1, shape[a] / samples);
    const bool even = nest.loops[loop].size % parts[loop] == 0;
    if (each == 1 || (even && here % each == 0))
      share.samples *= of_axis;
    else if (even && each % here == 0)
      share.samples /= static_cast<double>(samples),
          share.inner *= static_cast<double>(here) / static_cast<double>(each);
    else
      share.samples *=
          std::min(1.0, static_cast<double>(here / each + 2) / static_cast<double>(samples));
  }
  return share;
}

// What a device that wants one part of a tensor and has another must get at least.
double SplitCosts::move(const TensorShare& from, const TensorShare& to, double bytes,
                        bool viewed) const {
  if (from.partial) return traffic_.receive(to.all * bytes);
  double there = std::min(
      {from.all, to.all, std::min(from.samples, to.samples) * std::min(from.inner, to.inner)});
  double of_axes = 1;
  for (size_t a = 0; a < from.axes.size(); ++a) of_axes *= std::min(from.axes[a], to.axes[a]);
  if (!viewed) there = std::min(there, of_axes);
  const double missing = to.all - there;
  constexpr double kNothing = 1e-9;
  return missing > kNothing ? traffic_.receive(missing * bytes) : 0;
}

OpCuts SplitCosts::make_cuts(const Kind& kind, int64_t devices, int64_t micro_batches) {
  const Op& op = graph().ops[kind.op];
  const LoopNest nest = loops_of(graph(), op);
  const OpId backward = backward_of_[kind.op];
  std::vector<int64_t> sizes;
  for (size_t l = 0; l < nest.loops.size(); ++l) {
    int64_t size = nest.loops[l].size;
    if (micro_batches > 1 && static_cast<int32_t>(l) == batch_.loop[kind.op])
      size = size / batch_.samples * (batch_.samples / micro_batches);
    sizes.push_back(std::max<int64_t>(1, size));
  }
  std::vector<std::vector<int64_t>> ways;
  std::vector<int64_t> begun;
  list_parts(nest, sizes, devices, begun, ways);
  OpCuts result;
  for (const std::vector<int64_t>& parts : ways) {
    std::vector<int64_t> local;
    for (size_t l = 0; l < sizes.size(); ++l) local.push_back((sizes[l] + parts[l] - 1) / parts[l]);
    CutCosts cut;
    cut.forward = time_of(OpId(kind.op), nest, parts, local);
    if (backward.valid()) cut.backward = time_of(backward, nest, parts, local);
    const auto lacks = [&](const OperandMap& map, size_t loop) { return !follows_loop(map, loop); };
    if (kind.in >= 0) {
      const auto k = static_cast<size_t>(kind.in);
      TensorShare in = share_of(op.inputs[k], nest.inputs[k], nest, parts, local);
      for (size_t l = 0; l < parts.size(); ++l)
        in.partial = in.partial || (parts[l] > 1 && lacks(nest.inputs[k], l) &&
                                    partial_gradient(op.kind, nest, k, l));
      cut.in = index_of(result.ins, in);
    }
    if (kind.out >= 0) {
      const auto o = static_cast<size_t>(kind.out);
      TensorShare out = share_of(op.outputs[o], nest.outputs[o], nest, parts, local);
      for (size_t l = 0; l < parts.size(); ++l)
        out.partial = out.partial || (parts[l] > 1 && lacks(nest.outputs[o], l) &&
                                      nest.loops[l].role == LoopRole::Reduced);
      cut.out = index_of(result.outs, out);
    }
    for (size_t k = 0; backward.valid() && k < op.inputs.size(); ++k) {
      if (!op.inputs[k].valid() || k >= graph()[backward].outputs.size() ||
          !graph()[backward].outputs[k].valid())
        continue;
      const int32_t update = facts_.update_index[op.inputs[k].index()];
      if (update < 0 || facts_.first_use[static_cast<size_t>(update)].first != OpId(kind.op))
        continue;
      int64_t terms = 1;
      for (size_t l = 0; l < parts.size(); ++l)
        if (parts[l] > 1 && lacks(nest.inputs[k], l) && partial_gradient(op.kind, nest, k, l))
          terms *= parts[l];
      const TensorShare held = share_of(op.inputs[k], nest.inputs[k], nest, parts, local);
      const double bytes =
          held.all * static_cast<double>(element_count(graph()[op.inputs[k]].type.shape)) *
          static_cast<double>(facts_.updates[static_cast<size_t>(update)].gradient_size);
      cut.reduce += bytes * traffic_.all_reduce_byte(terms);
    }
    result.cuts.push_back(cut);
  }
  if (result.ins.empty()) result.ins.emplace_back();
  if (result.outs.empty()) result.outs.emplace_back();
  return result;
}

const OpCuts& SplitCosts::cuts_of(size_t kind, int64_t devices, int64_t micro_batches) {
  const auto [entry, fresh] = cuts_.try_emplace({kind, devices, micro_batches});
  if (fresh) entry->second = make_cuts(kinds_[kind], devices, micro_batches);
  return entry->second;
}

const SplitCosts::Moves& SplitCosts::moves_between(OpId from, OpId to, int64_t devices,
                                                   int64_t micro_batches) {
  const int32_t a = kind_of_[from.index()], b = kind_of_[to.index()];
  const auto [entry, fresh] = moves_.try_emplace({a, b, devices, micro_batches});
  if (!fresh) return entry->second;
  const auto in = static_cast<size_t>(kinds_[static_cast<size_t>(b)].in);
  const bool viewed = kinds_[static_cast<size_t>(b)].viewed;
  const OpId backward = backward_of_[to.index()];
  const bool gradient = backward.valid() && backward_of_[from.index()].valid() &&
                        graph()[backward].outputs[in].valid();
  const double bytes = static_cast<double>(byte_size(graph()[graph()[to].inputs[in]].type).value) *
                       (micro_batches > 1 ? static_cast<double>(batch_.samples / micro_batches) /
                                                static_cast<double>(batch_.samples)
                                          : 1);
  for (const TensorShare& wants : cuts_of(static_cast<size_t>(b), devices, micro_batches).ins)
    for (const TensorShare& leaves : cuts_of(static_cast<size_t>(a), devices, micro_batches).outs) {
      entry->second.forward.push_back(move(leaves, wants, bytes, viewed));
      entry->second.backward.push_back(gradient ? move(wants, leaves, bytes, viewed) : 0);
    }
  return entry->second;
}

// The compute lane runs ops one after the other: where one reads what the last one made, it waits
// for what moves. A walk along the ops, with the part of the tensor that is handed on as its state.
double SplitCosts::least(int64_t devices, int64_t micro_batches, const Counts& counts) {
  OpId last;
  std::vector<double> left, wanted;  // by share that the op before leaves, that this one wants
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    if (kind_of_[i] < 0) continue;
    const OpCuts& cuts = cuts_of(static_cast<size_t>(kind_of_[i]), devices, micro_batches);
    wanted.assign(cuts.ins.size(), left.empty() ? 0 : *std::ranges::min_element(left));
    if (last.valid() && kinds_[static_cast<size_t>(kind_of_[i])].in >= 0) {
      const Moves& moves = moves_between(last, OpId(i), devices, micro_batches);
      size_t at = 0;
      for (double& least : wanted) {
        least = INFINITY;
        for (const double before : left) {
          least = std::min(least, before + counts.forward * moves.forward[at] +
                                      counts.backward * moves.backward[at]);
          ++at;
        }
      }
    }
    left.assign(cuts.outs.size(), INFINITY);
    for (const CutCosts& cut : cuts.cuts)
      left[cut.out] =
          std::min(left[cut.out], wanted[cut.in] + counts.forward * cut.forward +
                                      counts.backward * cut.backward + counts.reduce * cut.reduce);
    last = OpId(i);
  }
  return left.empty() ? 0 : *std::ranges::min_element(left);
}

std::vector<double> SplitCosts::each(int64_t devices, int64_t micro_batches) {
  std::vector<double> of_kinds;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    double least = INFINITY;
    for (const CutCosts& cut : cuts_of(kind, devices, micro_batches).cuts)
      least = std::min(least, cut.forward + cut.backward);
    of_kinds.push_back(least);
  }
  return of_ops(of_kinds);
}

std::vector<double> SplitCosts::of_samples(int64_t samples) {
  std::vector<double> of_kinds;
  for (const Kind& kind : kinds_) {
    double& sum = of_kinds.emplace_back(0);
    const int32_t batch = batch_.loop[kind.op];
    if (batch < 0) continue;
    const LoopNest nest = loops_of(graph(), graph().ops[kind.op]);
    std::vector<int64_t> local;
    for (const LoopDim& loop : nest.loops) local.push_back(loop.size);
    int64_t& rows = local[static_cast<size_t>(batch)];
    rows = rows / batch_.samples * samples;
    const std::vector<int64_t> whole(local.size(), 1);
    for (const OpId op : {OpId(kind.op), backward_of_[kind.op]})
      if (op.valid()) sum += time_of(op, nest, whole, local);
  }
  return of_ops(of_kinds);
}

std::vector<double> SplitCosts::of_ops(const std::vector<double>& of_kinds) const {
  std::vector<double> result(training_.forward_ops, 0);
  for (size_t i = 0; i < training_.forward_ops; ++i)
    if (kind_of_[i] >= 0) result[i] = of_kinds[static_cast<size_t>(kind_of_[i])];
  return result;
}

}  // namespace windlass
