// Attention and activations taken apart: what training them costs without a fused kernel.

#include <cmath>
#include <map>
#include <numbers>
#include <tuple>

#include "windlass/graph/fuse.h"
#include "windlass/graph/rewrite.h"

namespace windlass {
namespace {

using MaskKey = std::tuple<int64_t, int64_t, bool, int64_t, DType>;  // s, t, causal, window, dtype

// Zeros where query i may see key j, minus infinity elsewhere: [s, t], to be added to the scores.
TensorId position_mask(Rewriter& r, int64_t s, int64_t t, const AttentionAttrs& attrs, DType dtype,
                       const std::string& name) {
  std::vector<double> last(static_cast<size_t>(s)), first(static_cast<size_t>(s));
  std::vector<double> keys(static_cast<size_t>(t));
  for (int64_t i = 0; i < s; ++i) {
    const int64_t position = i + (t - s);
    last[static_cast<size_t>(i)] = static_cast<double>(attrs.causal ? position : t);
    first[static_cast<size_t>(i)] =
        static_cast<double>(attrs.window > 0 ? position - attrs.window : -1);
  }
  for (int64_t j = 0; j < t; ++j) keys[static_cast<size_t>(j)] = static_cast<double>(j);
  const TensorId j = r.constant(name + ".keys", {DType::I64, {1, t}}, keys);
  const TensorId upper = r.constant(name + ".last", {DType::I64, {s, 1}}, last);
  const TensorId lower = r.constant(name + ".first", {DType::I64, {s, 1}}, first);
  const TensorId before =
      r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::LessEqual}, {j, upper}, name + ".not_after");
  const TensorId after =
      r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::Greater}, {j, lower}, name + ".in_window");
  const TensorId shown =
      r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::And}, {before, after}, name + ".shown");
  const TensorId zero = r.constant(name + ".zero", {dtype, {}}, {0});
  const TensorId low = r.constant(name + ".low", {dtype, {}}, {-HUGE_VAL});
  return r.emit(OpKind::Where, NoAttrs{}, {shown, zero, low}, name);
}

MaskKey mask_key(const Rewriter& r, const Op& op) {
  const auto attrs = std::get<AttentionAttrs>(op.attrs);
  return {r.shape(op.inputs[0])[2], r.shape(op.inputs[1])[2], attrs.causal, attrs.window,
          r.tensor(op.inputs[0]).type.dtype};
}

// k or v with each head repeated for the queries that share it.
TensorId repeat_heads(Rewriter& r, TensorId x, int64_t heads, const std::string& name) {
  const Shape shape = r.shape(x);
  if (shape[1] == heads) return x;
  const int64_t times = heads / shape[1];
  const TensorId split =
      r.emit(OpKind::Reshape, ShapeAttrs{{shape[0], shape[1], 1, shape[2], shape[3]}}, {x},
             name + ".split");
  const TensorId wide =
      r.emit(OpKind::Expand, ShapeAttrs{{shape[0], shape[1], times, shape[2], shape[3]}}, {split},
             name + ".repeat");
  return r.emit(OpKind::Reshape, ShapeAttrs{{shape[0], heads, shape[2], shape[3]}}, {wide}, name);
}

}  // namespace

int unfuse_attention(Graph& graph) {
  Rewriter r(graph);
  const std::vector<Op> ops = graph.ops;
  // Masks first: they depend on no data, and inside of the first layer they would make it unlike
  // the others.
  std::map<MaskKey, TensorId> masks;
  for (const Op& op : ops) {
    if (op.kind != OpKind::Attention) continue;
    const auto attrs = std::get<AttentionAttrs>(op.attrs);
    if (!attrs.causal && attrs.window <= 0) continue;
    TensorId& mask = masks[mask_key(r, op)];
    if (mask.valid()) continue;
    const Shape q = r.shape(op.inputs[0]), k = r.shape(op.inputs[1]);
    mask = position_mask(r, q[2], k[2], attrs, r.tensor(op.inputs[0]).type.dtype, "attention_mask");
  }
  int count = 0;
  for (const Op& op : ops) {
    if (op.kind != OpKind::Attention) {
      r.keep(op);
      continue;
    }
    ++count;
    const auto attrs = std::get<AttentionAttrs>(op.attrs);
    const Shape q = r.shape(op.inputs[0]);
    const TensorId keys = repeat_heads(r, op.inputs[1], q[1], op.name + ".k");
    const TensorId values = repeat_heads(r, op.inputs[2], q[1], op.name + ".v");
    TensorId scores =
        r.emit(OpKind::MatMul, MatMulAttrs{false, true}, {op.inputs[0], keys}, op.name + ".scores");
    if (attrs.scale != 1)
      scores = r.emit(OpKind::Unary, UnaryAttrs{UnaryFn::Affine, attrs.scale, 0}, {scores},
                      op.name + ".scaled");
    const auto add = [&](TensorId mask) {
      scores =
          r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {scores, mask}, op.name + ".masked");
    };
    if (op.inputs.size() > 3 && op.inputs[3].valid()) add(op.inputs[3]);
    if (attrs.causal || attrs.window > 0) add(masks.at(mask_key(r, op)));
    TensorId p = r.emit(OpKind::Softmax, SoftmaxAttrs{3, false}, {scores}, op.name + ".softmax");
    if (attrs.dropout > 0)
      p = r.emit(OpKind::Dropout, DropoutAttrs{attrs.dropout}, {p}, op.name + ".dropout");
    r.replace(op, OpKind::MatMul, MatMulAttrs{}, {p, values});
  }
  r.finish();
  return count;
}

int unfuse_tanh_gelu(Graph& graph) {
  Rewriter r(graph);
  const std::vector<Op> ops = graph.ops;
  int count = 0;
  for (const Op& op : ops) {
    if (op.kind != OpKind::Unary || std::get<UnaryAttrs>(op.attrs).fn != UnaryFn::GeluTanh) {
      r.keep(op);
      continue;
    }
    ++count;
    const TensorId x = op.inputs[0];
    const auto unary = [&](UnaryFn fn, double alpha, double beta, TensorId of, const char* name) {
      return r.emit(OpKind::Unary, UnaryAttrs{fn, alpha, beta}, {of}, op.name + name);
    };
    const TensorId cube = unary(UnaryFn::Affine, 0.044715, 0,
                                unary(UnaryFn::Power, 3, 0, x, ".cube"), ".scaled_cube");
    const TensorId sum =
        r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {x, cube}, op.name + ".sum");
    const TensorId inner =
        unary(UnaryFn::Affine, std::sqrt(2 / std::numbers::pi), 0, sum, ".inner");
    const TensorId gate =
        unary(UnaryFn::Affine, 1, 1, unary(UnaryFn::Tanh, 0, 0, inner, ".tanh"), ".gate");
    const TensorId half = unary(UnaryFn::Affine, 0.5, 0, x, ".half");
    r.replace(op, OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {half, gate});
  }
  r.finish();
  return count;
}

int unfuse_rms_norms(Graph& graph) {
  Rewriter r(graph);
  const std::vector<Op> ops = graph.ops;
  int count = 0;
  for (const Op& op : ops) {
    if (op.kind != OpKind::RmsNorm) {
      r.keep(op);
      continue;
    }
    ++count;
    const auto attrs = std::get<LayerNormAttrs>(op.attrs);
    const DType dtype = r.tensor(op.inputs[0]).type.dtype;
    const auto unary = [&](UnaryFn fn, double alpha, double beta, TensorId x, const char* name) {
      return r.emit(OpKind::Unary, UnaryAttrs{fn, alpha, beta}, {x}, op.name + name);
    };
    const DType wide = element_bytes(dtype) < 4 ? DType::F32 : dtype;
    TensorId x = op.inputs[0];
    if (wide != dtype) x = r.emit(OpKind::Cast, CastAttrs{wide}, {x}, op.name + ".wide");
    Ints axes;
    for (auto axis = attrs.axis; axis < static_cast<int64_t>(r.shape(x).size()); ++axis)
      axes.push_back(axis);
    const TensorId mean = r.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, axes, true},
                                 {unary(UnaryFn::Square, 0, 0, x, ".square")}, op.name + ".mean");
    const TensorId root = unary(UnaryFn::Rsqrt, 0, 0,
                                unary(UnaryFn::Affine, 1, attrs.epsilon, mean, ".sum"), ".root");
    const bool scaled = op.inputs.size() > 1 && op.inputs[1].valid();
    if (!scaled && wide == dtype) {
      r.replace(op, OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, root});
      continue;
    }
    TensorId y = r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, root}, op.name + ".normed");
    if (!scaled) {
      r.replace(op, OpKind::Cast, CastAttrs{dtype}, {y});
      continue;
    }
    if (wide != dtype) y = r.emit(OpKind::Cast, CastAttrs{dtype}, {y}, op.name + ".narrow");
    TensorId scale = op.inputs[1];
    if (attrs.scale_offset != 0)
      scale = unary(UnaryFn::Affine, 1, attrs.scale_offset, scale, ".scale");
    r.replace(op, OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {y, scale});
  }
  r.finish();
  return count;
}

}  // namespace windlass
