// Batches: what each input of a model gets of a data set, sample by sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "windlass/data/dataset.h"
#include "windlass/data/sampler.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/graph.h"
#include "windlass/graph/index_ranges.h"

namespace windlass {

// An input or label of a network and what it wants of a sample.
struct BatchSlot {
  TensorId tensor;
  SlotSpec spec;
  bool per_sample = true;         // has the batch as its first axis
  IndexUse use = IndexUse::None;  // of integers: what their range counts
};

// Found from the network: integers that are looked up in a table are tokens below the number of its
// rows, labels of as many are the tokens that follow them; integers with "position" in their name
// are places; floating-point images, flat ones too, are images and a single label is their class,
// below the number of classes; other inputs are plain numbers. The range of integers is that of
// graph/index_ranges.h.
std::vector<BatchSlot> batch_slots(const Graph& network, const BatchAxes& batch);

// Opens `spec` (data/dataset.h), or a safetensors file that has for each input a tensor of its name
// whose first axis counts the samples.
std::unique_ptr<Dataset> open_batches(const std::string& spec, const Graph& network,
                                      const std::vector<BatchSlot>& slots,
                                      const DatasetOptions& options);

// Fills whole inputs from samples of a data set that was opened for the same slots.
class BatchFiller {
 public:
  BatchFiller(const Dataset& data, const Graph& network, std::vector<BatchSlot> slots);

  // `samples` are those of the micro-batch. `out` has the type of the tensor in `piece`, the
  // network of one micro-batch.
  void fill(TensorId tensor, const TensorType& type, std::span<const int64_t> samples,
            std::span<std::byte> out) const;

 private:
  const Dataset& data_;
  std::vector<BatchSlot> slots_;
};

}  // namespace windlass
