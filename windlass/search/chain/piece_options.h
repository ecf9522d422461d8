// What can become of the saved tensors of one piece: the assignments of actions that are worth a
// choice in the chain, each with its price.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/chain/chain.h"
#include "windlass/search/chain/chain_pieces.h"
#include "windlass/search/chain/measure_step.h"

namespace windlass {

using Actions = std::vector<MemoryAction>;  // parallel to ChainPiece::saved

// Nanoseconds to compress a byte of a saved tensor, and to get one back.
struct CompressionTimes {
  double out = 0, back = 0;
};

// A piece by small integers: what is recomputed for what, and what lives how long.
class PieceModel {
 public:
  PieceModel(const TrainingGraph& training, const TrainingFacts& facts, const Strategy& strategy,
             const StepMeasure& measure, const std::vector<bool>& decides, const ChainPiece& piece,
             int64_t standing, const CompressionTimes& compression);

  // The price of actions, the input of the piece being there. Recomputation follows
  // plan_recompute: right before the first reader, each op once. What is sent is live while the
  // piece runs.
  ChainOption price(const Actions& actions) const;
  // Everything is computed again and kept, while the gradients of later pieces are there.
  ChainOption price_again() const;
  // Time and bytes of a forward pass that keeps nothing.
  Nanoseconds pass_time() const { return forward_time_; }
  int64_t pass_bytes() const;

  size_t size() const { return saved_.size(); }
  int32_t output() const { return output_; }  // index into ChainPiece::saved
  int64_t bytes(size_t saved) const { return saved_[saved].bytes; }
  bool compressible(size_t saved) const { return saved_[saved].compressible; }
  MemoryAction keep(size_t saved) const { return saved_[saved].keep; }
  Nanoseconds producer_time(size_t saved) const {
    return forward_[static_cast<size_t>(saved_[saved].producer)].time;
  }
  // Equal for pieces whose options are the same but for the bytes beside.
  uint64_t hash() const { return hash_; }

 private:
  struct Saved {
    int64_t bytes = 0;
    int64_t gathered = 0;  // of copies that are made when it is computed again
    int64_t element_size = 4;
    int32_t producer = 0;      // forward op of the piece
    int32_t last_forward = 0;  // that reads it
    int32_t last_backward = -1;
    MemoryAction keep = MemoryAction::Keep;
    bool compressible = false;
  };
  struct Forward {
    Nanoseconds time = 0;
    int64_t beside = 0;
    std::vector<int32_t> reads;  // ops of the piece, or ~saved for what it decides about
    std::vector<int32_t> makes;  // saved
  };
  struct Backward {
    Nanoseconds time = 0;
    int64_t beside = 0;
    std::vector<int32_t> reads;  // as above
    std::vector<int32_t> ends;   // saved that it reads last
  };

  int64_t stored(size_t saved, MemoryAction action) const;
  void forward_pass(const Actions& actions, int64_t& peak) const;

  std::vector<Saved> saved_;
  std::vector<Forward> forward_;
  std::vector<Backward> backward_;
  std::vector<int32_t> ends_before_;  // saved that only the next piece reads in its backward pass
  int32_t output_ = -1;
  int64_t standing_;  // bytes that are live whatever runs
  Nanoseconds forward_time_ = 0, backward_time_ = 0;
  CompressionTimes compression_;
  uint64_t hash_ = 0;
};

struct PieceChoices {
  size_t most = 8;    // of what is recomputed
  bool send = false;  // to the host
  int compress = 0;   // fewest bits, as SearchOptions has it
};

// Sets of tensors that are computed again: all of them for small pieces, otherwise what two greedy
// walks pass (dropping from everything kept, keeping from everything dropped), without those that
// are worse in time, bytes and peak. With some of these, the rest is sent or compressed. The first
// keeps everything.
std::vector<Actions> piece_actions(const PieceModel& model, const PieceChoices& choices);

}  // namespace windlass
