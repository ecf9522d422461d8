// What becomes of what an op makes until the backward pass, where recomputation of single ops is
// among the options of the exact search.
//
// An op is run once, and what is saved of it stays or goes to the host; or it is run again in the
// backward pass, and nothing of it is kept. To be run again it must find its inputs there: kept as
// they were (in its layout, at their bytes, whether or not anybody else wants them in that layout),
// brought back from the host, made again themselves, or data and weights. A view is where its input
// is. So whether fates of two ops go together, and what that takes, is a matter of the pair: of the
// op that makes a tensor and of one that reads it. These are the rules of plan_recompute()
// (task/recompute.h) and of the emitter, as far as a strategy can say it: it knows actions for
// tensors that are saved, so what is not saved is not kept either.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/task/facts.h"

namespace windlass {

enum class Fate : uint8_t {
  Once,   // run once; what is saved of it stays. Of a view: its input is there as it was
  Away,   // the same on the host, where readers have to know; elsewhere Once has it as a variant
  Again,  // run again in the backward pass
  Gone,   // of a view: nobody wants it in the backward pass
};

class FateRules {
 public:
  // On a group of so many devices. Both must outlive it.
  FateRules(const TrainingGraph& training, const TrainingFacts& facts, size_t devices);

  // Whether ops can have other fates than being run once. Not where a view of a weight or constant
  // is read in the backward pass on several devices (it is seen and moved again in every step that
  // computes anything again), nor where a copy counts as its original (an identity).
  bool possible() const { return possible_; }
  // Of forward op i; the first one is how it is without recomputation.
  const std::vector<Fate>& of(size_t i) const { return fates_[i]; }

  // Whether results of op i on the host are a fate of their own.
  bool tells_away(size_t i) const { return apart_[i]; }

  // What the backward pass does with a tensor between two ops under their fates.
  struct Meeting {
    bool allowed = true;
    bool kept = false;   // as the reader has it, from the forward pass
    bool again = false;  // brought to the reader's layout once more
  };
  Meeting meet(size_t from, Fate from_fate, TensorId tensor, size_t to, Fate to_fate) const;

  // Whether the backward op of forward op i reads the tensor.
  bool reads_back(size_t i, TensorId tensor) const;
  // Whether input k of forward op i is data that stays for the backward pass on account of this
  // fate alone.
  bool holds_data(size_t i, size_t k, Fate fate) const;
  // What, beside structure and fates, meetings and held data of op i hang on.
  std::vector<int32_t> look_of(size_t i) const;

 private:
  // Where a tensor is in the backward pass.
  enum class Place : uint8_t { Nowhere, AsItWas, OnHost, Again };
  Place place_of(size_t op, Fate fate, TensorId tensor) const;
  bool is_view(size_t i) const;
  bool is_stored(TensorId tensor) const;  // saved, and owns its memory
  void find_readers();
  void find_wanted();
  void find_apart();
  std::vector<Fate> list_fates(size_t i) const;
  std::vector<Fate> list_of_view(size_t i) const;

  const TrainingGraph& training_;
  const TrainingFacts& facts_;
  bool one_device_;
  bool possible_ = true;
  std::vector<OpId> backward_;                // by forward op
  std::vector<std::vector<size_t>> readers_;  // by forward op: of what it makes
  std::vector<bool> read_back_;               // by forward op: views that the backward pass reads,
                                              // or of which it reads a view
  std::vector<bool> may_again_, wanted_;      // by forward op: itself; a reader of it
  std::vector<bool> apart_;                   // by forward op: Away is told from Once
  std::vector<std::vector<Fate>> fates_;      // by forward op
};

}  // namespace windlass
