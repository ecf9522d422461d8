// Every op in pieces: loops are cut at random, alone and together, into uneven parts and in blocks.

#include <cstdlib>

#include "windlass/graph/reference/piece_run.h"

namespace windlass::reference {
namespace {

// How many seeds to run: more than a few when asked for.
uint64_t seed_count() {
  const char* text = std::getenv("WINDLASS_PIECE_SEEDS");
  return text == nullptr ? 6 : std::strtoull(text, nullptr, 10);
}

void run_cut(const Subject& subject, const std::vector<size_t>& loops, Rng& rng) {
  const std::vector<Cut> cuts = random_cuts(subject.signature, subject.nest, loops, rng);
  SCOPED_TRACE(format_cuts(subject.nest, cuts));
  PieceRun run(subject, cuts);
  run.check_types();
  run.check_forward();
  run.check_backward(rng);
}

void run_case(const OpCase& c, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} (seed {})", c.name, seed));
  Rng rng(seed, c.random.seed);
  try {
    const Subject subject(c);
    for_each_cut_set(subject.nest,
                     [&](const std::vector<size_t>& loops) { run_cut(subject, loops, rng); });
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(RunPieces, MakeTheNumbersOfTheWholeOp) {
  for (uint64_t seed = 1; seed <= seed_count(); ++seed)
    for (const auto& cases : {op_cases(seed), hard_op_cases(seed), tied_op_cases(seed)})
      for (const OpCase& c : cases) run_case(c, seed);
}

}  // namespace
}  // namespace windlass::reference
