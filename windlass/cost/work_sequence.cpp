// Fused attention and recurrent layers: ops that are several products each.

#include <algorithm>
#include <initializer_list>

#include "windlass/cost/piece.h"

namespace windlass {
namespace {

// Queries and keys are visited in blocks of this size; blocks without a visible pair are left out.
constexpr double kAttentionBlock = 128;

// Of keys [0, keys), those that a causal query sees on average, where the queries see from `least`
// to `most` of all keys, evenly spread.
double mean_seen(double keys, double least, double most) {
  if (most <= keys) return std::max(0.0, (least + most) / 2);
  if (least >= keys || most <= least) return keys;
  least = std::max(0.0, least);
  return ((keys * keys - least * least) / 2 + keys * (most - keys)) / (most - least);
}

// The most query-key pairs that a piece of a causal op sees, by query and as a share of its keys:
// that with the last queries of each run, and the first keys.
double causal_share(const Piece& piece, double queries, double keys) {
  const auto blocks = static_cast<double>(piece.blocks(2));
  const double here = static_cast<double>(piece.local(2)) / blocks, run = queries / blocks;
  const auto local_keys = static_cast<double>(piece.local(3));
  double sum = 0;
  for (int64_t b = 0; b < piece.blocks(2); ++b) {
    const double most = keys - queries + static_cast<double>(b + 1) * run;
    sum += mean_seen(local_keys, most - here + 1, most);
  }
  return sum / blocks / local_keys;
}

// Share of the query-key pairs that a fused kernel visits, over all queries of the op, or in the
// piece that visits most.
double visited_share(const Piece& piece) {
  const Signature& s = piece.signature();
  const auto& attrs = s.as<AttentionAttrs>();
  const auto queries = static_cast<double>(s.shape(0)[2]);
  const auto keys = static_cast<double>(s.shape(1)[2]);
  if (keys <= 0 || queries <= 0) return 1;
  double seen = keys;  // by a query, on average
  if (attrs.causal) seen = std::max(0.0, keys - (queries - 1) / 2);
  const bool cut = piece.share(2) < 1 || piece.share(3) < 1;
  if (attrs.causal && attrs.window == 0 && cut && piece.blocks(2) > 0)
    seen = keys * causal_share(piece, queries, keys);
  if (attrs.window > 0)
    seen = std::min(seen, static_cast<double>(attrs.window) * (attrs.causal ? 1 : 2));
  return std::min(1.0, (seen + kAttentionBlock / 2) / keys);
}

int64_t product(std::initializer_list<int64_t> sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) result *= size;
  return result;
}

Bytes times(Bytes bytes, int64_t count) { return Bytes(bytes.value * count); }

// The sizes of one recurrent layer on this device.
struct Cells {
  int64_t steps, directions, batch, hidden, in, gates;
  double multiply_adds(int64_t inner) const {
    return static_cast<double>(steps) * static_cast<double>(directions) *
           static_cast<double>(batch) * static_cast<double>(gates * hidden) *
           static_cast<double>(inner);
  }
};

Kernel product_kernel(const Piece& piece, int64_t batch, int64_t m, int64_t n, int64_t k) {
  Kernel kernel;
  kernel.family = OpFamily::Contraction;
  kernel.precision = precision_of(piece.signature().inputs[0].dtype);
  kernel.batch = batch;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  return kernel;
}

Kernel cell_kernel(const Piece& piece, const Cells& c, const Arithmetic& arithmetic) {
  Kernel kernel;
  kernel.family = OpFamily::Recurrent;
  kernel.precision = precision_of(piece.signature().inputs[0].dtype);
  kernel.pointwise = arithmetic.pointwise;
  kernel.launches = static_cast<int32_t>(c.steps);
  return kernel;
}

Bytes gate_bytes(const Piece& piece, const Cells& c) {
  return Bytes(product({c.steps, c.directions, c.batch, c.gates * c.hidden,
                        element_bytes(piece.signature().inputs[0].dtype)}));
}

void add_recurrent_forward(const Piece& piece, const Cells& c, const Arithmetic& arithmetic,
                           Work& work) {
  const Bytes gates = gate_bytes(piece, c);
  Kernel input = product_kernel(piece, c.directions, c.steps * c.batch, c.gates * c.hidden, c.in);
  input.multiply_adds = c.multiply_adds(c.in);
  input.read = piece.input(0) + piece.input(1) + piece.input(3);
  input.written = gates;
  work.kernels.push_back(input);

  Kernel step = product_kernel(piece, c.directions, c.batch, c.gates * c.hidden, c.hidden);
  step.launches = static_cast<int32_t>(c.steps);
  step.multiply_adds = c.multiply_adds(c.hidden);
  step.read = times(piece.input(2), c.steps) + piece.output(0);
  step.written = gates;
  work.kernels.push_back(step);

  Kernel cell = cell_kernel(piece, c, arithmetic);
  cell.read = times(gates, 2) + piece.input(4) + piece.input(5);
  cell.written = piece.outputs() + piece.auxiliaries();
  work.kernels.push_back(cell);
}

// Back through the steps one by one; the products with whole sequences afterwards, at once.
void add_recurrent_backward(const Piece& piece, const Cells& c, const Arithmetic& arithmetic,
                            Work& work) {
  const Bytes gates = gate_bytes(piece, c);
  Kernel cell = cell_kernel(piece, c, arithmetic);
  cell.read = piece.output_gradients() + piece.saved();
  cell.written = gates;
  work.kernels.push_back(cell);

  Kernel step = product_kernel(piece, c.directions, c.batch, c.hidden, c.gates * c.hidden);
  step.launches = static_cast<int32_t>(c.steps);
  step.multiply_adds = c.multiply_adds(c.hidden);
  step.read = times(piece.input(2), c.steps) + gates;
  step.written = piece.output(0);
  work.kernels.push_back(step);

  const auto whole = [&](size_t input, int64_t m, int64_t n, int64_t k, int64_t inner, Bytes read) {
    if (!piece.wants(input)) return;
    Kernel kernel = product_kernel(piece, c.directions, m, n, k);
    kernel.multiply_adds = c.multiply_adds(inner);
    kernel.read = gates + read;
    kernel.written = piece.input_gradient(input);
    work.kernels.push_back(kernel);
  };
  const int64_t rows = c.steps * c.batch, columns = c.gates * c.hidden;
  whole(0, rows, c.in, columns, c.in, piece.input(1));
  whole(1, columns, c.in, rows, c.in, piece.input(0));
  whole(2, columns, c.hidden, rows, c.hidden, piece.output(0));
  if (piece.wants(3)) {
    Kernel bias;
    bias.family = OpFamily::Reduction;
    bias.read = gates;
    bias.written = piece.input_gradient(3);
    work.kernels.push_back(bias);
  }
}

}  // namespace

void add_attention_work(const Piece& piece, const Arithmetic& arithmetic, Work& work) {
  const Signature& s = piece.signature();
  const double visited = visited_share(piece);
  const int64_t heads = piece.local_shape(piece.nest().inputs[0], s.shape(0))[1];
  Kernel kernel;
  kernel.family = OpFamily::Attention;
  kernel.precision = precision_of(s.inputs[0].dtype);
  kernel.batch = piece.local(0) * heads;
  kernel.m = piece.local(2);
  kernel.n = piece.local(3);
  kernel.k = (piece.local(4) + piece.local(5) + 1) / 2;
  kernel.multiply_adds = arithmetic.multiply_adds * visited;
  kernel.pointwise = arithmetic.pointwise * visited;
  if (!piece.backward()) {
    kernel.read = piece.inputs();
    kernel.written = piece.outputs() + piece.auxiliaries();
    work.kernels.push_back(kernel);
    return;
  }
  // Row sums of dO * O first; then one pass over the pairs, dQ summed in fp32.
  Kernel sums;
  sums.family = OpFamily::Reduction;
  sums.precision = kernel.precision;
  sums.read = piece.output_gradient(0) + piece.output(0);
  sums.written = piece.auxiliary(0);
  work.kernels.push_back(sums);
  const Bytes total(product({kernel.batch, kernel.m, piece.local(4), int64_t{4}}));
  kernel.read = piece.output_gradient(0) + piece.saved() + piece.auxiliary(0);
  kernel.written = piece.input_gradients();
  if (element_bytes(s.inputs[0].dtype) < 4) {
    kernel.scratch = total;
    kernel.read += total;
    kernel.written += total;
  }
  work.kernels.push_back(kernel);
}

void add_recurrent_work(const Piece& piece, const Arithmetic& arithmetic, Work& work) {
  const Cells c = {piece.local(0), piece.local(1), piece.local(2),
                   piece.local(3), piece.local(4), piece.signature().kind == OpKind::Lstm ? 4 : 3};
  if (piece.backward())
    add_recurrent_backward(piece, c, arithmetic, work);
  else
    add_recurrent_forward(piece, c, arithmetic, work);
}

}  // namespace windlass
