// Products of training. Forward is [m, k] x [k, n]; the gradient of the first input is the product
// [m, n] x [n, k], that of the second [k, m] x [m, n]. A convolution is the product its implicit
// GEMM carries out; channels of a group are a product each.

#include <algorithm>

#include "windlass/cost/piece.h"

namespace windlass {
namespace {

struct Product {
  int64_t batch = 1, m = 1, n = 1, k = 1;
};

bool has_loop(const OperandMap& map, int32_t loop) {
  return std::any_of(map.begin(), map.end(),
                     [&](const AxisMap& axis) { return axis.loop == loop; });
}

// Loops of both inputs and the output are batches, of the first input and the output rows, of the
// second input and the output columns, of both inputs only the inner size.
Product product_of_loops(const Piece& piece) {
  const LoopNest& nest = piece.nest();
  Product p;
  for (size_t i = 0; i < nest.loops.size(); ++i) {
    const auto loop = static_cast<int32_t>(i);
    const bool first = has_loop(nest.inputs[0], loop);
    const bool second = has_loop(nest.inputs[1], loop);
    const bool result = has_loop(nest.outputs[0], loop);
    if (first && second) {
      (result ? p.batch : p.k) *= piece.local(i);
    } else if (first) {
      p.m *= piece.local(i);
    } else {
      p.n *= piece.local(i);
    }
  }
  return p;
}

// Local experts, each with an even share of the rows.
Product grouped_product(const Piece& piece) {
  const int64_t experts = std::max<int64_t>(1, piece.nest().loops[3].size);
  const int64_t rows = piece.local(0) * piece.signature().shape(2)[1];
  return {piece.local(3), std::max<int64_t>(1, rows / experts), piece.local(1), piece.local(2)};
}

// Local experts with the rows that are in their slots, even shares of all.
Product slot_product(const Piece& piece) {
  const Signature& s = piece.signature();
  const int64_t slots = s.shape(0)[1] / std::max<int64_t>(1, s.shape(2)[1]) * piece.local(1);
  const auto rows =
      static_cast<int64_t>(static_cast<double>(slots) * s.as<SlotLinearAttrs>().filled);
  return {piece.local(0), std::max<int64_t>(1, rows), piece.local(2), piece.local(3)};
}

struct Convolution {
  Product product;  // the forward one
  int64_t samples = 1;
  int64_t kernel = 1;       // places of the window
  int64_t narrowest = 1;    // side of the window
  int64_t in = 1, out = 1;  // channels of a group
  bool transposed = false;
};

Convolution convolution_of(const Piece& piece) {
  const Signature& s = piece.signature();
  const auto& attrs = s.as<ConvAttrs>();
  const Shape weight = piece.local_shape(piece.nest().inputs[1], s.shape(1));
  Convolution c;
  c.transposed = attrs.transposed;
  c.samples = piece.local(0);
  for (size_t i = 2; i < weight.size(); ++i) {
    c.kernel *= weight[i];
    c.narrowest = i == 2 ? weight[i] : std::min(c.narrowest, weight[i]);
  }
  const int64_t groups = attrs.groups > 1 ? piece.local(1) : 1;
  c.in = attrs.transposed ? weight[0] / std::max<int64_t>(1, groups) : weight[1];
  c.out = attrs.transposed ? weight[1] : weight[0] / std::max<int64_t>(1, groups);
  int64_t points = piece.local(0);
  for (size_t i = attrs.groups > 1 ? 2 : 3; i < piece.nest().loops.size(); ++i)
    points *= piece.local(i);
  c.product = {groups, points, c.out * (c.transposed ? c.kernel : 1),
               c.in * (c.transposed ? 1 : c.kernel)};
  return c;
}

// Narrower convolutions do not win by it.
constexpr int64_t kWinogradChannels = 16;

bool suits_winograd(const Signature& s, const Convolution& c) {
  const auto& attrs = s.as<ConvAttrs>();
  const Shape& w = s.shape(1);
  const auto ones = [](const Ints& list) {
    return std::all_of(list.begin(), list.end(), [](int64_t value) { return value == 1; });
  };
  return w.size() == 4 && w[2] == 3 && w[3] == 3 && attrs.groups == 1 && !attrs.transposed &&
         ones(attrs.stride) && ones(attrs.dilation) && c.in >= kWinogradChannels &&
         c.out >= kWinogradChannels;
}

// What ATen's convolutions hold beside operands on a CPU. oneDNN has channels in blocks: weights
// and input are copied to that, and the output is copied back once these are gone; of the backward
// pass weights are copied alone. Windows of one element are products as they lie, and a single
// small sample is unfolded.
Bytes blocked_copies(const Piece& piece, const Convolution& c) {
  constexpr int64_t kLargeSample = 20480, kLargeWindow = 3;
  const auto& attrs = piece.signature().as<ConvAttrs>();
  const bool steps = std::any_of(attrs.stride.begin(), attrs.stride.end(),
                                 [](int64_t stride) { return stride > 1; });
  if (c.kernel == 1 && !steps) return {};
  const Bytes x = piece.input(0), w = piece.input(1);
  const int64_t element = element_bytes(piece.signature().inputs[0].dtype);
  if (c.samples == 1 && attrs.groups == 1 && c.narrowest <= kLargeWindow &&
      x.value <= kLargeSample * element)
    return Bytes(c.product.m * (c.transposed ? c.product.n : c.product.k) * element);
  if (!piece.backward()) return std::max(w + x, piece.outputs());
  return std::max(w, x + piece.output_gradient(0));
}

class Builder {
 public:
  Builder(const Piece& piece, Work& work) : piece_(piece), work_(work) {
    base_.family = op_info(piece.signature().kind).family;
    base_.precision = precision_of(piece.signature().inputs[0].dtype);
  }

  Builder(const Piece& piece, const Convolution& c, Work& work) : Builder(piece, work) {
    base_.blocked = blocked_copies(piece, c);
    base_.grouped = piece.signature().as<ConvAttrs>().groups > 1;
    base_.winograd = suits_winograd(piece.signature(), c);
  }

  void add(const Product& p, double multiply_adds, Bytes read, Bytes written,
           double pointwise = 0) {
    Kernel kernel = base_;
    kernel.batch = p.batch;
    kernel.m = p.m;
    kernel.n = p.n;
    kernel.k = p.k;
    kernel.multiply_adds = multiply_adds;
    kernel.pointwise = pointwise;
    kernel.read = read;
    kernel.written = written;
    work_.kernels.push_back(kernel);
  }

  // A bias is added where the product is written; its gradient is a sum of its own.
  void add_bias_gradient(double pointwise) {
    if (!piece_.wants(2)) return;
    Kernel kernel;
    kernel.family = OpFamily::Reduction;
    kernel.precision = base_.precision;
    kernel.pointwise = pointwise;
    kernel.read = piece_.output_gradient(0);
    kernel.written = piece_.input_gradient(2);
    work_.kernels.push_back(kernel);
  }

 private:
  const Piece& piece_;
  Work& work_;
  Kernel base_;
};

double each_gradient(const Piece& piece, const Arithmetic& arithmetic) {
  const int wanted = (piece.wants(0) ? 1 : 0) + (piece.wants(1) ? 1 : 0);
  return wanted == 0 ? 0 : arithmetic.multiply_adds / wanted;
}

}  // namespace

void add_contraction_work(const Piece& piece, const Arithmetic& arithmetic, Work& work) {
  Builder builder(piece, work);
  const bool grouped = piece.signature().kind == OpKind::GroupedLinear;
  const bool slots = piece.signature().kind == OpKind::SlotLinear;
  const Product p = grouped ? grouped_product(piece)
                    : slots ? slot_product(piece)
                            : product_of_loops(piece);
  // Rows of experts that are elsewhere are not read, nor slots that are empty; a token's row is
  // read by each of its experts.
  const double rows = grouped ? piece.share(3)
                      : slots ? piece.signature().as<SlotLinearAttrs>().filled
                              : 1;
  const bool repeated = grouped && piece.signature().shape(0).size() == 2;
  const auto choices = static_cast<double>(repeated ? piece.signature().shape(2)[1] : 1);
  const Bytes x = scaled(piece.input(0), rows * choices);
  if (!piece.backward()) {
    builder.add(p, arithmetic.multiply_adds, x + piece.input(1) + piece.input(2),
                piece.outputs() + piece.auxiliaries(), arithmetic.pointwise);
    return;
  }
  const double each = each_gradient(piece, arithmetic);
  const Bytes dy = scaled(piece.output_gradient(0), rows);
  if (piece.wants(0))
    builder.add({p.batch, p.m, p.k, p.n}, each, dy + piece.input(1), piece.input_gradient(0));
  if (piece.wants(1)) builder.add({p.batch, p.k, p.n, p.m}, each, x + dy, piece.input_gradient(1));
  builder.add_bias_gradient(arithmetic.pointwise);
}

void add_convolution_work(const Piece& piece, const Arithmetic& arithmetic, Work& work) {
  const Convolution c = convolution_of(piece);
  Builder builder(piece, c, work);
  const Product& p = c.product;
  if (!piece.backward()) {
    builder.add(p, arithmetic.multiply_adds, piece.inputs(), piece.outputs() + piece.auxiliaries(),
                arithmetic.pointwise);
    return;
  }
  const double each = each_gradient(piece, arithmetic);
  const Bytes dy = piece.output_gradient(0);
  // The window belongs to the inner size here, whichever way the convolution goes.
  if (piece.wants(0))
    builder.add({p.batch, p.m, c.in, c.out * c.kernel}, each, dy + piece.input(1),
                piece.input_gradient(0));
  if (piece.wants(1)) {
    const Product dw = c.transposed ? Product{p.batch, c.in, c.out * c.kernel, p.m}
                                    : Product{p.batch, c.out, c.in * c.kernel, p.m};
    builder.add(dw, each, piece.input(0) + dy, piece.input_gradient(1));
  }
  builder.add_bias_gradient(arithmetic.pointwise);
}

}  // namespace windlass
