// PaSE's cost model as its released code has it. Primes are sizes per device, d' = d / parts.
//   r             = FLOP per word of 8 bytes
//   AR(w, q)      = r 2 (q - 1) w / q                             ring all-reduce of w words
//   GEMM          = B' [3 m'n'k' + 3 pw m'n' + AR(m'n', p_k) + AR(m'k', p_n) + AR(n'k', p_m)]
//   tensor        = 2 r max(0, needed - held)                     forward and backward
// The rules of each layer are beside its function.

#include <algorithm>
#include <array>

#include "windlass/base/error.h"
#include "windlass/search/peers/pase/pase_problem.h"

namespace windlass {
namespace {

struct Product {
  double batch = 1, m = 1, n = 1, k = 1;  // sizes per device
  double parts_m = 1, parts_n = 1, parts_k = 1;
  double pointwise = 0;
};

class PaseLayerCost {
 public:
  PaseLayerCost(const Layer& layer, const Configuration& parts, double flops_per_word)
      : layer_(layer), parts_(parts), r_(flops_per_word) {}

  double run() const {
    switch (layer_.kind) {
      case LayerKind::Conv: return conv();
      case LayerKind::Pooling: return pooling();
      case LayerKind::FullyConnected: return fully_connected();
      case LayerKind::Einsum: return einsum();
      case LayerKind::Lstm: return lstm();
      case LayerKind::Norm: return norm();
      case LayerKind::Softmax: return softmax();
      case LayerKind::SoftmaxCrossEntropy: return cross_entropy();
      case LayerKind::Elementwise: return static_cast<double>(1 + layer_.pointwise) * elements();
      case LayerKind::ReduceMean: {
        double across = 1;
        for (int64_t axis : layer_.axes) across *= parts(static_cast<size_t>(axis));
        return all_reduce(elements(), across);
      }
      case LayerKind::Concat:
      case LayerKind::Split:
      case LayerKind::Stack:
      case LayerKind::Unstack:
      case LayerKind::Ravel:
      case LayerKind::Unravel:
      case LayerKind::Transpose:
      case LayerKind::Variable: break;
    }
    return 0;
  }

 private:
  double parts(size_t i) const { return static_cast<double>(parts_[i]); }
  double size(size_t i) const { return static_cast<double>(layer_.space[i]) / parts(i); }
  double elements() const {
    double count = 1;
    for (size_t i = 0; i < parts_.size(); ++i) count *= size(i);
    return count;
  }
  double all_reduce(double words, double members) const {
    return r_ * 2 * (members - 1) * words / members;
  }
  double product(const Product& p) const {
    return p.batch *
           (3 * p.m * p.n * p.k + 3 * p.pointwise * p.m * p.n + all_reduce(p.m * p.n, p.parts_k) +
            all_reduce(p.m * p.k, p.parts_n) + all_reduce(p.n * p.k, p.parts_m));
  }

  // m = b ho wo, k = c r s.
  double conv() const {
    Product p;
    for (size_t i : {0U, 2U, 3U}) p.m *= size(i), p.parts_m *= parts(i);
    for (size_t i : {1U, 4U, 5U}) p.k *= size(i), p.parts_k *= parts(i);
    p.n = size(6);
    p.parts_n = parts(6);
    p.pointwise = static_cast<double>(layer_.pointwise);
    return product(p);
  }
  double fully_connected() const {
    const size_t rank = parts_.size();
    Product p;
    for (size_t i = 0; i + 2 < rank; ++i) p.m *= size(i), p.parts_m *= parts(i);
    p.n = size(rank - 2);
    p.parts_n = parts(rank - 2);
    p.k = size(rank - 1);
    p.parts_k = parts(rank - 1);
    p.pointwise = static_cast<double>(layer_.pointwise);
    return product(p);
  }
  // By where a letter stands: in both inputs and the output, in both inputs, in one and the output.
  double einsum() const {
    const EinsumLetters letters = einsum_letters(layer_.equation);
    const auto in = [](const std::string& part, char c) {
      return part.find(c) != std::string::npos;
    };
    Product p;
    for (size_t i = 0; i < letters.space.size(); ++i) {
      const char c = letters.space[i];
      const bool first = in(letters.first, c), second = in(letters.second, c);
      if (first && second && in(letters.output, c))
        p.batch *= size(i);
      else if (first && second)
        p.k *= size(i), p.parts_k *= parts(i);
      else if (first)
        p.m *= size(i), p.parts_m *= parts(i);
      else
        p.n *= size(i), p.parts_n *= parts(i);
    }
    p.pointwise = static_cast<double>(layer_.pointwise);
    return product(p);
  }
  // Four gates of 2u inputs each, and the hidden state, which is moved in every step of every
  // layer.
  double lstm() const {
    const auto units = static_cast<double>(layer_.units);
    Product p;
    p.batch = size(0);
    p.m = size(1) * size(2);
    p.parts_m = parts(2);
    p.n = 4 * units / parts(3);
    p.parts_n = parts(3);
    p.k = 2 * units / parts(4);
    p.parts_k = parts(4);
    p.pointwise = 3;
    const double steps =
        static_cast<double>(layer_.space[0]) * static_cast<double>(layer_.space[1]);
    const double state = tensor_cost({layer_.space[2], layer_.units}, {parts_[2], parts_[3]},
                                     {parts_[2], parts_[4]}, r_);
    return product(p) + steps * state / 2;
  }
  // Elements of the output, and R and S rows beside a piece of the input where it is split.
  double pooling() const {
    const Extents& in = layer_.inputs[0];
    const double height = static_cast<double>(in[2]) / parts(2);
    const double width = static_cast<double>(in[3]) / parts(3);
    const double rows = parts_[2] > 1 ? static_cast<double>(layer_.filter[0]) : 0;
    const double columns = parts_[3] > 1 ? static_cast<double>(layer_.filter[1]) : 0;
    return elements() +
           r_ * size(0) * size(1) * ((height + rows) * (width + columns) - height * width);
  }
  double norm() const {
    const auto axis = static_cast<size_t>(layer_.axes[0]);
    double others = 1;
    for (size_t i = 0; i < parts_.size(); ++i) others *= i == axis ? 1 : parts(i);
    return 16 * elements() + 4 * all_reduce(elements() / size(axis), parts(axis)) +
           4 * all_reduce(size(axis), others);
  }
  // The backward pass multiplies by a dense Jacobian.
  double softmax() const {
    const auto axis = static_cast<size_t>(layer_.axes[0]);
    const auto whole = static_cast<double>(layer_.space[axis]);
    const double rest = elements() / size(axis);
    return 4 * elements() + elements() * whole + 2 * all_reduce(rest, parts(axis)) +
           all_reduce(rest * whole, parts(axis));
  }
  double cross_entropy() const {
    const size_t last = parts_.size() - 1;
    const double rows = elements() / size(last);
    return 4 * elements() + 2 * rows + (parts_[last] > 1 ? 2 * r_ * rows : 0);
  }

  const Layer& layer_;
  const Configuration& parts_;
  double r_;
};

Configuration flat(const Configuration& parts) {
  int64_t product = 1;
  for (int64_t p : parts) product *= p;
  return {product};
}

Configuration by_letters(const Layer& layer, const Configuration& parts, int operand) {
  const EinsumLetters letters = einsum_letters(layer.equation);
  const std::string& own =
      operand == 0 ? letters.first : (operand == 1 ? letters.second : letters.output);
  Configuration result;
  for (char c : own) result.push_back(parts[letters.space.find(c)]);
  return result;
}

}  // namespace

double layer_cost(const Layer& layer, const Configuration& parts, double flops_per_word) {
  return PaseLayerCost(layer, parts, flops_per_word).run();
}

double tensor_cost(const Extents& shape, const Configuration& from, const Configuration& to,
                   double flops_per_word) {
  double needed = 1, held = 1, from_parts = 1, to_parts = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto size = static_cast<double>(shape[i]);
    const auto u = static_cast<double>(from[i]), v = static_cast<double>(to[i]);
    needed *= size / v;
    held *= std::min(size / u, size / v);
    from_parts *= u;
    to_parts *= v;
  }
  // More parts than there were: PaSE takes it that no device has any of what it needs.
  if (to_parts > from_parts) held = 0;
  return 2 * flops_per_word * std::max(0.0, needed - held);
}

Configuration parts_of_output(const Layer& layer, const Configuration& parts, size_t output) {
  switch (layer.kind) {
    case LayerKind::Conv: return {parts[0], parts[6], parts[2], parts[3]};
    case LayerKind::FullyConnected: return {parts.begin(), parts.end() - 1};
    case LayerKind::Einsum: return by_letters(layer, parts, 2);
    case LayerKind::Lstm: return {parts[2], parts[1], parts[3]};
    case LayerKind::ReduceMean: {
      if (layer.outputs[output].size() != parts.size()) return without_axes(parts, layer.axes);
      Configuration kept = parts;
      for (int64_t axis : layer.axes) kept[static_cast<size_t>(axis)] = 1;
      return kept;
    }
    case LayerKind::Unstack: return without_axes(parts, layer.axes);
    case LayerKind::Ravel: return flat(parts);
    default: return parts;
  }
}

Configuration parts_of_input(const Layer& layer, const Configuration& parts, size_t input) {
  switch (layer.kind) {
    case LayerKind::Conv: return {parts[0], parts[1], parts[2], parts[3]};
    case LayerKind::FullyConnected: {
      Configuration in(parts.begin(), parts.end() - 2);
      in.push_back(parts.back());
      return in;
    }
    case LayerKind::Einsum: return by_letters(layer, parts, input == 0 ? 0 : 1);
    case LayerKind::Lstm: return {parts[2], parts[1], parts[4]};
    case LayerKind::Stack: return without_axes(parts, layer.axes);
    case LayerKind::Unravel: return flat(parts);
    default: return parts;
  }
}

}  // namespace windlass
