#include "windlass/runtime/kernels/piece_kernels.h"

#include <algorithm>
#include <map>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "windlass/graph/reference/region.h"

namespace windlass {
namespace {

std::vector<const Array*> arrays_of(const auto& locals) {
  std::vector<const Array*> arrays;
  for (const auto& local : locals)
    arrays.push_back(local.tensor.defined() ? &local.array : nullptr);
  return arrays;
}

Tensors tensors_of(const auto& locals) {
  Tensors tensors;
  for (const auto& local : locals) tensors.push_back(local.tensor);
  return tensors;
}

at::Tensor merged(const Exchange& exchange, const Tensors& members) {
  at::Tensor result = at::empty(exchange.type.shape, scalar_type(exchange.type.dtype));
  std::vector<const float*> values;
  for (const at::Tensor& member : members) values.push_back(member.data_ptr<float>());
  merge_statistics(exchange, values, result.data_ptr<float>());
  return result;
}

}  // namespace

PieceKernels::PieceKernels(const reference::Subject& subject,
                           const std::vector<reference::Cut>& cuts, DType dtype)
    : s_(subject),
      cuts_(cuts),
      members_(reference::cut_pieces(subject.signature, subject.nest, cuts)),
      dtype_(dtype) {}

PieceKernels::Local PieceKernels::cut(const Array& whole, const TensorType& type,
                                      const Region& region) {
  if (!type.present()) return {};
  Local local;
  local.tensor = to_tensor(take_region(whole, region), type.dtype);
  local.array = to_array(local.tensor);
  return local;
}

void PieceKernels::count_labels(Rng& rng) {
  if (s_.c.kind != OpKind::CrossEntropy) return;
  const auto& attrs = std::get<CrossEntropyAttrs>(s_.c.attrs);
  const double count = rng.chance(0.7) ? counted_labels(attrs, s_.c.inputs[1].array) : -1;
  for (reference::CutPiece& member : members_) member.piece.facts.mean_count = count;
}

PieceKernels::Statistics PieceKernels::exchange(Pass pass, const std::vector<bool>& wanted,
                                                const std::function<Local(size_t)>& begin) const {
  if (!exchange_of(members_[0].piece, pass, wanted).needed()) return {};
  std::map<std::vector<size_t>, Statistics> groups;
  std::vector<std::vector<size_t>> keys(members_.size());
  for (size_t m = 0; m < members_.size(); ++m) {
    for (size_t c = 0; c < cuts_.size(); ++c)
      if (!couples(s_.nest.loops[cuts_[c].loop])) keys[m].push_back(members_[m].index[c]);
    Local made = begin(m);
    expect_close(made.tensor, made.array, dtype_, fmt::format("statistics of member {}", m));
    groups[keys[m]].arrays.push_back(std::move(made.array));
    groups[keys[m]].tensors.push_back(std::move(made.tensor));
  }
  Statistics all;
  for (size_t m = 0; m < members_.size(); ++m) {
    const Exchange found = exchange_of(members_[m].piece, pass, wanted);
    all.arrays.push_back(merge_statistics(found, groups[keys[m]].arrays));
    all.tensors.push_back(merged(found, groups[keys[m]].tensors));
  }
  return all;
}

void PieceKernels::check_forward(Rng& rng) {
  const at::AutoDispatchBelowAutograd guard;
  count_labels(rng);
  Op op;
  op.kind = s_.c.kind;
  op.outputs.resize(s_.signature.outputs.size());
  op.auxiliaries.resize(s_.signature.auxiliaries.size());
  std::vector<std::vector<Local>> inputs(members_.size());
  for (size_t m = 0; m < members_.size(); ++m)
    for (size_t i = 0; i < s_.c.inputs.size(); ++i)
      inputs[m].push_back(
          cut(s_.c.inputs[i].array, s_.signature.inputs[i], members_[m].piece.input_regions[i]));
  const RandomKey random = {s_.c.random.seed, s_.c.random.op};
  const Statistics statistics = exchange(Pass::Forward, {}, [&](size_t m) {
    const OpPiece& piece = members_[m].piece;
    Local made;
    made.array =
        interpret_statistics(piece.signature(), arrays_of(inputs[m]), s_.c.random, piece.facts);
    begin_piece(op, piece, tensors_of(inputs[m]), random, made.tensor);
    return made;
  });
  for (size_t m = 0; m < members_.size(); ++m)
    check_member_forward(m, op, inputs[m], statistics, rng.chance(0.3));
}

void PieceKernels::check_member_forward(size_t m, const Op& op, const std::vector<Local>& inputs,
                                        const Statistics& statistics, bool again) const {
  const OpPiece& piece = members_[m].piece;
  const std::vector<const Array*> arrays = arrays_of(inputs);
  const Tensors tensors = tensors_of(inputs);
  ForwardResult expected =
      interpret_forward(piece.signature(), arrays, s_.c.random, piece.facts,
                        statistics.exchanged() ? &statistics.arrays[m] : nullptr);
  const std::vector<Array> written =
      interpret_writes(piece.signature(), arrays, expected, piece.facts);
  // Kernels keep what they divided by, the interpreter what it counted.
  if (s_.c.kind == OpKind::CrossEntropy && piece.facts.mean_count >= 0)
    expected.auxiliaries[1].values[0] = piece.facts.mean_count;
  Results results;
  for (const TensorType& type : piece.outputs) results.emplace_back(type);
  for (const TensorType& type : piece.auxiliaries) results.emplace_back(type);
  run_piece(op, piece, tensors, results, {s_.c.random.seed, s_.c.random.op}, again,
            statistics.exchanged() ? &statistics.tensors[m] : nullptr);
  Tensors made;
  for (const Result& result : results) made.push_back(result.tensor());
  expect_fresh(made, tensors);
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t outputs = expected.outputs.size();
    expect_close(made[i], i < outputs ? expected.outputs[i] : expected.auxiliaries[i - outputs],
                 dtype_, fmt::format("result {} of member {}", i, m));
  }
  const OpInfo& info = op_info(s_.c.kind);
  std::vector<Array> after;
  for (const Local& input : inputs) after.push_back(input.array);
  if (info.writes != nullptr && !again)
    for (size_t w = 0; w < written.size(); ++w)
      after[static_cast<size_t>(info.writes(s_.signature)[w])] = written[w];
  for (size_t i = 0; i < inputs.size(); ++i)
    if (tensors[i].defined())
      expect_close(tensors[i], after[i], dtype_, fmt::format("input {} of member {}", i, m));
}

const Array& PieceKernels::saved_array(const SavedRef& ref) const {
  const auto index = static_cast<size_t>(ref.index);
  return ref.source == SavedRef::Source::Input    ? s_.c.inputs[index].array
         : ref.source == SavedRef::Source::Output ? s_.whole.outputs[index]
                                                  : s_.whole.auxiliaries[index];
}

void PieceKernels::check_backward(Rng& rng) {
  const OpInfo& info = op_info(s_.c.kind);
  if (info.gradient == nullptr) return;
  const at::AutoDispatchBelowAutograd guard;
  std::vector<bool> wanted;
  for (const reference::Operand& input : s_.c.inputs) wanted.push_back(is_float(input.dtype));
  GradientRule rule = info.gradient(s_.signature, wanted);
  const bool everything = rng.chance(0.5);
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i] =
        wanted[i] && rule.inputs[i] == GradientSource::Computed && (everything || rng.chance(0.6));
  if (std::ranges::find(wanted, true) == wanted.end()) return;
  rule = info.gradient(s_.signature, wanted);

  Op op;
  op.kind = s_.c.kind;
  op.pass = Pass::Backward;
  op.forward = OpId(0);
  op.saved = rule.saved;
  op.inputs.resize(s_.signature.outputs.size() + rule.saved.size());
  for (const bool wish : wanted) op.outputs.push_back(wish ? TensorId(0) : TensorId());

  std::vector<Array> arriving;
  bool any = false;
  for (const TensorType& type : s_.signature.outputs) {
    arriving.emplace_back();
    if (!is_float(type.dtype) || (any && rng.chance(0.3))) continue;
    any = true;
    arriving.back() = Array(type.shape);
    for (double& value : arriving.back().values) value = rng.uniform(-1, 1);
  }
  std::vector<std::vector<Local>> gradients(members_.size()), saved(members_.size());
  for (size_t m = 0; m < members_.size(); ++m) {
    const OpPiece& piece = members_[m].piece;
    for (size_t o = 0; o < arriving.size(); ++o)
      gradients[m].push_back(arriving[o].values.empty()
                                 ? Local{}
                                 : cut(arriving[o], piece.outputs[o], piece.output_regions[o]));
    for (const SavedRef& ref : rule.saved) {
      const auto index = static_cast<size_t>(ref.index);
      const bool input = ref.source == SavedRef::Source::Input;
      const bool output = ref.source == SavedRef::Source::Output;
      saved[m].push_back(cut(saved_array(ref),
                             input    ? piece.inputs[index]
                             : output ? piece.outputs[index]
                                      : piece.auxiliaries[index],
                             input    ? piece.input_regions[index]
                             : output ? piece.output_regions[index]
                                      : piece.auxiliary_regions[index]));
    }
  }
  const RandomKey random = {s_.c.random.seed, s_.c.random.op};
  const auto operands = [&](size_t m) {
    Tensors all = tensors_of(gradients[m]);
    for (const Local& local : saved[m]) all.push_back(local.tensor);
    return all;
  };
  const Statistics statistics = exchange(Pass::Backward, wanted, [&](size_t m) {
    const OpPiece& piece = members_[m].piece;
    Local made;
    made.array =
        interpret_gradient_statistics(piece.signature(), rule, wanted, arrays_of(gradients[m]),
                                      arrays_of(saved[m]), s_.c.random, piece.facts);
    begin_piece(op, piece, operands(m), random, made.tensor);
    return made;
  });
  std::vector<std::vector<Array>> all;
  std::vector<double> largest(wanted.size(), 0);
  for (size_t m = 0; m < members_.size(); ++m) {
    const OpPiece& piece = members_[m].piece;
    all.push_back(interpret_backward(piece.signature(), rule, wanted, arrays_of(gradients[m]),
                                     arrays_of(saved[m]), s_.c.random, piece.facts,
                                     statistics.exchanged() ? &statistics.arrays[m] : nullptr));
    for (size_t i = 0; i < wanted.size(); ++i)
      largest[i] = std::max(largest[i], largest_magnitude(all[m][i]));
  }
  for (size_t m = 0; m < members_.size(); ++m) {
    const OpPiece& piece = members_[m].piece;
    const std::vector<Array>& expected = all[m];
    for (const bool adds : {false, true}) {
      Results results;
      std::vector<Array> sums = expected;
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (!wanted[i]) {
          results.emplace_back();
        } else if (!adds) {
          results.emplace_back(piece.inputs[i]);
        } else {
          Array start(piece.inputs[i].shape);
          for (double& value : start.values) value = rng.uniform(-1, 1);
          results.emplace_back(piece.inputs[i], to_tensor(start, piece.inputs[i].dtype));
          const Array rounded_start = to_array(results.back().sum());
          for (size_t e = 0; e < start.values.size(); ++e)
            sums[i].values[e] += rounded_start.values[e];
        }
      }
      const Tensors inputs = operands(m);
      run_piece(op, piece, inputs, results, random, false,
                statistics.exchanged() ? &statistics.tensors[m] : nullptr);
      Tensors made;
      for (size_t i = 0; i < wanted.size(); ++i) {
        made.push_back(results[i].tensor());
        if (wanted[i])
          expect_close(made[i], sums[i], dtype_,
                       fmt::format("{} {} of member {}", adds ? "sum" : "gradient", i, m),
                       largest[i]);
      }
      expect_fresh(made, inputs);
    }
  }
}

}  // namespace windlass
