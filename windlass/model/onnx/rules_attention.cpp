// Import rules: attention and rotary positions.

#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// ONNX Attention (opset 23): operands [b, heads, s, d], or [b, s, heads d] with head counts given.
void attention(NodeContext& c) {
  for (size_t i = 4; i < c.input_count(); ++i)
    if (c.has(i)) fail_unsupported("attention with past keys and values: export without a cache");
  for (size_t i = 1; i < c.output_count(); ++i)
    if (c.wants(i)) fail_unsupported("attention's keys, values or scores as outputs");
  if (c.float_attr("softcap", 0) != 0) fail_unsupported("attention with softcap");
  const bool flat = c.rank(0) == 3;
  if (!flat && c.rank(0) != 4)
    fail_input("query has shape {}, expected 3 or 4 dimensions", format_shape(c.shape(0)));
  const auto heads = [&](size_t i, const std::string& count) {
    if (!flat) return c.in(i);
    const Shape shape = c.shape(i);
    const int64_t n = c.int_attr(count, 0);
    if (n < 1 || shape.size() != 3 || shape[2] % n != 0)
      fail_input("input {} of shape {} does not divide into {} heads", i, format_shape(shape), n);
    const TensorId split =
        c.reshape(c.in(i), {shape[0], shape[1], n, shape[2] / n}, "split" + std::to_string(i));
    return c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {split},
                  "heads" + std::to_string(i));
  };
  const TensorId q = heads(0, "q_num_heads"), k = heads(1, "kv_num_heads"),
                 v = heads(2, "kv_num_heads");
  const auto depth = static_cast<double>(c.builder().shape(q).back());
  AttentionAttrs attrs{.scale = c.float_attr("scale", 1 / std::sqrt(depth)),
                       .causal = c.int_attr("is_causal", 0) != 0};
  TensorId mask = c.in(3);
  if (mask.valid() && c.type(3).dtype == DType::Bool) {
    const DType dtype = c.type(0).dtype;
    const TensorId zero = c.builder().scalar(0, dtype), low = c.builder().scalar(-HUGE_VAL, dtype);
    mask = c.emit(OpKind::Where, NoAttrs{}, {mask, zero, low}, "mask");
  }
  TensorId y = c.emit(OpKind::Attention, attrs, {q, k, v, mask}, flat ? "attention" : "");
  if (flat) {
    const Shape shape = c.builder().shape(y);
    y = c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, "merged");
    y = c.reshape(y, {shape[0], shape[2], checked_mul(shape[1], shape[3])});
  }
  c.out(0, y);
}

// ONNX RotaryEmbedding (opset 23) by its definition: pairs (x1, x2) of the first `dims` become
// (x1 cos - x2 sin, x1 sin + x2 cos), cosines and sines looked up by position.
void rotary_embedding(NodeContext& c) {
  const bool flat = c.rank(0) == 3;
  const Shape in = c.shape(0);
  TensorId x = c.in(0);
  if (flat) {
    const int64_t heads = c.int_attr("num_heads", 0);
    if (heads < 1 || in[2] % heads != 0)
      fail_input("input {} does not divide into {} heads", format_shape(in), heads);
    x = c.reshape(x, {in[0], in[1], heads, in[2] / heads}, "split");
    x = c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {x}, "heads");
  }
  const Shape shape = c.builder().shape(x);
  if (shape.size() != 4) fail_input("input has shape {}", format_shape(in));
  const int64_t given = c.int_attr("rotary_embedding_dim", 0);
  const int64_t dims = given > 0 ? given : shape[3];
  if (dims % 2 != 0 || dims > shape[3])
    fail_input("cannot rotate {} of {} dimensions", dims, shape[3]);
  const auto table = [&](size_t i, const std::string& part) {
    TensorId values = c.required(i);
    if (c.has(3)) values = c.emit(OpKind::Gather, AxisAttrs{0}, {values, c.in(3)}, part + ".rows");
    const Shape rows = c.builder().shape(values);
    if (rows.size() != 3 || rows[2] != dims / 2)
      fail_input("table {} has shape {}, expected [batch, sequence, {}]", i, format_shape(rows),
                 dims / 2);
    return c.reshape(values, {rows[0], 1, rows[1], rows[2]}, part);
  };
  const TensorId cosine = table(1, "cos"), sine = table(2, "sin");
  const auto part_of = [&](TensorId from, int64_t start, int64_t size, int64_t step,
                           const std::string& part) {
    SliceAttrs attrs{{0, 0, 0, start}, {1, 1, 1, step}, {shape[0], shape[1], shape[2], size}};
    return c.emit(OpKind::Slice, attrs, {from}, part);
  };
  const bool interleaved = c.int_attr("interleaved", 0) != 0;
  const int64_t half = dims / 2;
  const TensorId x1 = part_of(x, 0, half, interleaved ? 2 : 1, "x1");
  const TensorId x2 = part_of(x, interleaved ? 1 : half, half, interleaved ? 2 : 1, "x2");
  const auto product = [&](TensorId a, TensorId b, const std::string& part) {
    return c.binary(BinaryFn::Mul, a, b, part);
  };
  TensorId y1 =
      c.binary(BinaryFn::Sub, product(x1, cosine, "x1cos"), product(x2, sine, "x2sin"), "y1");
  TensorId y2 =
      c.binary(BinaryFn::Add, product(x1, sine, "x1sin"), product(x2, cosine, "x2cos"), "y2");
  TensorId y;
  if (interleaved) {
    const Shape column = {shape[0], shape[1], shape[2], half, 1};
    y = c.emit(OpKind::Concat, AxisAttrs{4},
               {c.reshape(y1, column, "column1"), c.reshape(y2, column, "column2")}, "pairs");
    y = c.reshape(y, {shape[0], shape[1], shape[2], dims}, "rotated");
  } else {
    y = c.emit(OpKind::Concat, AxisAttrs{3}, {y1, y2}, "rotated");
  }
  if (dims < shape[3])
    y = c.emit(OpKind::Concat, AxisAttrs{3}, {y, part_of(x, dims, shape[3] - dims, 1, "rest")},
               "joined");
  if (flat) {
    y = c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, "merged");
    y = c.reshape(y, in, "flat");
  }
  c.out(0, y);
}

}  // namespace

void add_attention_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Attention", attention},
      {"RotaryEmbedding", rotary_embedding},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
