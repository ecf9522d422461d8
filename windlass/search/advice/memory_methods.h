// Ways to save memory, simulated over batches: keep everything, recompute, offload, compress, and
// the best mixture that search finds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "windlass/plan/method_advice.h"
#include "windlass/search/advice/batch_size.h"
#include "windlass/strategy/baselines.h"

namespace windlass {

struct MethodsProblem {
  BatchProblem batch;
  SearchOptions search = {};              // of the mixture, at one batch
  std::vector<std::string> methods = {};  // names; empty: all
  std::string base = {};                  // that they are added to; empty: methods_base()
  std::vector<int64_t> batches = {};      // to simulate; empty: powers of two and the largest ones
  // Steps that were measured: move the predictions of their method, and those of plain training
  // all methods that have none. Error{Input} if a method or batch is not possible.
  std::vector<MeasuredPoint> measured = {};
  bool copies_in_turn = false;  // with kernels, as the runner does them
  int64_t most = 1 << 16;       // samples that are tried at most
  std::function<void(const std::string&)> progress = {};
};

// All names, plain first.
std::vector<std::string> memory_methods();

// "single", or "data-parallel".
std::string methods_base(const Machine& machine);
// One step of a method other than the mixture, as simulate_methods() has it.
PreparedStep prepare_method(const std::string& method, const BatchProblem& problem, int64_t batch,
                            const std::string& base = {});

// All devices side by side, each with its part of the batch, in one pass. The largest batch of each
// method is found by simulating steps inside of the limits, doubling and halving: exact where a
// method that fits a batch fits all smaller ones; that of the mixture is of what a search over
// frugal strategies tries. Where plain training fits, the mixture is plain training: nothing that
// saves memory makes a step faster. Throws Error{Input} if the model does not load with other
// batches.
std::vector<MethodCurve> simulate_methods(const MethodsProblem& problem);

}  // namespace windlass
