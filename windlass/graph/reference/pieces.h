// Pieces of an op: ranges of its loops and the regions of its operands that follow, for the tests
// that compare loop nests with what ops really read and write.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/reference/op_cases.h"

namespace windlass::reference {

using Ranges = std::vector<Range>;  // one per loop

Ranges whole_ranges(const LoopNest& nest);
// A random piece: some of the Free loops are cut.
Ranges random_piece(const LoopNest& nest, Rng& rng);
// Two or three uneven pieces of one loop, the others whole.
std::vector<Ranges> cut_loop(const LoopNest& nest, size_t loop, Rng& rng);

// Which elements of an operand of `shape` the ranges touch.
std::vector<bool> region(const OperandMap& map, const Shape& shape, const Ranges& ranges);
bool has_loop(const OperandMap& map, size_t loop);

// A bias is added to the result and lacks the reduced loop: one piece adds it.
bool is_bias(OpKind kind, size_t input);

// Puts other values outside the region: plausible ones, taken from the array itself. Which rows of
// a cross-entropy are ignored stays, since every piece is told the number of rows in the mean.
void disturb(Array& array, const std::vector<bool>& inside, bool integer, Rng& rng);
void fill_outside(Array& array, const std::vector<bool>& inside, double value);

// Fails the test unless both arrays agree where `where` says.
void expect_same(const Array& found, const Array& expected, const std::vector<bool>& where,
                 const std::string& what);

// A case with everything the tests ask about it.
struct Subject {
  const OpCase& c;
  Signature signature;
  LoopNest nest;
  ForwardResult whole;

  explicit Subject(const OpCase& op_case)
      : c(op_case),
        signature(op_case.signature()),
        nest(op_info(op_case.kind).loops(signature)),
        whole(interpret_forward(signature, op_case.arrays(), op_case.random)) {}

  bool present(size_t input) const { return c.inputs[input].dtype != DType::None; }
  std::vector<bool> input_region(size_t i, const Ranges& ranges) const {
    return region(nest.inputs[i], signature.shape(i), ranges);
  }
  std::vector<bool> output_region(size_t i, const Ranges& ranges) const {
    return region(nest.outputs[i], signature.outputs[i].shape, ranges);
  }
  std::vector<bool> auxiliary_region(size_t i, const Ranges& ranges) const {
    return region(nest.auxiliaries[i], signature.auxiliaries[i].shape, ranges);
  }
  ForwardResult run(const OpCase& changed) const {
    return interpret_forward(signature, changed.arrays(), c.random);
  }
};

// Runs check(subject, rng) a few times on every case of several seeds.
template <class Check>
void for_all_cases(Check&& check) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const OpCase& c : op_cases(seed)) {
      Rng rng(seed, c.random.seed);
      SCOPED_TRACE(fmt::format("{} (seed {})", c.name, seed));
      try {
        const Subject subject(c);
        for (int trial = 0; trial < 3; ++trial) check(subject, rng);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

}  // namespace windlass::reference
