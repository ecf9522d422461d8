// Every kernel on pieces: loops are cut at random, alone and together, into uneven parts and in
// blocks, and each piece is compared with the interpreter on the same piece.
//
// WINDLASS_KERNEL_PIECE_SEEDS=500 tries so many seeds in fp32, WINDLASS_KERNEL_PIECE_FIRST=37
// begins with that one: failures name theirs. 16-bit types are a fixed sample: where large terms
// cancel, what they round off is more than any tolerance.

#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/runtime/kernels/piece_kernels.h"

namespace windlass {
namespace {

using reference::OpCase;

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void run_pieces_of(const OpCase& c, DType dtype, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} (seed {}, {})", c.name, seed, dtype_name(dtype)));
  Rng rng(seed, c.random.seed);
  try {
    const reference::Subject subject(c);
    reference::for_each_cut_set(subject.nest, [&](const std::vector<size_t>& loops) {
      if (testing::Test::HasFailure()) return;  // one tells enough
      const auto cuts = reference::random_cuts(subject.signature, subject.nest, loops, rng);
      SCOPED_TRACE(reference::format_cuts(subject.nest, cuts));
      PieceKernels kernels(subject, cuts, dtype);
      kernels.check_forward(rng);
      kernels.check_backward(rng);
    });
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

class KernelPieces : public testing::TestWithParam<OpKind> {
 protected:
  static void check_all(DType dtype, uint64_t first, uint64_t count) {
    for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed)
      for (const auto& cases : {reference::op_cases(seed), reference::hard_op_cases(seed),
                                reference::tied_op_cases(seed)})
        for (const OpCase& c : cases)
          if (c.kind == GetParam()) run_pieces_of(with_dtype(c, dtype), dtype, seed);
  }
};

TEST_P(KernelPieces, AgreeWithTheReferenceInFp32) {
  check_all(DType::F32, number_of("WINDLASS_KERNEL_PIECE_FIRST", 1),
            number_of("WINDLASS_KERNEL_PIECE_SEEDS", sampled(uint64_t{3})));
}
TEST_P(KernelPieces, AgreeWithTheReferenceInBf16) { check_all(DType::BF16, 1, 1); }

std::vector<OpKind> kinds_in_pieces() {
  std::vector<OpKind> kinds;
  for (size_t i = 0; i < kOpKindCount; ++i)
    if (static_cast<OpKind>(i) != OpKind::Update) kinds.push_back(static_cast<OpKind>(i));
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Kinds, KernelPieces, testing::ValuesIn(kinds_in_pieces()),
                         [](const auto& test) { return std::string(op_info(test.param).name); });

}  // namespace
}  // namespace windlass
