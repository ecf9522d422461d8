// A chain of blocks under a memory limit: what each block keeps for its backward pass, what is
// computed again, what goes to the host. All limits at once.
//
// The recurrence is that of rotor (Beaumont et al., arXiv 1911.13214) with options per block; the
// state of the copy engine follows POFO (Beaumont et al., NeurIPS 2021). Bytes are exact: instead
// of a value for each of some slots of memory, a list of (time, bytes) points none of which is
// better than another in both. chain.cpp has the recurrence.
//
// What is counted:
//  - A block that is run with an option holds `kept` bytes until its backward pass has ended, and
//    `forward_bytes` or `backward_bytes` beside while it runs.
//  - A block that is passed keeps nothing; `pass_bytes` are live while it runs. A run of passed
//    blocks starts from an input that is stored, and is run again, from there, when the backward
//    pass of all that follows has ended. The input of the first block of all is not counted.
//  - Bytes that go to the host leave through one copy engine in the order of the blocks, while
//    later blocks run. What has not left counts as live. The way back is taken as the mirror image
//    of the way out, since a backward block takes at least as long as its forward block: the same
//    bytes are there before the backward pass wants them, and waiting costs twice.
//  - With several micro-batches in flight, all but one have been through the forward pass and hold
//    what the chain keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace windlass {

// One way to run a block and keep what its backward pass wants.
struct ChainOption {
  int64_t forward = 0, backward = 0;  // ns; what is computed again inside of the block included
  int64_t kept = 0;                   // bytes, the output of the block included unless it is sent
  int64_t forward_bytes = 0, backward_bytes = 0;
  int64_t sent = 0;           // bytes that go to the host and come back
  bool sends_output = false;  // the output is among them: it is live again when the next block is
  bool first = true;          // for the first run of the block
  bool again = true;          // for a second run; not if something is sent
};

struct ChainBlock {
  std::vector<ChainOption> options;
  int64_t input = 0;  // bytes
  int64_t pass = 0;   // ns, forward without keeping anything
  int64_t pass_bytes = 0;
};

struct Chain {
  std::vector<ChainBlock> blocks;
  int64_t floor = 0;      // bytes that are live at some moment whatever is chosen
  int64_t in_flight = 1;  // micro-batches
  // The copy engine. What waits is counted in whole units, rounded up; the time of an option or
  // pass takes off what the engine moves meanwhile. 0: nothing is sent.
  int64_t link_unit = 0;   // bytes
  int64_t unit_time = 0;   // ns that a unit takes
  int32_t most_units = 0;  // that may wait at a time
};

enum class ChainMode : uint8_t {
  Single,  // what is computed again is kept then
  Nested,  // it may be dropped and computed once more
};

struct ChainSolverOptions {
  ChainMode mode = ChainMode::Single;
  // Points of a list that are this close in bytes to a faster one are left out. 0: none, and the
  // frontier is exact.
  int64_t resolution = 0;
  // Blocks in a row that may be passed; 0: any number. The frontier is of the schedules that keep
  // to it.
  size_t longest_pass = 0;
};

struct ChainCost {
  int64_t time = 0;
  int64_t bytes = 0;
  bool operator==(const ChainCost&) const = default;
};

// What is done, in order.
struct ChainStep {
  enum class Kind : uint8_t {
    Store,  // the input of the block is kept from here until it has been run again
    Send,   // the same, on the host
    Pass,   // forward, nothing is kept
    Keep,   // forward with an option
    Wait,   // until the copy engine has nothing left to do, here and on the way back
    Back,   // backward with the option
  };
  Kind kind = Kind::Pass;
  int32_t block = 0;
  int32_t option = -1;
  bool operator==(const ChainStep&) const = default;
};

class ChainSolver {
 public:
  // Throws Error{Input} if a block has no option, or none for a second run.
  explicit ChainSolver(const Chain& chain, const ChainSolverOptions& options = {});

  // Bytes ascending, times descending. Never empty.
  const std::vector<ChainCost>& frontier() const { return frontier_; }
  // Whether nothing better exists at any limit. Lost if a resolution left points out, or with
  // several micro-batches in flight (lists are pruned by time and bytes, not by what is kept).
  bool exact() const { return exact_; }
  // No schedule is faster than a point of the frontier with so many bytes less.
  int64_t error_bytes() const { return error_bytes_; }
  std::vector<ChainStep> schedule(size_t point) const;

 private:
  // A point of a list. How it came to be is found again when a schedule is asked for.
  struct Entry {
    int64_t time = 0, bytes = 0;
    int64_t kept = 0;  // of all that follows
  };
  using List = std::vector<Entry>;
  // What waits for the copy engine before a block, and whether its input was sent.
  struct State {
    size_t block = 0;
    int32_t waiting = 0;
    bool sent = false;
  };
  // Block `first` with an option, or blocks [first, next.block) passed and run again later.
  struct Step {
    size_t first = 0;
    int32_t option = -1;
    bool wait = false, end = false;
    State next = {};
    const List* following = nullptr;  // points of what follows; none: nothing
    const List* again = nullptr;      // of the blocks that are run again
    int64_t time = 0;                 // beside what the lists say
    int64_t bytes = 0;                // while it is under way
    int64_t offset = 0;               // beside the blocks that are run again
    int64_t kept = 0;                 // while what follows runs
    int64_t in_flight = 1;
  };
  using Steps = std::vector<Step>;

  void check() const;
  void find_classes();
  void solve_inner();
  void solve_outer();
  void inner_steps(size_t first, size_t last, Steps& steps) const;
  void outer_steps(const State& from, Steps& steps) const;
  void add_step(const Step& step, int32_t left, int64_t sent, Steps& steps) const;
  static int64_t bytes_of(const Step& step, const Entry& following, const Entry& again);
  void combine(const Step& step, List& list);
  void fill_stream(const Step& step, const Entry* x, const Entry* end, const List& again);
  void sort_stream();
  void merge(List& list, size_t from = 0);
  void thin(List& list) const;
  std::pair<const Step*, std::pair<size_t, size_t>> origin(const Steps& steps,
                                                           const Entry& entry) const;
  void emit_outer(const State& state, size_t entry, std::vector<ChainStep>& steps) const;
  void emit_inner(size_t first, size_t last, size_t entry, std::vector<ChainStep>& steps) const;

  size_t size() const { return chain_.blocks.size(); }
  size_t index(const State& state) const {
    return (state.block * static_cast<size_t>(chain_.most_units + 1) +
            static_cast<size_t>(state.waiting)) *
               2 +
           (state.sent ? 1 : 0);
  }
  const List& inner_list(size_t first, size_t last) const {
    return inner_[static_cast<size_t>(inner_of_[first * size() + last])];
  }
  int32_t units(int64_t bytes) const;
  int32_t after(size_t first, size_t last, int32_t waiting) const;

  const Chain chain_;
  const ChainSolverOptions options_;
  const size_t longest_pass_;
  std::vector<int32_t> class_;       // by block: the first that is the same
  std::vector<int64_t> moved_;       // by block: units the engine moves before it
  std::vector<int32_t> inner_of_;    // by first and last block: list of inner_
  std::vector<List> inner_, outer_;  // of different runs of blocks; by state
  List stream_, room_;
  std::vector<ChainCost> frontier_;
  bool exact_ = true;
  int64_t error_bytes_ = 0;
};

}  // namespace windlass
