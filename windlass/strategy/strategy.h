// A strategy: decisions only. How each op is split, what is kept, where weights live, in which
// order the work is done; or packs of layers that pass through the devices. Plain data, written to
// plan files; lower() turns it into tasks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/strategy/layout.h"
#include "windlass/strategy/packs.h"

namespace windlass {

// What becomes of a saved tensor between the forward and the backward pass.
enum class MemoryAction : uint8_t {
  Keep,
  Regather,   // only the parts as they were produced are kept; redistributed again when read
  Recompute,  // its op is run again
  Offload,    // to host memory and back
  Compress8,  // lossy: changes the mathematics
  Compress4,
  Compress2,
};
std::string_view action_name(MemoryAction action);
// Bits of an element after compression; 0 for actions that are exact.
int compressed_bits(MemoryAction action);
// Actions that compress to at least so many bits, those that lose least first; none for 0.
std::vector<MemoryAction> compressions(int fewest_bits);
// Elements in so many bits each, in groups of 64 that share two ends of 16 bits; what is left over
// belongs to the last group, and a smaller tensor is one.
int64_t compressed_bytes(int64_t elements, int bits);

// Where a weight, its gradient and its optimizer state live. Replicas are the members of its group
// that hold the same part of the weight.
struct Residency {
  // 0: every replica holds everything. 1: each holds a share of the optimizer state, 2: and of the
  // gradient, 3: and of the weight.
  uint8_t zero = 0;
  bool host = false;         // the weight lives in host memory and is streamed to where it is used
  bool host_update = false;  // optimizer state lives in host memory and the host updates
  bool operator==(const Residency&) const = default;
};

enum class ScheduleKind : uint8_t {
  AllAtOnce,  // one stage: forward and backward of one micro-batch after the other
  GPipe,      // all forward, then all backward
  OneFOneB,   // one forward, one backward; interleaved if a group has several stages
};
std::string_view schedule_name(ScheduleKind kind);

// Forward ops [first, last) and who runs them, in both passes.
struct Stage {
  size_t first = 0, last = 0;
  int32_t group = 0;
  bool operator==(const Stage&) const = default;
};

// One of two kinds. With `packs`, everything else but name and cap is as it is by default: the
// training graph is of the whole batch (micro_batches is 1), which the packs cut themselves, and
// nothing is said of single ops, saved tensors and weights.
struct Strategy {
  std::string name;  // how it was made, for people
  int64_t micro_batches = 1;
  ScheduleKind schedule = ScheduleKind::AllAtOnce;
  std::vector<std::vector<DeviceId>> groups;
  std::vector<Stage> stages;  // cover the forward ops in order
  std::vector<Sharding> shardings;
  std::vector<int32_t> ops;         // by forward op: index into shardings
  std::vector<MemoryAction> saved;  // parallel to TrainingGraph::saved
  std::vector<Residency> weights;   // by update op: of the weight it updates
  Bytes bucket{25 << 20};           // weights and gradients are moved in batches of about this size
  // Demand paging instead of a plan: each device keeps what was used last, the rest is on the host.
  bool virtual_memory = false;
  int32_t prefetch = 2;  // ops ahead of its use that an offloaded tensor is fetched
  // Copies between a device and its host take turns with its kernels: nothing waits in memory for a
  // copy that runs beside. It takes least memory, whatever anything takes in time.
  bool in_turn = false;
  // Takes no more than this of each device, as if its limit were lower; 0: the limit alone counts.
  // A step that waits for memory may take longer where there is more of it: with a cap it is the
  // same step under every limit from there on.
  Bytes memory_cap{0};
  std::optional<PackStrategy> packs = {};
};

// Everything on one device, plainly.
Strategy plain_strategy(const TrainingGraph& training, DeviceId device);
// Packs of layers.
Strategy strategy_of_packs(PackStrategy packs, std::string name = "packs of layers");

// What it may take of a device.
Bytes usable_memory(const Device& device, const Strategy& strategy);

// The stage of each forward op.
std::vector<int32_t> stage_of_ops(const Strategy& strategy, size_t forward_ops);

// By group and member: members of a kind have pieces of the same size of every op, up to rounding.
// No kinds at all if all parts are equal. Throws Error{Input} if sizes are none.
std::vector<std::vector<int32_t>> size_kinds(const Strategy& strategy);

// Throws Error{Input} with the reason if the strategy is not one for this graph and machine: sizes
// that do not match, a loop that cannot be split, a part that would be empty, a group that names
// a device twice, stages that do not cover the ops, a schedule that does not fit the stages,
// compression of integers or masks; packs that are not those of the layers (check_packs()).
// Error{Unsupported} if packs cannot have parts of the batch (find_samples()).
void check_strategy(const TrainingGraph& training, const Machine& machine,
                    const Strategy& strategy);
// Its parts: the groups; everything but groups and shardings; one sharding.
void check_groups(const Machine& machine, const Strategy& strategy);
void check_outline(const TrainingGraph& training, const Strategy& strategy);
void check_sharding(const Op& op, const LoopNest& nest, const Sharding& sharding,
                    size_t group_size);

}  // namespace windlass
