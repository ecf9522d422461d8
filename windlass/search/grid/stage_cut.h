// Where a pipeline is cut, and which group of devices runs which part: exact, by dynamic
// programming over the pieces of the network.
//
// A step of m micro-batches takes about one pass through all stages and m - 1 periods. A stage that
// is the k-th from the end does one forward and one backward pass in turn and is k micro-batches
// ahead, so that what comes back to it has been on its way for k periods. So a period is at least
// the mean of what any stages in a row take, with the ways between them, there and back: of a
// single one what it takes itself, of more than one also what is waited for on the ways. Stages
// that take less than the slowest hide the ways beside it.
//
// A stage holds its weights and what is kept of the micro-batches that it is between the passes of;
// the earlier a stage, the more there are. What can be computed again need not be kept, where that
// takes least time for its bytes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace windlass {

struct StageProblem {
  // Groups that are alike: the same devices, the same limit. They are used in their order.
  struct Kind {
    std::vector<int32_t> groups = {};
    int64_t limit = INT64_MAX;  // bytes of a device
    // By piece, on a device of a group:
    std::vector<double> time = {};       // of one micro-batch, both passes
    std::vector<int64_t> standing = {};  // weights, their gradients and optimizer state
    std::vector<int64_t> kept = {};      // of one micro-batch between the passes
    // By piece: while it is worked on, beside what is kept.
    std::vector<int64_t> beside = {};
    // By piece: of what is kept, what can be computed again instead. None: nothing of any.
    struct Again {
      int64_t bytes = 0;
      double time = 0;
    };
    std::vector<std::vector<Again>> again = {};
  };
  std::vector<Kind> kinds = {};
  // By piece: bytes that go on to the next one.
  std::vector<int64_t> passed = {};
  // By group and next group: time of a byte, and of none.
  struct Pass {
    double start = 0, per_byte = 0;
  };
  std::vector<std::vector<Pass>> passes = {};
  int64_t micro_batches = 1;

  size_t pieces() const { return passed.size(); }
  size_t groups() const { return passes.size(); }
};

struct StageCut {
  std::vector<size_t> ends = {};     // of the stages, in pieces
  std::vector<int32_t> groups = {};  // that run them
  double time = 0;                   // of a step, as above
};

// What a cut costs; none if a stage is empty or does not fit.
std::optional<double> cost_of(const StageProblem& problem, const std::vector<size_t>& ends,
                              const std::vector<int32_t>& groups);

// The least time, every group with a stage of its own; none if there is none within the limits. For
// one period, points of (what stages in a row take above it, time through all of them) give the
// least time through exactly; periods are halved as long as a step that is shorter by more than
// `near` of it may lie between.
std::optional<StageCut> cut_stages(const StageProblem& problem, double near = 1e-4);

}  // namespace windlass
