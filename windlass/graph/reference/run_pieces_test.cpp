// Every op in pieces: loops are cut at random, alone and together, into uneven parts and in blocks.

#include <algorithm>
#include <cstdlib>

#include "windlass/graph/reference/piece_run.h"

namespace windlass::reference {
namespace {

// How many seeds to run: more than a few when asked for.
uint64_t seed_count() {
  const char* text = std::getenv("WINDLASS_PIECE_SEEDS");
  return text == nullptr ? 6 : std::strtoull(text, nullptr, 10);
}

// Two to four uneven parts of a loop, at times of each of several blocks.
Cut random_cut(const LoopNest& nest, size_t loop, bool in_blocks, Rng& rng) {
  Cut cut;
  cut.loop = loop;
  int64_t size = nest.loops[loop].size;
  if (in_blocks)
    for (int64_t blocks : {2, 3, 4})
      if (size % blocks == 0 && size / blocks >= 2 && rng.chance(0.6)) cut.blocks = blocks;
  size /= cut.blocks;
  std::vector<int64_t> ends;
  for (int64_t i = 1; i < size; ++i) ends.push_back(i);
  const auto parts = rng.integer(2, std::min<int64_t>(4, size));
  while (static_cast<int64_t>(ends.size()) > parts - 1)
    ends.erase(ends.begin() + rng.integer(0, static_cast<int64_t>(ends.size()) - 1));
  ends.push_back(size);
  int64_t begin = 0;
  for (int64_t end : ends) {
    cut.ranges.push_back({begin, end});
    begin = end;
  }
  return cut;
}

std::string format_cuts(const LoopNest& nest, const std::vector<Cut>& cuts) {
  std::string text;
  for (const Cut& cut : cuts) {
    text += fmt::format(" {} x{}:", nest.loops[cut.loop].name, cut.blocks);
    for (const Range& range : cut.ranges) text += fmt::format(" {}-{}", range.begin, range.end);
  }
  return text;
}

void run_cut(const Subject& subject, const std::vector<size_t>& loops, Rng& rng) {
  std::vector<Cut> cuts;
  for (size_t loop : loops) {
    Cut cut = random_cut(subject.nest, loop, rng.chance(0.4), rng);
    if (cut.blocks > 1) {
      try {
        PieceRun(subject, {cut});
      } catch (const Error& error) {
        // Windows reach across blocks.
        ASSERT_EQ(error.kind(), ErrorKind::Unsupported) << error.what();
        cut = random_cut(subject.nest, loop, false, rng);
      }
    }
    cuts.push_back(std::move(cut));
  }
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
    std::vector<size_t> loops;
    for (size_t l = 0; l < subject.nest.loops.size(); ++l)
      if (subject.nest.loops[l].role != LoopRole::Whole && subject.nest.loops[l].size >= 2)
        loops.push_back(l);
    for (size_t a = 0; a < loops.size(); ++a) {
      run_cut(subject, {loops[a]}, rng);
      for (size_t b = 0; b < a; ++b) run_cut(subject, {loops[b], loops[a]}, rng);
    }
    if (loops.size() > 2) run_cut(subject, {loops[2], loops[0], loops[1]}, rng);
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
