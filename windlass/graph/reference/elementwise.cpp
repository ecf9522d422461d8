// Functions of several values with broadcasting, dropout and random numbers.

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/base/philox.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Remainder of integers has the sign of the divisor (ONNX Mod, Python); of floats that of the
// dividend (fmod).
double modulo(double a, double b, bool integer) {
  const double remainder = std::fmod(a, b);
  return integer && remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

double apply(BinaryFn fn, double a, double b, bool integer) {
  const auto truth = [](bool value) { return value ? 1.0 : 0.0; };
  if (integer && b == 0 && (fn == BinaryFn::Div || fn == BinaryFn::Mod))
    fail_input("{}: {} divided by zero in integers", enum_name(fn), a);
  switch (fn) {
    case BinaryFn::Add: return a + b;
    case BinaryFn::Sub: return a - b;
    case BinaryFn::Mul: return a * b;
    case BinaryFn::Div: return integer ? std::trunc(a / b) : a / b;
    case BinaryFn::Mod: return modulo(a, b, integer);
    case BinaryFn::Pow: return integer ? std::trunc(std::pow(a, b)) : std::pow(a, b);
    case BinaryFn::Max: return std::max(a, b);
    case BinaryFn::Min: return std::min(a, b);
    case BinaryFn::Equal: return truth(a == b);
    case BinaryFn::Less: return truth(a < b);
    case BinaryFn::LessEqual: return truth(a <= b);
    case BinaryFn::Greater: return truth(a > b);
    case BinaryFn::GreaterEqual: return truth(a >= b);
    case BinaryFn::And: return truth(a != 0 && b != 0);
    case BinaryFn::Or: return truth(a != 0 || b != 0);
    case BinaryFn::Xor: return truth((a != 0) != (b != 0));
  }
  fail(ErrorKind::Internal, "Binary: unknown function {}", static_cast<int>(fn));
}

// Which saved tensors the derivative by one operand reads.
struct OperandNeeds {
  bool a = false, b = false, output = false;
};

OperandNeeds derivative_needs(BinaryFn fn, size_t operand) {
  switch (fn) {
    case BinaryFn::Add:
    case BinaryFn::Sub: return {};
    case BinaryFn::Mul: return {.a = operand == 1, .b = operand == 0};
    case BinaryFn::Div: return {.a = operand == 1, .b = true};
    case BinaryFn::Mod: return {.a = operand == 1, .b = operand == 1};
    case BinaryFn::Pow: return {.a = true, .b = operand == 0, .output = operand == 1};
    case BinaryFn::Max:
    case BinaryFn::Min: return {.a = true, .b = true};
    default: fail(ErrorKind::Internal, "Binary {}: not differentiable", enum_name(fn));
  }
}

// Derivative by one operand; values that derivative_needs does not name are 0.
double derivative(BinaryFn fn, size_t operand, double a, double b, double output) {
  const bool first = operand == 0;
  // Of two equal candidates each takes half, as in PyTorch.
  const auto chosen = [&](bool a_wins) { return a == b ? 0.5 : a_wins == first ? 1.0 : 0.0; };
  switch (fn) {
    case BinaryFn::Add: return 1;
    case BinaryFn::Sub: return first ? 1 : -1;
    case BinaryFn::Mul: return first ? b : a;
    case BinaryFn::Div: return first ? 1 / b : -a / (b * b);
    case BinaryFn::Mod: return first ? 1 : -std::trunc(a / b);
    case BinaryFn::Pow:
      if (first) return b == 0 ? 0 : b * std::pow(a, b - 1);
      // 0^b is constant for b >= 0, where it is finite.
      return a == 0 && std::isfinite(output) ? 0 : output * std::log(a);
    case BinaryFn::Max: return chosen(a > b);
    case BinaryFn::Min: return chosen(a < b);
    default: fail(ErrorKind::Internal, "Binary {}: not differentiable", enum_name(fn));
  }
}

Array binary_gradient(const BackwardCall& call, size_t operand) {
  const BinaryFn fn = call.attrs<BinaryAttrs>().fn;
  if (!call.wants(operand)) return {};
  const Array& g = call.gradient();
  const OperandNeeds needs = derivative_needs(fn, operand);
  const double* a = needs.a ? call.input(0).values.data() : nullptr;
  const double* b = needs.b ? call.input(1).values.data() : nullptr;
  const double* output = needs.output ? call.output(0).values.data() : nullptr;
  Array result(call.shape(operand));
  walk<2>(g.shape,
          {broadcast_strides(call.shape(0), g.shape), broadcast_strides(call.shape(1), g.shape)},
          [&](int64_t i, const auto& at) {
            const double slope =
                derivative(fn, operand, a != nullptr ? a[at[0]] : 0, b != nullptr ? b[at[1]] : 0,
                           output != nullptr ? output[i] : 0);
            result.values[at[operand]] += g.values[i] * slope;
          });
  return result;
}

}  // namespace

ForwardResult binary_forward(const ForwardCall& call) {
  const BinaryFn fn = call.attrs<BinaryAttrs>().fn;
  const Array& a = call.input(0);
  const Array& b = call.input(1);
  const bool integer = is_integer(call.dtype(0));
  Array y(broadcast_shapes(a.shape, b.shape));
  walk<2>(y.shape, {broadcast_strides(a.shape, y.shape), broadcast_strides(b.shape, y.shape)},
          [&](int64_t i, const auto& at) {
            y.values[i] = apply(fn, a.values[at[0]], b.values[at[1]], integer);
          });
  return {{y}, {}};
}

std::vector<Array> binary_backward(const BackwardCall& call) {
  return {binary_gradient(call, 0), binary_gradient(call, 1)};
}

ForwardResult where_forward(const ForwardCall& call) {
  const Array& condition = call.input(0);
  const Array& a = call.input(1);
  const Array& b = call.input(2);
  Array y(broadcast_shapes(condition.shape, broadcast_shapes(a.shape, b.shape)));
  walk<3>(y.shape,
          {broadcast_strides(condition.shape, y.shape), broadcast_strides(a.shape, y.shape),
           broadcast_strides(b.shape, y.shape)},
          [&](int64_t i, const auto& at) {
            y.values[i] = condition.values[at[0]] != 0 ? a.values[at[1]] : b.values[at[2]];
          });
  return {{y}, {}};
}

std::vector<Array> where_backward(const BackwardCall& call) {
  const Array& g = call.gradient();
  Array ga = call.zeros_if_wanted(1), gb = call.zeros_if_wanted(2);
  if (!call.wants(1) && !call.wants(2)) return {};
  const Array& condition = call.input(0);
  walk<3>(g.shape,
          {broadcast_strides(condition.shape, g.shape), broadcast_strides(call.shape(1), g.shape),
           broadcast_strides(call.shape(2), g.shape)},
          [&](int64_t i, const auto& at) {
            const bool first = condition.values[at[0]] != 0;
            if (first && call.wants(1)) ga.values[at[1]] += g.values[i];
            if (!first && call.wants(2)) gb.values[at[2]] += g.values[i];
          });
  return {Array(), ga, gb};
}

ForwardResult dropout_forward(const ForwardCall& call) {
  const double ratio = call.attrs<DropoutAttrs>().ratio;
  const Array& x = call.input(0);
  Array y(x.shape), mask(x.shape);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const auto word =
        static_cast<uint64_t>(whole_element(call.facts.random, static_cast<int64_t>(i)));
    if (!random_chance(call.random.seed, call.random.op, word, ratio)) {
      mask.values[i] = 1;
      y.values[i] = x.values[i] / (1 - ratio);
    }
  }
  return {{y}, {mask}};
}

std::vector<Array> dropout_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {Array()};
  const double ratio = call.attrs<DropoutAttrs>().ratio;
  const Array& mask = call.auxiliary(0);
  Array dx = call.gradient();
  for (size_t i = 0; i < dx.values.size(); ++i)
    dx.values[i] = mask.values[i] != 0 ? dx.values[i] / (1 - ratio) : 0;
  return {dx};
}

ForwardResult random_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<RandomAttrs>();
  const auto [seed, stream] = call.random;
  Array y(attrs.shape);
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto at =
        static_cast<uint64_t>(whole_element(call.facts.random, static_cast<int64_t>(i)));
    switch (attrs.fn) {
      case RandomFn::Uniform:
        y.values[i] = attrs.alpha + (attrs.beta - attrs.alpha) * random_fraction(seed, stream, at);
        break;
      case RandomFn::Normal:
        y.values[i] = attrs.alpha + attrs.beta * philox_normal(seed, stream, at);
        break;
      case RandomFn::Bernoulli:
        y.values[i] = random_chance(seed, stream, at, attrs.alpha) ? 1 : 0;
        break;
    }
  }
  return {{y}, {}};
}

ForwardResult accumulate_forward(const ForwardCall& call) {
  Array y = call.input(0);
  const Array& b = call.input(1);
  ensure(y.shape == b.shape, "Accumulate operands differ in shape");
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += b.values[i];
  return {{y}, {}};
}

}  // namespace windlass::reference
