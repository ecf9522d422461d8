// Checkpoints: all that a run needs to go on exactly where it was.
//
// A safetensors file. Weights and running statistics stand under their own names, so that others
// can read them; optimizer state under "optimizer." and the weight's name. The metadata has the
// rest: how far the run is, and check sums of every tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "windlass/data/sampler.h"
#include "windlass/graph/differentiate.h"
#include "windlass/run/training.h"

namespace windlass {

// How far a run is, and what it is a run of.
struct RunPosition {
  int64_t step = 0;           // steps done
  SamplerPosition data = {};  // of the next step
  uint64_t seed = 0;          // of data order, dropout and initial values
  uint64_t model = 0;         // fingerprint of the network
  int64_t micro_batches = 1;  // of a step: where sums are rounded
  bool operator==(const RunPosition&) const = default;
};

// The file appears complete under its name, or not at all; what was there before stays until then.
// Throws Error{Runtime} if the disk is full or fails.
void write_checkpoint(const std::string& path, const TrainingGraph& training,
                      const std::vector<PersistentTensor>& tensors, const RunPosition& position);

// What another rank writes, of this one: reads the same tensors in the same order, so that their
// bytes go there. `optimizer`: of a checkpoint, not of weights alone.
void help_write(const TrainingGraph& training, const std::vector<PersistentTensor>& tensors,
                bool optimizer);

// Fills the tensors. Throws Error{Input} beginning with the path, and changes nothing, if the file
// is broken (a check sum differs), or of another model or batch (fingerprints are compared), or of
// another optimizer.
RunPosition read_checkpoint(const std::string& path, const TrainingGraph& training,
                            const std::vector<PersistentTensor>& tensors, uint64_t model);

// Those of the run that wrote it; 0 if that cannot be told.
int64_t checkpoint_micro_batches(const std::string& path);

// Weights and running statistics alone.
void write_weights(const std::string& path, const TrainingGraph& training,
                   const std::vector<PersistentTensor>& tensors);

// Throws Error{Input} beginning with the path if the file is no checkpoint, or is not whole: cut
// off, or with a tensor whose check sum differs.
void check_checkpoint(const std::string& path);

// "checkpoint-00000120.safetensors": the file of a step in a folder.
std::string checkpoint_path(const std::string& folder, int64_t step);

struct FoundCheckpoint {
  std::string path;                           // empty if the folder has none
  std::vector<std::string> passed_over = {};  // what is wrong with newer ones, a message each
};
// The newest one in a folder that is whole. Throws Error{Input} if there are some, but none is.
FoundCheckpoint newest_checkpoint(const std::string& folder);
// What --resume means by a path: the newest one of a folder, or the file itself. A folder without
// checkpoints is where a run that was killed early left off: then there is no path.
FoundCheckpoint find_checkpoint(const std::string& path);
// Of the checkpoints up to `step`, removes all but the newest `keep`; and what runs that were
// killed while they wrote left unfinished. Later ones stay: they may be damaged, and must not count
// in place of those that are whole.
void remove_old_checkpoints(const std::string& folder, int64_t step, size_t keep);

}  // namespace windlass
