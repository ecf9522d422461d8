// A runtime that runs nothing, for tests: what it takes follows from sizes.
#pragma once

#include "windlass/run/runtime.h"

namespace windlass {

class MadeUpRuntime : public Runtime {
 public:
  Nanoseconds measure_update(const UpdateVariant&, int64_t elements, int, int) override {
    return 10 + elements;
  }
  Nanoseconds measure_compression(const CompressionVariant&, int64_t elements, int, int) override {
    return 20 + elements;
  }
  std::unique_ptr<Training> train(const Model&, const TrainingGraph&, const SimulatedStep&,
                                  const Machine&, const TrainerOptions&) override {
    return nullptr;
  }
};

}  // namespace windlass
