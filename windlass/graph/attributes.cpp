#include "windlass/graph/attributes.h"

#include <array>
#include <type_traits>

#include <fmt/format.h>

#include "windlass/base/hash.h"

namespace windlass {

Attrs::Attrs() = default;
Attrs::Attrs(const Attrs&) = default;
Attrs::Attrs(Attrs&&) noexcept = default;
Attrs& Attrs::operator=(const Attrs&) = default;
Attrs& Attrs::operator=(Attrs&&) noexcept = default;
Attrs::~Attrs() = default;
bool Attrs::operator==(const Attrs& other) const {
  return static_cast<const AttrsVariant&>(*this) == static_cast<const AttrsVariant&>(other);
}

namespace {

template <typename Enum, size_t N>
std::string_view lookup(const std::array<std::string_view, N>& names, Enum value) {
  return names.at(static_cast<size_t>(value));
}

std::string format_value(bool value) { return value ? "true" : "false"; }
std::string format_value(int64_t value) { return std::to_string(value); }
std::string format_value(double value) { return fmt::format("{}", value); }
std::string format_value(const Ints& value) { return format_shape(value); }
std::string format_value(DType value) { return std::string(dtype_name(value)); }
template <typename Enum>
requires std::is_enum_v<Enum> std::string format_value(Enum value) {
  return std::string(enum_name(value));
}

}  // namespace

std::string_view enum_name(PoolFn value) {
  return lookup(std::array<std::string_view, 2>{"max", "average"}, value);
}
std::string_view enum_name(UnaryFn value) {
  static constexpr std::array<std::string_view, 42> kNames = {
      "identity", "relu",    "leaky_relu",   "elu",        "clip",     "gelu",       "gelu_tanh",
      "silu",     "sigmoid", "hard_sigmoid", "hard_swish", "softplus", "mish",       "tanh",
      "erf",      "exp",     "log",          "sqrt",       "rsqrt",    "reciprocal", "square",
      "abs",      "neg",     "sin",          "cos",        "affine",   "power",      "sign",
      "floor",    "ceil",    "round",        "not",        "is_nan",   "tan",        "asin",
      "acos",     "atan",    "sinh",         "cosh",       "asinh",    "acosh",      "atanh"};
  return lookup(kNames, value);
}
std::string_view enum_name(BinaryFn value) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "add",   "sub",  "mul",        "div",     "mod",           "pow", "max", "min",
      "equal", "less", "less_equal", "greater", "greater_equal", "and", "or",  "xor"};
  return lookup(kNames, value);
}
std::string_view enum_name(RandomFn value) {
  return lookup(std::array<std::string_view, 3>{"uniform", "normal", "bernoulli"}, value);
}
std::string_view enum_name(PadMode value) {
  return lookup(std::array<std::string_view, 3>{"constant", "reflect", "edge"}, value);
}
std::string_view enum_name(ReduceFn value) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp"};
  return lookup(kNames, value);
}
std::string_view enum_name(ResizeMode value) {
  return lookup(std::array<std::string_view, 2>{"nearest", "linear"}, value);
}
std::string_view enum_name(ResizeCoordinates value) {
  return lookup(std::array<std::string_view, 3>{"half_pixel", "align_corners", "asymmetric"},
                value);
}
std::string_view enum_name(GateOrder value) {
  return lookup(std::array<std::string_view, 2>{"onnx", "torch"}, value);
}
std::string_view enum_name(OptimizerKind value) {
  return lookup(std::array<std::string_view, 4>{"sgd", "momentum", "adam", "adamw"}, value);
}

std::string format_attrs(const Attrs& attrs) {
  std::string text;
  std::visit(
      [&](const auto& a) {
        a.each([&](std::string_view name, const auto& value) {
          if (!text.empty()) text += ' ';
          text += fmt::format("{}={}", name, format_value(value));
        });
      },
      attrs);
  return text;
}

uint64_t hash_attrs(const Attrs& attrs) {
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(attrs.index()));
  const auto add = [&hasher](std::string_view, const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, Ints>) {
      hasher.add(static_cast<uint64_t>(value.size()));
      for (int64_t v : value) hasher.add(v);
    } else if constexpr (std::is_enum_v<T>) {
      hasher.add(static_cast<uint64_t>(value));
    } else {
      hasher.add(value);
    }
  };
  std::visit([&](const auto& a) { a.each(add); }, attrs);
  return hasher.result();
}

}  // namespace windlass
