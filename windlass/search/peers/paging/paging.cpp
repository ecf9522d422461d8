// The order of accesses is fixed, so that a cache is run over it first and the tasks follow from
// its misses. Time: accesses x log pages.
#include "windlass/search/peers/paging/paging.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace windlass {
namespace {

enum class PageKind : uint8_t { Weight, Gradient, Optimizer, Activation };

struct Page {
  PageKind kind = PageKind::Weight;
  int64_t bytes = 0;
  int64_t used = -1;   // last access, -1: not on the device
  bool stored = true;  // there is something on the host to bring in
};

class Paging {
 public:
  Paging(ChainTables& chain, const Machine& machine, HarmonyMode mode, int32_t devices,
         int64_t minibatch, int64_t size, int64_t limit)
      : chain_(chain),
        pipeline_(mode == HarmonyMode::Pipeline),
        teams_(machine, pipeline_ ? 1 : devices, pipeline_ ? devices : 1),
        graph_(teams_.graph()),
        limit_(limit) {
    const int64_t samples = samples_of_device(mode, minibatch, devices);
    for (int64_t left = samples; left > 0; left -= size) sizes_.push_back(std::min(left, size));
    cut_stages(size);
    const auto layers = static_cast<size_t>(chain.layers());
    const LayerProfile& profile = chain.profile();
    const PassCosts costs = profile.backward.at(sizes_.front());
    for (size_t l = 0; l < layers; ++l) {
      pages_.push_back({PageKind::Weight, profile.weights[l] + profile.buffers[l]});
      pages_.push_back({PageKind::Gradient, profile.weights[l], -1, false});
      pages_.push_back({PageKind::Optimizer, profile.optimizer[l]});
      const int64_t saved = costs.peak[l] - 2 * profile.weights[l] - profile.buffers[l];
      for (size_t i = 0; i < sizes_.size(); ++i)
        pages_.push_back({PageKind::Activation, std::max<int64_t>(0, saved), -1, false});
    }
    held_.assign(static_cast<size_t>(teams_.depth()), 0);
    last_.assign(held_.size(), {});
    resident_.resize(held_.size());
  }

  PagingCost run();

 private:
  size_t page(int32_t layer, PageKind kind, size_t part = 0) const {
    return static_cast<size_t>(layer) * (3 + sizes_.size()) + static_cast<size_t>(kind) + part;
  }
  void cut_stages(int64_t size);
  void touch(int32_t stage, std::initializer_list<size_t> wanted);
  void compute(int32_t stage, TaskKind kind, double seconds, TaskId input);
  TaskId send(int32_t stage, bool back, int64_t bytes);
  void count(const Page& page);
  TaskId add(TaskKind kind, LaneId lane, double seconds, int32_t price);

  ChainTables& chain_;
  bool pipeline_;
  PackTeams teams_;
  TaskGraph& graph_;
  int64_t limit_;
  std::vector<int64_t> sizes_;
  std::vector<int32_t> stage_of_;  // by layer
  std::vector<Page> pages_;
  std::vector<std::set<std::pair<int64_t, size_t>>> resident_;  // by stage: last access, page
  std::vector<int64_t> held_;
  std::vector<TaskId> last_;  // task of each stage: the next one waits for it
  int64_t clock_ = 0;
  std::vector<TaskId> after_;
  TaskTimes times_;
  SwapVolume volume_;
};

void Paging::cut_stages(int64_t size) {
  const PassTable& forward = chain_.forward(size);
  const PassTable& backward = chain_.backward(size);
  const double total = forward.seconds.back() + backward.seconds.back();
  for (int32_t l = 0; l < chain_.layers(); ++l) {
    const auto at = static_cast<size_t>(l);
    const double share = (forward.seconds[at] + backward.seconds[at]) / total;
    // A layer that takes more than a stage's share leaves no stage empty: the next one follows.
    const int32_t next = stage_of_.empty() ? 0 : stage_of_.back() + 1;
    const auto by_time = static_cast<int32_t>(share * teams_.depth());
    stage_of_.push_back(std::min({teams_.depth() - 1, by_time, next}));
  }
}

TaskId Paging::add(TaskKind kind, LaneId lane, double seconds, int32_t price) {
  const std::array<LaneId, 1> on{lane};
  times_.duration.push_back(
      std::max<Nanoseconds>(1, static_cast<Nanoseconds>(std::llround(seconds * 1e9))));
  times_.workspace.push_back(0);
  const TaskId id =
      graph_.add(Task{.kind = kind, .price = price, .micro_batch = -1, .op = {}, .tensor = {}}, on,
                 after_, {});
  after_.clear();
  return id;
}

void Paging::count(const Page& page) {
  const int64_t bytes = page.bytes * teams_.replicas();
  switch (page.kind) {
    case PageKind::Weight: volume_.weights += bytes; break;
    case PageKind::Gradient: volume_.gradients += bytes; break;
    case PageKind::Optimizer: volume_.optimizer += bytes; break;
    case PageKind::Activation: volume_.activations += bytes; break;
  }
}

// Makes pages resident. Whatever is moved waits for the stage's last task, and the next one for it.
void Paging::touch(int32_t stage, std::initializer_list<size_t> wanted) {
  const auto at = static_cast<size_t>(stage);
  auto& resident = resident_[at];
  ++clock_;
  for (size_t id : wanted) {
    if (pages_[id].used < 0) continue;
    resident.erase({pages_[id].used, id});
    resident.insert({clock_, id});
    pages_[id].used = clock_;
  }
  for (size_t id : wanted) {
    Page& page = pages_[id];
    if (page.used >= 0 || page.bytes == 0) continue;
    while (held_[at] + page.bytes > limit_ && !resident.empty()) {
      const auto oldest = resident.begin();
      if (oldest->first == clock_) break;  // all that is left is wanted now
      const size_t victim_id = oldest->second;
      resident.erase(oldest);
      Page& victim = pages_[victim_id];
      if (last_[at].valid()) after_.push_back(last_[at]);
      const int32_t price = teams_.traffic(PackMove::Out, stage, victim.bytes);
      last_[at] = add(TaskKind::SwapOut, teams_.stash_out(stage),
                      graph_.traffics[static_cast<size_t>(price)].latency.value, price);
      count(victim);
      victim.used = -1;
      victim.stored = true;
      held_[at] -= victim.bytes;
    }
    page.used = clock_;
    held_[at] += page.bytes;
    resident.insert({clock_, id});
    if (!page.stored) continue;
    if (last_[at].valid()) after_.push_back(last_[at]);
    const int32_t price = teams_.traffic(PackMove::In, stage, page.bytes);
    last_[at] = add(TaskKind::SwapIn, teams_.stash_in(stage),
                    graph_.traffics[static_cast<size_t>(price)].latency.value, price);
    count(page);
  }
}

void Paging::compute(int32_t stage, TaskKind kind, double seconds, TaskId input) {
  const auto at = static_cast<size_t>(stage);
  if (last_[at].valid()) after_.push_back(last_[at]);
  if (input.valid()) after_.push_back(input);
  last_[at] = add(kind, teams_.compute(stage), seconds, 0);
}

TaskId Paging::send(int32_t stage, bool back, int64_t bytes) {
  // Backwards over the same links in the other direction: the bytes of the forward transfer.
  const int32_t from = back ? stage - 1 : stage;
  after_.push_back(last_[static_cast<size_t>(stage)]);
  volume_.peers += bytes;
  const int32_t price = teams_.traffic(PackMove::Next, from, bytes);
  return add(TaskKind::Send, teams_.send(stage),
             graph_.traffics[static_cast<size_t>(price)].latency.value, price);
}

PagingCost Paging::run() {
  const int32_t layers = chain_.layers();
  const size_t parts = sizes_.size();
  for (size_t i = 0; i < parts; ++i) {
    const PassTable& forward = chain_.forward(sizes_[i]);
    TaskId input;
    for (int32_t l = 0; l < layers; ++l) {
      const int32_t stage = stage_of_[static_cast<size_t>(l)];
      if (l > 0 && stage_of_[static_cast<size_t>(l) - 1] != stage)
        input = send(stage - 1, false, chain_.input(l, sizes_[i]));
      touch(stage, {page(l, PageKind::Weight), page(l, PageKind::Activation, i)});
      compute(stage, TaskKind::Forward, ChainTables::seconds(forward, {l, l}), input);
      input = {};
    }
  }
  for (size_t i = 0; i < parts; ++i) {
    const PassTable &forward = chain_.forward(sizes_[i]), &backward = chain_.backward(sizes_[i]);
    TaskId input;
    for (int32_t l = layers - 1; l >= 0; --l) {
      const int32_t stage = stage_of_[static_cast<size_t>(l)];
      if (l + 1 < layers && stage_of_[static_cast<size_t>(l) + 1] != stage)
        input = send(stage + 1, true, chain_.input(l + 1, sizes_[i]));
      touch(stage, {page(l, PageKind::Weight), page(l, PageKind::Gradient),
                    page(l, PageKind::Activation, i)});
      compute(stage, TaskKind::Backward,
              ChainTables::seconds(backward, {l, l}) - ChainTables::seconds(forward, {l, l}),
              input);
      input = {};
      Page& saved = pages_[page(l, PageKind::Activation, i)];  // nobody needs it any more
      if (saved.used >= 0) {
        held_[static_cast<size_t>(stage)] -= saved.bytes;
        resident_[static_cast<size_t>(stage)].erase({saved.used, page(l, PageKind::Activation, i)});
        saved.used = -1;
      }
      if (i + 1 < parts) continue;
      const int64_t bytes = pages_[page(l, PageKind::Gradient)].bytes;
      if (teams_.replicas() > 1 && bytes > 0) {
        const auto at = static_cast<size_t>(stage);
        after_.push_back(last_[at]);
        const int32_t price = teams_.traffic(PackMove::Reduce, stage, bytes);
        last_[at] = add(TaskKind::Reduce, teams_.reduce(stage),
                        graph_.traffics[static_cast<size_t>(price)].latency.value, price);
        volume_.peers += 2 * (teams_.replicas() - 1) * bytes;
      }
      touch(stage,
            {page(l, PageKind::Weight), page(l, PageKind::Gradient), page(l, PageKind::Optimizer)});
    }
  }
  Simulator simulator;
  const SimResult& result = simulator.run(graph_, times_, {.enforce_limits = false});
  return {static_cast<double>(result.makespan) * 1e-9, volume_};
}

}  // namespace

PagingCost simulate_paging(ChainTables& chain, const Machine& machine, HarmonyMode mode,
                           int32_t devices, int64_t minibatch, int64_t size, int64_t limit) {
  return Paging(chain, machine, mode, devices, minibatch, size, limit).run();
}

}  // namespace windlass
