// Templates: an op and its backward op under a sharding.

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "windlass/base/hash.h"
#include "windlass/graph/coupled.h"
#include "windlass/task/lower.h"
#include "windlass/task/tables.h"

namespace windlass {
namespace {

LoopBlocks loop_blocks(const LoopNest& nest, const Sharding& sharding) {
  LoopBlocks blocks(nest.loops.size(), 1);
  for (const Split& split : sharding.splits)
    if (split.loop >= 0) blocks[static_cast<size_t>(split.loop)] = split.blocks;
  return blocks;
}

// The tensors are of the same types, and the same ones are there.
bool types_alike(const Graph& graph, const std::vector<TensorId>& a,
                 const std::vector<TensorId>& b) {
  return std::ranges::equal(a, b, [&](TensorId x, TensorId y) {
    return x.valid() == y.valid() && (!x.valid() || graph[x].type == graph[y].type);
  });
}

bool ops_alike(const Graph& graph, const Op& a, const Op& b) {
  return a.kind == b.kind && a.attrs == b.attrs && a.saved == b.saved &&
         types_alike(graph, a.inputs, b.inputs) && types_alike(graph, a.outputs, b.outputs) &&
         types_alike(graph, a.auxiliaries, b.auxiliaries);
}

}  // namespace

bool Tables::alike(OpId a, OpId b) const {
  const Graph& graph = training_.graph;
  const OpId back_a = backward_of_[a.index()], back_b = backward_of_[b.index()];
  if (!ops_alike(graph, graph[a], graph[b]) || back_a.valid() != back_b.valid()) return false;
  const auto saved_alike = [&](TensorId x, TensorId y) {
    return !x.valid() ||
           (facts_.saved_index[x.index()] >= 0) == (facts_.saved_index[y.index()] >= 0);
  };
  const auto terms_alike = [&](TensorId x, TensorId y) {
    return !x.valid() || (facts_.term_of[x.index()] >= 0) == (facts_.term_of[y.index()] >= 0);
  };
  if (!std::ranges::equal(graph[a].outputs, graph[b].outputs, saved_alike) ||
      !std::ranges::equal(graph[a].auxiliaries, graph[b].auxiliaries, saved_alike))
    return false;
  return !back_a.valid() ||
         (ops_alike(graph, graph[back_a], graph[back_b]) &&
          std::ranges::equal(graph[back_a].outputs, graph[back_b].outputs, terms_alike));
}

void Tables::find_models() {
  const Graph& graph = training_.graph;
  // Loops may be given by op, and sizes of another micro-batch may differ where these do not.
  if (graph.loops != nullptr || training_.unequal) {
    for (size_t i = 0; i < training_.forward_ops; ++i) model_.emplace_back(i);
    return;
  }
  std::unordered_map<uint64_t, std::vector<OpId>> models;
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = graph.ops[i];
    Hasher hasher;
    hasher.add(static_cast<uint64_t>(op.kind)).add(hash_attrs(op.attrs));
    for (TensorId id : op.inputs)
      if (id.valid())
        for (int64_t size : graph[id].type.shape) hasher.add(size);
    std::vector<OpId>& list = models[hasher.result()];
    const auto known =
        std::ranges::find_if(list, [&](OpId other) { return alike(other, OpId(i)); });
    model_.push_back(known != list.end() ? *known : OpId(i));
    if (known == list.end()) list.emplace_back(i);
  }
}

const OpTemplate& Tables::find_op(OpId op, int32_t sharding, int32_t group) {
  for (const Made& known : op_index_[at(op)]) {
    if (known.sharding != sharding || known.group != group) continue;
    latest_[at(op)] = known;
    return *known.made;
  }
  return make_op(op, sharding, group);
}

const OpTemplate& Tables::make_op(OpId op, int32_t sharding, int32_t group) {
  const OpId model = model_[op.index()];
  const auto fresh = [&] {
    templates_.push_back(
        make(sized_->graph[op], shardings_[static_cast<size_t>(sharding)], group, 0));
    return &templates_.back();
  };
  const OpTemplate* made = model == op ? fresh() : &this->op(model, sharding, group);
  op_index_[at(op)].push_back({sharding, group, made});
  return *made;
}

const OpTemplate& Tables::op_of_member(OpId op, int32_t sharding, int32_t group, int32_t member) {
  const Sharding& how = shardings_[static_cast<size_t>(sharding)];
  if (member == 0 || !windlass::unequal(how)) return this->op(op, sharding, group);
  const auto [entry, fresh] = member_templates_.try_emplace({at(op), sharding, group, member});
  if (fresh) entry->second = make(sized_->graph[op], how, group, member);
  return entry->second;
}

OperandTemplate Tables::operand(const LoopNest& nest, const Sharding& sharding,
                                const OperandMap& map, const TensorType& type, Access access) {
  if (!type.present()) return {};
  const Layout layout = layout_of(nest, sharding, map, type.shape, access);
  return {intern(layout), largest_elements(layout, type.shape)};
}

OpTemplate Tables::make(const Op& op, const Sharding& sharding, int32_t group, int32_t member) {
  const Graph& graph = sized_->graph;
  const LoopNest nest = loops_of(graph, op);
  check_sharding(op, nest, sharding, this->group(group).size());
  OpTemplate result;
  result.input_count = static_cast<uint16_t>(op.inputs.size());
  result.output_count = static_cast<uint16_t>(op.outputs.size());
  result.auxiliary_count = static_cast<uint16_t>(op.auxiliaries.size());
  const auto add = [&](const std::vector<TensorId>& ids, const std::vector<OperandMap>& maps,
                       Access access) {
    for (size_t i = 0; i < ids.size(); ++i)
      result.operands.push_back(operand(nest, sharding, maps[i], graph.type_of(ids[i]), access));
  };
  add(op.inputs, nest.inputs, Access::Read);
  add(op.outputs, nest.outputs, Access::Result);
  add(op.auxiliaries, nest.auxiliaries, Access::Result);
  add(op.outputs, nest.outputs, Access::ReadGradient);
  for (size_t i = 0; i < op.inputs.size(); ++i)
    result.operands.push_back(operand(nest, sharding, nest.inputs[i], graph.type_of(op.inputs[i]),
                                      gradient_access(op.kind, i)));
  list_operands(op, group, result);
  const bool view = op_info(op.kind).view;
  if (!view) result.work = price(op, nest, sharding, group, member, result.exchange);
  const OpId self(static_cast<size_t>(&op - graph.ops.data()));
  const OpId backward = backward_of_[self.index()];
  if (backward.valid()) list_backward(graph[backward], group, result);
  if (backward.valid() && !view)
    result.backward_work =
        price(graph[backward], nest, sharding, group, member, result.backward_exchange);
  size_t place = 0;
  for (ReadTemplate& read : result.all_reads) read.place = static_cast<int32_t>(place++);
  for (ResultTemplate& made : result.all_results) made.place = static_cast<int32_t>(place++);
  return result;
}

void Tables::list_tensors() {
  const auto add = [&](const std::vector<TensorId>& ids) {
    std::ranges::copy_if(ids, std::back_inserter(tensors_), &TensorId::valid);
  };
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    first_tensor_.push_back(static_cast<uint32_t>(tensors_.size()));
    const Op& op = training_.graph.ops[i];
    const OpId id = backward_of_[i];
    const Op* backward = id.valid() ? &training_.graph[id] : nullptr;
    add(op.inputs);
    if (backward != nullptr) add(backward->inputs);
    add(op.outputs);
    add(op.auxiliaries);
    if (backward != nullptr) add(backward->outputs);
  }
}

ResultTemplate Tables::result(TensorId tensor, const OperandTemplate& operand,
                              int32_t group) const {
  ResultTemplate made;
  made.buffer.bytes = allocated(operand.elements * facts_.element_size[tensor.index()]);
  made.buffer.group = group;
  made.buffer.layout = operand.layout;
  made.elements = operand.elements;
  return made;
}

void Tables::list_operands(const Op& op, int32_t group, OpTemplate& made) const {
  std::vector<bool> written(op.inputs.size(), false);
  if (const auto& writes = op_info(op.kind).writes)
    for (int32_t input : writes(signature_of(sized_->graph, op)))
      written[static_cast<size_t>(input)] = true;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].valid())
      made.all_reads.push_back({{}, static_cast<int32_t>(i), written[i], made.inputs()[i]});
  made.read_count = made.all_reads.size();
  const auto results = [&](const std::vector<TensorId>& ids, const OperandTemplate* operands,
                           UseKind kind) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ids[i].valid()) continue;
      ResultTemplate& added = made.all_results.emplace_back(result(ids[i], operands[i], group));
      added.kind = kind;
      added.index = static_cast<int32_t>(i);
      const bool saved = facts_.saved_index[ids[i].index()] >= 0;
      added.buffer.kind = saved ? BufferKind::Activation : BufferKind::Transient;
    }
  };
  results(op.outputs, made.outputs(), UseKind::Output);
  results(op.auxiliaries, made.auxiliaries(), UseKind::Auxiliary);
  made.result_count = made.all_results.size();
}

void Tables::list_backward(const Op& backward, int32_t group, OpTemplate& made) {
  const size_t gradients = backward.inputs.size() - backward.saved.size();
  for (size_t i = 0; i < gradients; ++i)
    if (backward.inputs[i].valid())
      made.all_reads.push_back({{}, static_cast<int32_t>(i), false, made.output_gradients()[i]});
  made.gradient_read_count = made.all_reads.size() - made.read_count;
  for (size_t i = 0; i < backward.saved.size(); ++i) {
    if (!backward.inputs[gradients + i].valid()) continue;
    // Partial results are of use when they are combined; what a piece keeps for itself is its own.
    OperandTemplate want = made.saved(backward.saved[i]);
    if (backward.saved[i].source == SavedRef::Source::Output) want.layout = settled(want.layout);
    made.all_reads.push_back({{}, static_cast<int32_t>(gradients + i), false, want});
  }
  for (size_t i = 0; i < backward.outputs.size(); ++i) {
    const TensorId tensor = backward.outputs[i];
    if (!tensor.valid()) continue;
    ResultTemplate& added =
        made.all_results.emplace_back(result(tensor, made.input_gradients()[i], group));
    added.index = static_cast<int32_t>(i);
    added.term = facts_.term_of[tensor.index()] >= 0;
    added.buffer.kind = added.term ? BufferKind::WeightGradient : BufferKind::Transient;
  }
}

// Work of an op of either pass, and what its pieces exchange before it ends.
int32_t Tables::price(const Op& op, const LoopNest& nest, const Sharding& sharding, int32_t group,
                      int32_t member, ExchangeTemplate& exchange) {
  const Graph& graph = sized_->graph;
  const LocalSizes local = local_sizes(nest, sharding, member);
  std::vector<MemberDigit> digits;
  int64_t place = size_of(sharding);
  for (const Split& split : sharding.splits) {
    place /= split.parts;
    if (split.loop >= 0 && split.parts > 1 && couples(nest.loops[static_cast<size_t>(split.loop)]))
      digits.push_back({place, split.parts});
  }
  const LoopBlocks blocks = loop_blocks(nest, sharding);
  if (digits.empty()) return work(work_of(graph, op, nest, local, blocks));
  const auto statistics = [&](int64_t m) {
    const OpPiece piece = piece_of(signature_of(graph, op), nest, loop_parts(nest, sharding, m));
    const TensorType type = exchange_of(piece, op.pass, wanted_of(op)).type;
    return type.present() ? byte_size(type) : Bytes();
  };
  // Of all members with equal parts the first has most of every loop.
  Bytes bytes = statistics(0), most = bytes;
  if (windlass::unequal(sharding)) {
    const std::vector<int32_t> own = sizes_of(sharding, member);
    bytes = {};
    for (int64_t m = 0; m < size_of(sharding); ++m) {
      const Bytes here = statistics(m);
      most = std::max(most, here);
      if (sizes_of(sharding, m) == own) bytes = std::max(bytes, here);
    }
  }
  if (most.value == 0) return work(work_of(graph, op, nest, local, blocks));
  const CoupledWork steps = coupled_work_of(graph, op, nest, local, bytes, blocks);
  std::ranges::sort(digits);
  exchange = {.begin = work(steps.begin),
              .traffic = collective(Collective::AllReduce, group, digits, most),
              .movement = this->exchange(Collective::AllReduce, group, intern_digits(digits)),
              .bytes = bytes};
  return work(steps.end);
}

}  // namespace windlass
