// What the walk of emitter.h keeps in mind: values, sums of gradients, weights, updates.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/strategy/strategy.h"
#include "windlass/task/task_graph.h"

namespace windlass {

struct EmitterTypes {
  enum Phase : uint8_t { kForward, kAgain };

  struct Value {
    int32_t group = -1;
    int32_t layout = -1;
    BufferId buffer = {};   // of the group's first team; those of the others follow
    TaskId ready = {};      // after which it is there; none: from the start
    int32_t view = -1;      // of the buffer; -1: what the buffer holds
    int32_t next = -1;      // next value of the same tensor
    bool per_team = false;  // `ready` is the task of the first team; those of the others follow
    bool computed = false;  // by tasks on the teams' compute lanes
  };

  // After which the results of an op are there, as in Value. What tasks make is computed if it is
  // per team.
  struct Done {
    TaskId ready;
    bool per_team = false;
  };

  // A saved value that left its memory.
  struct Stash {
    Value stored;  // its buffers: on the host, or compressed
    Value restored;
    bool out = false, back = false;
  };

  // Gradient of a weight, summed over micro-batches on one group.
  struct Sum {
    Value value;
    int32_t micro_batch = -1;  // of sums that are reduced each time
    int64_t elements = 0;
    bool begun = false;  // holds a term
    bool queued = false;
  };

  // A streamed weight at home, for one run of a group.
  struct Streamed {
    int32_t run = -1;
    Value value;
  };

  // A trained weight. By update op.
  struct WeightState {
    int32_t home = 0;  // group that updates it
    int32_t layout = -1;
    int64_t elements = 0;         // of the member with most
    int32_t share = 0;            // set of digits over which ZeRO shares it out
    uint8_t zero = 0;             // stage; 0 if there is nobody to share with
    bool updated = false;         // has its place in an update
    int32_t unit = -1;            // that it is streamed with; -1: resident
    int32_t at_home = -1;         // resident: the weight itself, of values_
    int32_t last_sum = -1;        // reduced last
    int32_t terms_left = 0;       // of the whole step, in all groups
    Done fetched;                 // streamed: the last tasks that read where it rests
    std::vector<TaskId> written;  // the tasks that wrote the new weight
    BufferId rest;                // streamed: where it rests
    BufferId shard;               // ZeRO 2 and 3: its share of the gradient
    std::vector<Sum> sums;        // of its gradient
    std::vector<Value> extra;     // gradients that came from other groups
  };

  // Streamed weights that travel together.
  struct Unit {
    std::vector<int32_t> updates = {};
    int32_t stage = 0;
    Residency residency = {};
    int64_t bytes = 0;
  };

  // Gradients that are reduced and updated together.
  struct BucketKey {
    int32_t group = 0;
    uint8_t zero = 0;
    bool host = false, host_update = false;
    int32_t digits = 0;  // set over which they are partial
    int32_t share = 0;   // set over which state and updates are shared out
    bool operator==(const BucketKey&) const = default;
  };
  // A sum of a weight's gradient.
  struct SumRef {
    int32_t update = -1;
    int32_t sum = -1;
  };
  struct Bucket {
    BucketKey key;
    std::vector<SumRef> sums;
    int64_t bytes = 0;
  };
  // Sums whose weights are updated together.
  struct ReadyUpdate {
    BucketKey key;
    size_t begin = 0, end = 0;  // of ready_sums_
  };
  // What a team has on its hosts for an update there.
  struct HostPart {
    std::vector<BufferId> gradients, states, results;  // parallel to the sums; none where none is
    TaskId left;                                       // that brought the gradients
    double elements = 0;                               // of a host
    int64_t in = 0;                                    // bytes of weights that a member gets back
  };
  struct HostUpdate {
    ReadyUpdate ready;
    std::vector<HostPart> parts;  // by team
  };
  // Squares of the gradients that a group updates with, on its devices or on its hosts.
  struct Squares {
    int32_t group = -1;
    bool host = false;
    Value value;
    std::vector<TaskId> written;  // host: by team, the last task that added to it
  };
  // What the squares of all gradients sum up to, as a group reads it.
  struct Norm {
    std::vector<Value> terms;        // on devices: to be added up
    std::vector<BufferId> on_hosts;  // the same on hosts, if asked for; parallel
    std::vector<TaskId> arrived;     // by team: that brought it there
  };

  // What the tasks of an op wait for.
  struct Awaited {
    Done done;
    bool to_end = false;  // where the op begins and ends apart: what the begin does not use
  };
  // An op of the backward pass, and the op of the forward pass that it belongs to: none if it adds
  // up gradients.
  struct BackwardOp {
    OpId op, forward;
  };
};

}  // namespace windlass
