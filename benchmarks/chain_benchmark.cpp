// The frontier of a chain of blocks with five options each: kept, kept in 8 and in 4 bits, computed
// again inside of the block, sent to the host; and runs of blocks that are passed. One core.
//
// For comparison: rotor's recurrence without options and offload, 500 slots of memory, takes 25 ms
// for 100 blocks and 0.4 s for 200 on such a core.

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "windlass/base/rng.h"
#include "windlass/search/chain/chain.h"

namespace {

using namespace windlass;

// Of this process: other programs on the machine do not count.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Like a layer of a transformer: the input is a tenth of what the backward pass wants.
ChainBlock make_block(int64_t megabytes, int64_t microseconds, bool compress, bool send) {
  const int64_t bytes = megabytes << 20, time = microseconds * 1000;
  ChainBlock block;
  block.input = bytes / 10;
  block.pass = time;
  block.pass_bytes = bytes * 3 / 10;
  const ChainOption keep = {.forward = time,
                            .backward = 2 * time,
                            .kept = bytes,
                            .forward_bytes = bytes / 10,
                            .backward_bytes = bytes * 2 / 10};
  ChainOption again = keep;  // all but the ends and a fifth of the rest
  again.kept = bytes / 3;
  again.backward = 2 * time + time / 3;
  again.backward_bytes += bytes - again.kept;
  block.options = {keep, again};
  for (const int64_t part : {2, 4}) {
    if (!compress) break;
    ChainOption small = keep;
    small.kept = bytes / part;
    small.forward += time / 20;
    small.backward += time / 20;
    small.backward_bytes += bytes;
    small.again = false;
    block.options.push_back(small);
  }
  if (send) {
    ChainOption away = keep;
    away.kept = block.input;
    away.sent = bytes - block.input;
    away.forward_bytes += away.sent;
    away.backward_bytes += away.sent;
    away.again = false;
    block.options.push_back(away);
  }
  return block;
}

Chain make_chain(size_t blocks, bool alike, bool compress, bool send) {
  Chain chain;
  Rng rng(7);
  for (size_t i = 0; i < blocks; ++i) {
    const bool end = i == 0 || i + 1 == blocks;
    chain.blocks.push_back(
        alike && !end ? make_block(100, 2000, compress, send)
                      : make_block(rng.integer(50, 200), rng.integer(1000, 4000), compress, send));
  }
  if (send) {
    // 30 MiB in a millisecond; a unit is half of what goes out during a block.
    chain.link_unit = 30 << 20;
    chain.unit_time = 1000000;
    chain.most_units = 8;
  }
  return chain;
}

}  // namespace

int main() {
  std::printf("%-10s %7s %-9s %-22s %-7s %8s %7s %10s %s\n", "blocks", "mode", "alike", "options",
              "points", "ms", "exact", "error MiB", "most frugal to fastest: time, bytes");
  for (const size_t blocks : {50u, 100u})
    for (const bool alike : {true, false})
      for (const int kinds : {0, 1, 2, 3})
        for (const ChainMode mode : {ChainMode::Single, ChainMode::Nested})
          for (const int64_t resolution : {0, 1}) {
            // Nested lists of blocks that differ take seconds.
            if (blocks > 50 && !alike && mode == ChainMode::Nested) continue;
            const Chain chain = make_chain(blocks, alike, (kinds & 1) != 0, (kinds & 2) != 0);
            int64_t all = 0;
            for (const ChainBlock& block : chain.blocks) all += block.options[0].kept;
            double best = 1e9;
            ChainSolverOptions options = {.mode = mode, .resolution = resolution * (all / 1024)};
            size_t points = 0;
            bool exact = false;
            int64_t error = 0;
            ChainCost first, last;
            for (int round = 0; round < 3; ++round) {
              const double start = now();
              const ChainSolver solver(chain, options);
              best = std::min(best, now() - start);
              points = solver.frontier().size();
              exact = solver.exact();
              error = solver.error_bytes();
              first = solver.frontier().front();
              last = solver.frontier().back();
              if (best > 0.5) break;
            }
            std::printf(
                "%-10zu %7s %-9s %-22s %-7zu %8.2f %7s %10.0f %.2f %.3f\n", blocks,
                mode == ChainMode::Single ? "single" : "nested", alike ? "alike" : "different",
                kinds == 0   ? "keep, recompute"
                : kinds == 1 ? "+ quantise"
                : kinds == 2 ? "+ offload"
                             : "+ quantise + offload",
                points, best * 1e3, exact ? "yes" : "no", static_cast<double>(error) / (1 << 20),
                static_cast<double>(first.time) / static_cast<double>(last.time),
                static_cast<double>(first.bytes) / static_cast<double>(last.bytes));
          }
  return 0;
}
