// Packs of layers as a task graph, for the simulator.
//
// Times and peaks come from a layer profile, bytes go over the machine's links. Beside what
// strategy/packs.h says:
//  - A forward pass frees what a layer computes besides its output: a task needs the largest of its
//    layers, not their sum. A backward pass holds the activations of the whole pack.
//  - Micro-batches at the ends of a task are computed piece by piece, so that the first one waits
//    for each piece of weights alone and the last one releases each; those between in one go.
//  - Replicas read 1/replicas of the weights each and gather the rest from each other; gradients
//    are summed the same way back, and each replica's share is updated on the host by itself, as
//    fast as the profile says for one process.
//  - A piece of weights is loaded again when its update in the step before has ended. No device
//    computes for a step before the loss of the step before has been: those with little to do would
//    run further and further ahead, and fill their memory with outputs that nobody takes.
//  - An update on the device takes the time of its bytes at the bandwidth of the device's memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "windlass/task/packs/chain_tables.h"
#include "windlass/task/packs/pack_teams.h"
#include "windlass/task/packs/swap_volume.h"

namespace windlass {

// What a buffer holds, or what a task makes or moves.
enum class PackData : uint8_t {
  Weights,    // of layers, with their buffers
  Gradients,  // of the weights of layers
  Optimizer,  // state of layers
  Shares,     // of weights: what one replica reads of them
  Input,      // of the first layer
  Backward,   // the gradient of the input of the first layer
  Saved,      // what the backward pass of the layers reads beside weights and input
};
// Layers, and samples of a pipeline's share (of Input and later); or a part of one layer's weights.
struct PackLabel {
  PackData what = PackData::Weights;
  Pack layers;
  int64_t begin = 0, end = 0;
  int32_t part = 0, parts = 1;
  bool operator==(const PackLabel&) const = default;
};

// "layer 3", "layers 3-7"; and why nothing can be lowered.
std::string layers_text(Pack layers);
std::string small_window_text(const PackStrategy& strategy);

// The tasks of one or more steps in a row.
struct PackSteps {
  const TaskGraph* graph = nullptr;
  const TaskTimes* times = nullptr;
  std::vector<size_t> begin;  // first task of each step, and the end
  Repetition repetition;      // if there are several
  // By task and by buffer, if asked for. Of computation: what goes through the layers.
  std::vector<PackLabel> tasks, buffers;
  SwapVolume volume;  // of a step, of the whole machine
};

// Lowers strategy after strategy for one chain on one machine, which must outlive it.
class PackLowering {
 public:
  PackLowering(ChainTables& chain, const Machine& machine) : chain_(chain), machine_(machine) {}
  ~PackLowering();

  // Null if state_bytes cannot hold a pack. The strategy must be of the chain: packs that cover it,
  // lists by backward pack, micro-batches that the profile knows. Valid until the next call.
  // `labels`: for those who want to know what tasks and buffers are; simulating them does not.
  const PackSteps* lower(const PackStrategy& strategy, int64_t minibatch, int32_t steps,
                         bool labels = true);

 private:
  friend class PackProgram;
  ChainTables& chain_;
  const Machine& machine_;
  std::map<std::pair<int32_t, int32_t>, PackTeams> teams_;
  // Working sets by (forward, micro-batch); entries by layer.
  std::map<std::pair<bool, int64_t>, std::vector<int64_t>> working_sets_;
  // What was asked for last of each pass, bytes or nanoseconds: micro-batches of a pack follow each
  // other.
  struct Known {
    Pack layers;
    int64_t size = -1, value = 0;
  };
  std::array<Known, 2> last_set_, last_time_;
  void set_marks(LaneId compute);

  TaskTimes times_;
  std::vector<TaskId> marks_;
  PackSteps result_;
  bool labels_ = true;
};

}  // namespace windlass
