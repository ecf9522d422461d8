// Small random examples of every op kind and variant, shared by the tests that hold for all of
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/base/rng.h"
#include "windlass/graph/reference/interpret.h"

namespace windlass::reference {

// A tensor with its type. Default: an absent operand.
struct Operand {
  DType dtype = DType::None;
  Array array;
};

// An op with values for its inputs, chosen away from points where its derivative jumps.
struct OpCase {
  std::string name;
  OpKind kind = OpKind::Unary;
  Attrs attrs;
  std::vector<Operand> inputs;
  RandomState random;

  // With outputs and auxiliaries as the op table says. Refers to `attrs` of this object.
  Signature signature() const;
  std::vector<const Array*> arrays() const;
};

// Draws operands for cases and collects the cases.
class CaseMaker {
 public:
  explicit CaseMaker(uint64_t seed) : rng_(seed) {}

  Rng& rng() { return rng_; }
  int64_t integer(int64_t low, int64_t high) { return rng_.integer(low, high); }

  Operand uniform(const Shape& shape, double low = -1.5, double high = 1.5);
  // Distinct values at least 0.05 apart from each other, from 0 and from `kinks`, spread around 0.
  Operand spread(const Shape& shape, const std::vector<double>& kinks = {});
  Operand indices(const Shape& shape, int64_t low, int64_t high);
  Operand booleans(const Shape& shape);

  void add(std::string name, OpKind kind, Attrs attrs, std::vector<Operand> inputs);
  std::vector<OpCase> take() { return std::move(cases_); }

 private:
  Rng rng_;
  std::vector<OpCase> cases_;
};

// One family each; every kind but Update is in one of them.
void add_contraction_cases(CaseMaker& make);
void add_convolution_cases(CaseMaker& make);
void add_normalization_cases(CaseMaker& make);
void add_attention_cases(CaseMaker& make);
void add_elementwise_cases(CaseMaker& make);
void add_layout_cases(CaseMaker& make);
void add_reduction_cases(CaseMaker& make);
void add_recurrent_cases(CaseMaker& make);
void add_routing_cases(CaseMaker& make);
void add_loss_cases(CaseMaker& make);

std::vector<OpCase> op_cases(uint64_t seed);

// Less tame shapes, in a file of their own.
std::vector<OpCase> hard_op_cases(uint64_t seed);
// At points where a derivative jumps.
std::vector<OpCase> tied_op_cases(uint64_t seed);

}  // namespace windlass::reference
