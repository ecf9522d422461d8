// Import rules: convolution and pooling.

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

struct Window {
  Ints kernel, stride, dilation, begin, end;
};

// Strides, dilations and padding with ONNX's defaults; auto_pad resolved from the input size.
Window read_window(NodeContext& c, Ints kernel, bool transposed = false) {
  const size_t n = kernel.size();
  if (c.rank(0) != n + 2)
    fail_input("kernel {} does not fit input {}", format_shape(kernel), format_shape(c.shape(0)));
  Window w{kernel, c.ints_attr("strides", Ints(n, 1)), c.ints_attr("dilations", Ints(n, 1)),
           Ints(n), Ints(n)};
  const Ints pads = c.ints_attr("pads", Ints(2 * n));
  if (w.stride.size() != n || w.dilation.size() != n || pads.size() != 2 * n)
    fail_input("strides, dilations and pads need {0}, {0} and {1} entries", n, 2 * n);
  for (size_t i = 0; i < n; ++i) {
    if (w.stride[i] < 1 || w.dilation[i] < 1 || kernel[i] < 1)
      fail_input("kernel {}, strides {} and dilations {} must be positive", format_shape(kernel),
                 format_shape(w.stride), format_shape(w.dilation));
    w.begin[i] = pads[i];
    w.end[i] = pads[n + i];
  }
  const std::string auto_pad = c.string_attr("auto_pad", "NOTSET");
  if (auto_pad == "NOTSET" || auto_pad.empty()) return w;
  for (size_t i = 0; i < n; ++i) {
    int64_t total = 0;
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      const int64_t extent = checked_add(checked_mul(kernel[i] - 1, w.dilation[i]), 1);
      const int64_t size = c.shape(0)[i + 2];
      const int64_t last = checked_mul(ceil_div(size, w.stride[i]) - 1, w.stride[i]);
      total = std::max<int64_t>(
          0, transposed ? extent - w.stride[i] : checked_add(last, extent) - size);
    } else if (auto_pad != "VALID") {
      fail_input("auto_pad is \"{}\"", auto_pad);
    }
    w.begin[i] = auto_pad == "SAME_LOWER" ? total - total / 2 : total / 2;
    w.end[i] = total - w.begin[i];
  }
  return w;
}

Ints kernel_of_weight(NodeContext& c) {
  const Shape w = c.shape(1);
  if (w.size() < 3) fail_input("weight has shape {}, expected a kernel", format_shape(w));
  return Ints(w.begin() + 2, w.end());
}

void conv(NodeContext& c) {
  const Window w = read_window(c, kernel_of_weight(c));
  const ConvAttrs attrs{.stride = w.stride,
                        .dilation = w.dilation,
                        .pad_begin = w.begin,
                        .pad_end = w.end,
                        .output_padding = {},
                        .groups = c.int_attr("group", 1)};
  OnnxImporter& importer = c.importer();
  if (c.has(1) && c.has(2) && importer.restores_batch_norm(c.in(1), c.in(2))) {
    const TensorId bias = importer.restore_convolution_bias(c.in(2), c.name());
    const TensorId y = c.emit(OpKind::Conv, attrs, {c.in(0), c.in(1), bias}, "conv");
    c.out(0, importer.restore_batch_norm(y, c.in(2), c.name()));
    return;
  }
  c.out(0, c.emit(OpKind::Conv, attrs, {c.in(0), c.in(1), c.in(2)}));
}

void conv_transpose(NodeContext& c) {
  Window w = read_window(c, kernel_of_weight(c), true);
  const size_t n = w.kernel.size();
  Ints extra = c.ints_attr("output_padding", Ints(n));
  if (extra.size() != n) fail_input("output_padding needs {} entries", n);
  if (c.has_attr("output_shape")) {
    Ints size = c.ints_attr("output_shape", {});
    if (size.size() == n + 2) size.erase(size.begin(), size.begin() + 2);
    if (size.size() != n) fail_input("output_shape needs {} entries", n);
    for (size_t i = 0; i < n; ++i) {
      const int64_t span = checked_mul(w.stride[i], c.shape(0)[i + 2] - 1);
      const int64_t extent = checked_add(checked_mul(w.kernel[i] - 1, w.dilation[i]), 1);
      const int64_t total = checked_sub(checked_add(checked_add(span, extent), extra[i]), size[i]);
      w.begin[i] = total / 2;
      w.end[i] = total - total / 2;
    }
  }
  c.out(0, c.emit(OpKind::Conv,
                  ConvAttrs{.stride = w.stride,
                            .dilation = w.dilation,
                            .pad_begin = w.begin,
                            .pad_end = w.end,
                            .output_padding = extra,
                            .groups = c.int_attr("group", 1),
                            .transposed = true},
                  {c.in(0), c.in(1), c.in(2)}));
}

void pool(NodeContext& c, PoolFn fn) {
  const Window w = read_window(c, c.ints_attr("kernel_shape", {}));
  if (fn == PoolFn::Max && c.wants(1))
    fail_unsupported("the indices of max pooling as an output of the model");
  c.out(0,
        c.emit(OpKind::Pool,
               PoolAttrs{fn, w.kernel, w.stride, w.dilation, w.begin, w.end,
                         c.int_attr("ceil_mode", 0) != 0, c.int_attr("count_include_pad", 0) != 0},
               {c.in(0)}));
}
void max_pool(NodeContext& c) { pool(c, PoolFn::Max); }
void average_pool(NodeContext& c) { pool(c, PoolFn::Average); }

void reduce_to_one(NodeContext& c, ReduceFn fn) {
  Ints axes;
  for (size_t i = 2; i < c.rank(0); ++i) axes.push_back(static_cast<int64_t>(i));
  c.out(0, c.emit(OpKind::Reduce, ReduceAttrs{fn, axes, true}, {c.in(0)}));
}
void global_average_pool(NodeContext& c) { reduce_to_one(c, ReduceFn::Mean); }

// One window: of equal maxima the first has the gradient, as in PyTorch, and only its place is
// kept.
void global_max_pool(NodeContext& c) {
  const Shape shape = c.shape(0);
  constexpr size_t kMostAxes = 5;  // that windows slide over, batch and channels included
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (shape.size() < 3 || shape.size() > kMostAxes || empty || !is_float(c.type(0).dtype))
    return reduce_to_one(c, ReduceFn::Max);
  const Ints kernel(shape.begin() + 2, shape.end()), ones(kernel.size(), 1), none(kernel.size(), 0);
  c.out(0, c.emit(OpKind::Pool, PoolAttrs{PoolFn::Max, kernel, ones, ones, none, none}, {c.in(0)}));
}

}  // namespace

void add_window_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"AveragePool", average_pool},      {"Conv", conv},
      {"ConvTranspose", conv_transpose},  {"GlobalAveragePool", global_average_pool},
      {"GlobalMaxPool", global_max_pool}, {"MaxPool", max_pool},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
