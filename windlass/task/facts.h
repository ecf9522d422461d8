// What lowering wants to know of a training graph, whatever the strategy.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "windlass/graph/differentiate.h"

namespace windlass {

struct TrainingFacts {
  explicit TrainingFacts(const TrainingGraph& training);

  enum class Origin : uint8_t { Made, Weight, Data, Fixed };
  std::vector<Origin> origin;         // by tensor
  std::vector<uint8_t> element_size;  // by tensor, bytes
  std::vector<TensorId> roots;        // storage of each tensor
  std::vector<int32_t> saved_index;   // by tensor: index of its storage in `saved`, or -1
  std::vector<int32_t> update_index;  // by tensor: weights, which update op; or -1

  // An update op: its tensors, and the bytes of an element.
  struct Update {
    TensorId weight, gradient;
    int64_t weight_size = 0, gradient_size = 0;
    int64_t state_size = 0;  // of optimizer state and master copy together
  };
  std::vector<Update> updates;
  // Terms of the gradient of each updated weight, and the sums of them that need no task of their
  // own: terms are added up where they are made.
  struct Term {
    int32_t update = -1;
    OpId producer;
  };
  std::vector<Term> terms;       // by update
  std::vector<int32_t> term_of;  // by tensor: update whose gradient it is a term of
  // Terms that are read by others as well (a weight that is added to an activation), with their
  // update: they take a task to be added.
  std::vector<std::pair<int32_t, TensorId>> shared_terms;
  std::vector<bool> dropped;                        // by op
  std::vector<std::pair<OpId, int32_t>> first_use;  // by update: forward op and input
};

}  // namespace windlass
