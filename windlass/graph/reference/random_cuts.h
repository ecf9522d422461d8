// Loops cut at random, for the tests that run ops in pieces.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/graph/op_piece.h"

namespace windlass::reference {

// One loop cut into ranges, of each of its blocks.
struct Cut {
  size_t loop = 0;
  int64_t blocks = 1;
  std::vector<Range> ranges;
};

// Two to four uneven parts of a loop, at times of each of several blocks.
inline Cut random_cut(const LoopNest& nest, size_t loop, bool in_blocks, Rng& rng) {
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

// Whether piece_of makes pieces of the cut: windows may reach across blocks.
inline bool can_cut(const Signature& signature, const LoopNest& nest, const Cut& cut) {
  try {
    for (const Range& range : cut.ranges) {
      std::vector<LoopPart> parts = whole_parts(nest);
      parts[cut.loop] = {range, cut.blocks};
      piece_of(signature, nest, parts);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Unsupported) throw;
    return false;
  }
  return true;
}

// Cuts of these loops that piece_of makes pieces of.
inline std::vector<Cut> random_cuts(const Signature& signature, const LoopNest& nest,
                                    const std::vector<size_t>& loops, Rng& rng) {
  std::vector<Cut> cuts;
  for (size_t loop : loops) {
    Cut cut = random_cut(nest, loop, rng.chance(0.4), rng);
    if (cut.blocks > 1 && !can_cut(signature, nest, cut)) cut = random_cut(nest, loop, false, rng);
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

// Calls visit(loops) with sets of loops to cut: each loop that can be cut, each two, and three.
template <class Visit>
void for_each_cut_set(const LoopNest& nest, const Visit& visit) {
  std::vector<size_t> loops;
  for (size_t l = 0; l < nest.loops.size(); ++l)
    if (nest.loops[l].role != LoopRole::Whole && nest.loops[l].size >= 2) loops.push_back(l);
  for (size_t a = 0; a < loops.size(); ++a) {
    visit(std::vector<size_t>{loops[a]});
    for (size_t b = 0; b < a; ++b) visit(std::vector<size_t>{loops[b], loops[a]});
  }
  if (loops.size() > 2) visit(std::vector<size_t>{loops[2], loops[0], loops[1]});
}

inline std::string format_cuts(const LoopNest& nest, const std::vector<Cut>& cuts) {
  std::string text;
  for (const Cut& cut : cuts) {
    text += fmt::format(" {} x{}:", nest.loops[cut.loop].name, cut.blocks);
    for (const Range& range : cut.ranges) text += fmt::format(" {}-{}", range.begin, range.end);
  }
  return text;
}

// A piece for every combination of ranges of the cuts.
struct CutPiece {
  std::vector<size_t> index;  // by cut
  OpPiece piece;
};
inline std::vector<CutPiece> cut_pieces(const Signature& signature, const LoopNest& nest,
                                        const std::vector<Cut>& cuts) {
  size_t count = 1;
  for (const Cut& cut : cuts) count *= cut.ranges.size();
  std::vector<CutPiece> pieces;
  for (size_t m = 0; m < count; ++m) {
    std::vector<LoopPart> parts = whole_parts(nest);
    CutPiece made;
    size_t rest = m;
    for (const Cut& cut : cuts) {
      made.index.push_back(rest % cut.ranges.size());
      parts[cut.loop] = {cut.ranges[made.index.back()], cut.blocks};
      rest /= cut.ranges.size();
    }
    made.piece = piece_of(signature, nest, parts);
    pieces.push_back(std::move(made));
  }
  return pieces;
}

}  // namespace windlass::reference
