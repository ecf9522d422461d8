// Checkpoints: all that a run needs to go on exactly where it was.
//
// A safetensors file; of several ranks a file of each, and an index as the tools of Hugging Face
// read it. Weights and running statistics stand under their own names, so that others can read
// them; optimizer state under "optimizer." and the weight's name. The metadata has the rest: how
// far the run is, and check sums of every tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/data/sampler.h"
#include "windlass/graph/differentiate.h"
#include "windlass/run/training.h"

namespace windlass {

class Ranks;

// How far a run is, and what it is a run of.
struct RunPosition {
  int64_t step = 0;           // steps done
  SamplerPosition data = {};  // of the next step
  uint64_t seed = 0;          // of data order, dropout and initial values
  uint64_t model = 0;         // fingerprint of the network
  int64_t micro_batches = 1;  // of a step: where sums are rounded
  bool operator==(const RunPosition&) const = default;
};

// The checkpoint appears complete under its name, or not at all; what was there before stays until
// then. Throws Error{Runtime} if the disk is full or fails. Of several ranks, which all call it,
// each writes the tensors whose reader it is (kReadShared) into a file of its own; `path` is their
// index (checkpoint_path()), renamed into place when all are written.
void write_checkpoint(const std::string& path, const TrainingGraph& training,
                      const std::vector<PersistentTensor>& tensors, const RunPosition& position,
                      Ranks* ranks = nullptr);

// Fills the tensors. Throws Error{Input} beginning with the path, and changes nothing, if the file
// is broken (a check sum differs), or of another model or batch (fingerprints are compared), or of
// another optimizer.
RunPosition read_checkpoint(const std::string& path, const TrainingGraph& training,
                            const std::vector<PersistentTensor>& tensors, uint64_t model);

// Those of the run that wrote it; 0 if that cannot be told.
int64_t checkpoint_micro_batches(const std::string& path);

// Weights and running statistics alone, in one file: by the rank that reads them all. Others bring
// what they have.
void write_weights(const std::string& path, const TrainingGraph& training,
                   const std::vector<PersistentTensor>& tensors, int32_t rank = 0);

// Throws Error{Input} beginning with the path if it is no checkpoint, or is not whole: cut off, or
// with a tensor whose check sum differs.
void check_checkpoint(const std::string& path);

}  // namespace windlass
