// What a training run writes and reads: checkpoints, weights; and what tells it from others.
#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/runtime/trainer_state.h"

namespace windlass {

void Trainer::save_checkpoint(const std::string& path) {
  ensure(!in_row(), "a checkpoint beside steps of a row");
  write_checkpoint(path, state_->training, state_->executor.persistent(kReadShared),
                   state_->position, state_->options.executor.ranks);
}

void Trainer::load_checkpoint(const std::string& path) {
  State& state = *state_;
  ensure(!in_row(), "a checkpoint beside steps of a row");
  const RunPosition found =
      read_checkpoint(path, state.training, state.executor.persistent(), state.position.model);
  if (found.seed != state.options.seed)
    fail_input("{}: was written with --seed {}, this run has {}", path, found.seed,
               state.options.seed);
  state.sampler->at(found.data);  // refuses a position beyond the data
  state.position = found;
  state.position.micro_batches = state.micro_batches;
  state.weights_from = path;
}

void Trainer::save_weights(const std::string& path) {
  ensure(!in_row(), "weights beside steps of a row");
  const Ranks* ranks = state_->options.executor.ranks;
  write_weights(path, state_->training, state_->executor.persistent(0),
                ranks == nullptr ? 0 : ranks->rank());
}

Training::Fingerprints Trainer::fingerprints() const {
  const State& state = *state_;
  constexpr int64_t kLooked = 8;
  const int64_t size = state.data->size();
  uint64_t data = hash_bytes(std::as_bytes(std::span(&size, 1)));
  for (int64_t i = 0; i < std::min(kLooked, size); ++i) {
    // Spread over all of them.
    const std::vector<int64_t> sample = {i * (size - 1) / std::max<int64_t>(1, kLooked - 1)};
    for (const BatchSlot& slot : state.slots) {
      TensorType type = state.model.graph[slot.tensor].type;
      // A sample may have several rows: the labels of a text, one behind the other.
      if (slot.per_sample && !type.shape.empty())
        type.shape[0] =
            std::max<int64_t>(1, type.shape[0] / std::max<int64_t>(1, state.batch.samples));
      std::vector<std::byte> bytes(static_cast<size_t>(byte_size(type).value));
      state.filler->fill(slot.tensor, type, sample, bytes);
      data = data * 31 + hash_bytes(bytes);
    }
  }
  return {data, state.weights_fingerprint};
}

}  // namespace windlass
