// The walk of check_pack_tasks(): what each buffer holds, task by task.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/plan/happens_before.h"
#include "windlass/plan/packs/check_packs.h"

namespace windlass {

// Samples that came one range at a time, each once.
class SampleSet {
 public:
  // False if some of them are there already.
  bool add(int64_t begin, int64_t end);
  bool covers(int64_t begin, int64_t end) const;

 private:
  std::map<int64_t, int64_t> ranges_;  // begin to end, apart from each other
};

class PackChecker {
 public:
  PackChecker(const LayerProfile& profile, const Machine& machine, const PackStrategy& strategy,
              int64_t minibatch, const PackSteps& steps);
  std::vector<std::string> run();

 private:
  static constexpr size_t kMost = 20;
  // Who wrote something last, and who has read it since.
  struct Users {
    TaskId writer;
    std::vector<TaskId> readers;
  };
  struct Held {
    bool there = false;
    bool whole = true;             // weights: not a replica's share alone
    bool fresh = false;            // weights: updated here
    bool summed = false;           // gradients: over replicas
    bool done = false;             // gradients: moved or applied
    int32_t next = -1;             // saved: the layer to be computed next
    int32_t gradient_at = -1;      // saved: the backward pass has come down to this layer
    std::vector<SampleSet> terms;  // gradients, by layer
    Users users;
    TaskId last_use;  // that the graph names
    size_t step = 0;  // weights and shares: in which they were read
  };
  // Weights of a layer, or a part of them, on the host.
  struct Stored {
    Users weights, gradients, optimizer;
    int updates = 0;  // in this step
    bool gradient_there = false;
    bool old_state = false;  // the host has optimizer state from before the update
  };
  struct Layer {
    SampleSet forward, recompute, backward;  // in this step
    std::vector<Stored> parts;
  };
  // A pass at one micro-batch size: times and bytes by layer, beside weights and inputs.
  struct Pass {
    std::vector<double> seconds;
    std::vector<int64_t> working;
  };

  template <typename... Args>
  void complain(fmt::format_string<Args...> text, Args&&... args) {
    if (findings_.size() < kMost)
      findings_.push_back(fmt::format(text, std::forward<Args>(args)...));
    else
      more_ = true;
  }
  std::string name(TaskId id) const;
  std::string name(const PackLabel& label) const;
  const PackLabel& label(TaskId id) const { return steps_.tasks[id.index()]; }
  const PackLabel& label(BufferId id) const { return steps_.buffers[id.index()]; }
  int32_t team_of(TaskId id) const { return graph_[graph_.lanes_of(id).front()].team.value; }
  bool on_host(BufferId id) const { return !graph_[graph_[id].memory].team.valid(); }
  int64_t sum(const std::vector<int64_t>& bytes, Pack layers) const;
  // Of what a label names: all of it, or the part.
  int64_t sum(const std::vector<int64_t>& bytes, const PackLabel& what) const;
  int64_t state_bytes(const PackLabel& what) const {
    return sum(profile_.weights, what) + sum(profile_.buffers, what);
  }
  Stored& stored(int32_t layer, const PackLabel& what) {
    return state_[static_cast<size_t>(layer)].parts[static_cast<size_t>(what.part)];
  }
  bool check_label(const PackLabel& what, bool resting);
  int64_t share_of(int64_t bytes) const {
    return (bytes + strategy_.replicas - 1) / strategy_.replicas;
  }
  const Pass& pass(bool forward, int64_t size);

  bool check_shape();
  void check_size(BufferId id);
  void start_step();
  void end_step();
  void visit(TaskId id);
  // --- check_packs.cpp: computation
  void compute(TaskId id);
  void run_forward(TaskId id);
  void run_saved(TaskId id);
  void run_backward(TaskId id);
  void need_weights(TaskId id);
  void add_gradients(TaskId id);
  bool reads(TaskId id, PackData what, int32_t layer, bool host);
  bool expect_team(TaskId id, size_t task);
  void expect_time(TaskId id, double seconds, int64_t workspace);
  // The task of a pipeline that has all these layers; nothing if none does.
  std::optional<size_t> task_with(Pack layers, bool backward) const;
  // Touches a buffer outside of what the graph says.
  void touch(TaskId id, BufferId buffer, bool write);
  void order(TaskId id, Users& users, bool write, const std::string& what);

  // --- check_pack_moves.cpp
  void swap_in(TaskId id);
  void swap_out(TaskId id);
  void send(TaskId id);
  void gather(TaskId id);
  void reduce(TaskId id);
  void update(TaskId id);
  void host_update(TaskId id);
  void copy(TaskId id, bool from_host, bool to_host);
  bool complete(TaskId id, BufferId gradients);
  std::optional<BufferId> used(TaskId id, PackData what, bool write, bool host);
  void expect_traffic(TaskId id, const Traffic& traffic);
  void expect_copies(TaskId id, bool in, int64_t bytes, bool first_only = false);
  void updated(TaskId id, int32_t layer);

  const LayerProfile& profile_;
  const Machine& machine_;
  const PackStrategy& strategy_;
  const PackSteps& steps_;
  const TaskGraph& graph_;
  int64_t samples_ = 0;  // of a pipeline
  int32_t layers_ = 0;
  std::vector<Held> held_;
  std::vector<Layer> state_;  // by layer
  size_t step_ = 0;
  // By memory, layer and part: written last.
  std::vector<std::vector<std::vector<BufferId>>> weights_at_, gradients_at_;
  std::map<std::pair<bool, int64_t>, Pass> passes_;
  std::map<std::array<int64_t, 5>, Traffic> traffic_;
  std::optional<HappensBefore> clock_;
  std::vector<std::string> findings_;
  bool more_ = false;
};

}  // namespace windlass
