// Import rules: matrix products and einsum.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

void matmul(NodeContext& c) {
  // Vectors are matrices with one row or column.
  TensorId a = c.in(0), b = c.importer().tied_transpose(c.in(1), c.name());
  const bool row = c.rank(0) == 1, column = c.rank(1) == 1;
  if (c.rank(0) == 0 || c.rank(1) == 0) fail_input("cannot multiply scalars");
  if (row) a = c.reshape(a, {1, c.shape(0)[0]}, "row");
  if (column) b = c.reshape(b, {c.shape(1)[0], 1}, "column");
  TensorId y = c.emit(OpKind::MatMul, MatMulAttrs{}, {a, b});
  if (row || column) {
    Shape shape = c.builder().shape(y);
    if (column) shape.pop_back();
    if (row) shape.erase(shape.end() - (column ? 1 : 2));
    y = c.reshape(y, shape, "vector");
  }
  c.out(0, y);
}

void gemm(NodeContext& c) {
  const double alpha = c.float_attr("alpha", 1), beta = c.float_attr("beta", 1);
  const bool transpose_a = c.int_attr("transA", 0) != 0, transpose_b = c.int_attr("transB", 0) != 0;
  const Shape b = c.shape(1);
  if (b.size() != 2) fail_input("weight has shape {}", format_shape(b));
  const auto is_weight = [&](size_t i) {
    return c.builder().graph()[c.required(i)].role == TensorRole::Weight;
  };
  const bool bias_fits = !c.has(2) || (is_weight(2) && c.shape(2) == Shape{b[transpose_b ? 0 : 1]});
  const TensorId weight = c.importer().tied_transpose(c.in(1), c.name());
  const bool tied = weight != c.in(1);
  if (!tied && is_weight(1) && !transpose_a && alpha == 1 && beta == 1 && bias_fits) {
    c.out(0, c.emit(OpKind::Linear, LinearAttrs{!transpose_b}, {c.in(0), c.in(1), c.in(2)}));
    return;
  }
  TensorId y = c.emit(OpKind::MatMul, MatMulAttrs{transpose_a, transpose_b}, {c.in(0), weight},
                      c.has(2) || alpha != 1 ? "product" : "");
  if (alpha != 1) y = c.unary(UnaryFn::Affine, y, alpha, 0, c.has(2) ? "scaled" : "");
  if (c.has(2)) {
    TensorId bias = c.in(2);
    if (beta != 1) bias = c.unary(UnaryFn::Affine, bias, beta, 0, "bias");
    y = c.binary(BinaryFn::Add, y, bias);
  }
  c.out(0, y);
}

// The equation with letters for the axes that "..." stands for: the last of those that an operand
// has no letter for. Operands that have fewer of them would have to be broadcast, and are refused.
std::string spell_out(NodeContext& c, std::string equation) {
  constexpr std::string_view kDots = "...";
  if (equation.find(kDots) == std::string::npos) return equation;
  if (equation.find("->") == std::string::npos)
    fail_unsupported("\"{}\": write the result behind ->", equation);
  std::string letters;
  for (char letter = 'A'; letter <= 'Z'; ++letter)
    if (equation.find(letter) == std::string::npos) letters += letter;
  std::optional<size_t> axes;
  size_t begin = 0;
  const std::string left = equation.substr(0, equation.find("->"));
  for (size_t i = 0; begin <= left.size() && i < c.input_count(); ++i) {
    const size_t end = std::min(left.find(',', begin), left.size());
    const std::string_view term = std::string_view(left).substr(begin, end - begin);
    begin = end + 1;
    if (term.find(kDots) == std::string_view::npos) continue;
    const size_t named = term.size() - kDots.size();
    if (c.rank(i) < named || c.rank(i) - named > letters.size() ||
        (axes && *axes != c.rank(i) - named))
      fail_unsupported("\"{}\": ... stands for different numbers of axes", equation);
    axes = c.rank(i) - named;
  }
  const std::string meant = letters.substr(0, axes.value_or(0));
  for (size_t at = equation.find(kDots); at != std::string::npos; at = equation.find(kDots))
    equation.replace(at, kDots.size(), meant);
  return equation;
}

// An operand of an einsum, or what became of operands: a letter for each axis.
struct Term {
  TensorId value;
  std::string letters;
};

bool has_letter(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// Letters that nobody else has are summed.
Term sum_rest(NodeContext& c, const Term& term, const std::string& others, std::string_view part) {
  Ints axes;
  std::string rest;
  for (size_t k = 0; k < term.letters.size(); ++k) {
    if (has_letter(others, term.letters[k]))
      rest += term.letters[k];
    else
      axes.push_back(static_cast<int64_t>(k));
  }
  if (axes.empty()) return term;
  return {c.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, axes, false}, {term.value}, part),
          rest};
}

TensorId order_axes(NodeContext& c, const Term& term, const std::string& letters,
                    std::string_view part) {
  if (term.letters == letters) return term.value;
  Ints order;
  for (char letter : letters) order.push_back(static_cast<int64_t>(term.letters.find(letter)));
  return c.emit(OpKind::Transpose, TransposeAttrs{order}, {term.value}, part);
}

// A batched product. `others` are the letters of the result and of the operands still to come.
Term multiply(NodeContext& c, const std::map<char, int64_t>& sizes, Term a, Term b,
              const std::string& others, const std::string& part) {
  a = sum_rest(c, a, others + b.letters, part + "sum0");
  b = sum_rest(c, b, others + a.letters, part + "sum1");
  std::string batch, m, n, k;
  for (char letter : a.letters) {
    if (!has_letter(b.letters, letter))
      m += letter;
    else if (has_letter(others, letter))
      batch += letter;
    else
      k += letter;
  }
  for (char letter : b.letters)
    if (!has_letter(a.letters, letter)) n += letter;
  const auto count = [&](const std::string& letters) {
    int64_t product = 1;
    for (char letter : letters) product = checked_mul(product, sizes.at(letter));
    return product;
  };
  const TensorId left = c.reshape(order_axes(c, a, batch + m + k, part + "left"),
                                  {count(batch), count(m), count(k)}, part + "left_matrix");
  const TensorId right = c.reshape(order_axes(c, b, batch + k + n, part + "right"),
                                   {count(batch), count(k), count(n)}, part + "right_matrix");
  const TensorId y = c.emit(OpKind::MatMul, MatMulAttrs{}, {left, right}, part + "product");
  Shape shape;
  for (char letter : batch + m + n) shape.push_back(sizes.at(letter));
  return {c.reshape(y, shape, part + "result"), batch + m + n};
}

// Operands are multiplied one after the other as batched products; one alone is transposed and
// summed.
void einsum(NodeContext& c) {
  std::string equation = c.string_attr("equation", "");
  std::erase(equation, ' ');
  equation = spell_out(c, equation);
  const size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow);
  std::vector<Term> terms;
  size_t begin = 0;
  for (size_t i = 0; i <= left.size(); ++i) {
    if (i != left.size() && left[i] != ',') continue;
    terms.push_back({{}, left.substr(begin, i - begin)});
    begin = i + 1;
  }
  std::string output;
  if (arrow != std::string::npos) {
    output = equation.substr(arrow + 2);
  } else {
    std::map<char, int> counts;
    for (const Term& term : terms)
      for (char letter : term.letters) ++counts[letter];
    for (const auto& [letter, count] : counts)
      if (count == 1) output += letter;
  }
  if (terms.size() != c.input_count())
    fail_input("\"{}\" has {} operands, there are {}", equation, terms.size(), c.input_count());
  std::map<char, int64_t> sizes;
  for (size_t i = 0; i < terms.size(); ++i) {
    const std::string& letters = terms[i].letters;
    if (c.rank(i) != letters.size())
      fail_input("\"{}\" does not fit operand {} of shape {}", equation, i,
                 format_shape(c.shape(i)));
    for (size_t k = 0; k < letters.size(); ++k) {
      if (letters.find(letters[k]) != k)
        fail_unsupported("\"{}\": a letter twice in one operand (a diagonal)", equation);
      const auto [entry, inserted] = sizes.emplace(letters[k], c.shape(i)[k]);
      if (!inserted && entry->second != c.shape(i)[k])
        fail_input("\"{}\": sizes of {} differ: {} and {}", equation, letters[k], entry->second,
                   c.shape(i)[k]);
    }
    terms[i].value = c.in(i);
  }
  for (char letter : output)
    if (!sizes.contains(letter)) fail_input("\"{}\": {} is in no operand", equation, letter);
  Term result = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    std::string others = output;
    for (size_t k = i + 1; k < terms.size(); ++k) others += terms[k].letters;
    result = multiply(c, sizes, result, terms[i], others, i == 1 ? "" : fmt::format("{}.", i));
  }
  result = sum_rest(c, result, output, "sum");
  c.out(0, order_axes(c, result, output, ""));
}

}  // namespace

void add_product_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Einsum", einsum},
      {"Gemm", gemm},
      {"MatMul", matmul},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
