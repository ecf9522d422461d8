#include "windlass/search/packs/explain_packs.h"

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {
namespace {

std::string_view bytes_of(PackData what) {
  switch (what) {
    case PackData::Weights: return "weights";
    case PackData::Gradients: return "gradients";
    case PackData::Optimizer: return "optimizer state";
    case PackData::Shares: return "shares of weights";
    case PackData::Input: return "inputs of packs";
    case PackData::Backward: return "gradients of inputs";
    case PackData::Saved: return "activations";
  }
  return "";
}

class Explanation {
 public:
  Explanation(ChainTables& chain, const Machine& machine, int64_t minibatch,
              const PackStrategy& strategy, size_t top)
      : chain_(chain),
        machine_(machine),
        minibatch_(minibatch),
        strategy_(strategy),
        top_(top),
        pricer_(chain, machine, minibatch, machine.devices.front().limit.value) {}

  PackExplanation run() {
    result_.limit = machine_.devices.front().limit.value;
    result_.cost = pricer_.price_long_run(strategy_);
    if (result_.cost.peak_bytes == 0) fail_input("{}", small_window_text(strategy_));
    look_at_run();
    add_choices();
    add_choices_of_packs();
    return std::move(result_);
  }

 private:
  std::string task_text(size_t task) const {
    const PackLabel& label = steps_->tasks[task];
    const std::string what = layers_text(label.layers);
    switch (steps_->graph->tasks[task].kind) {
      case TaskKind::Forward: return "forward of " + what;
      case TaskKind::Recompute: return "recomputing " + what;
      case TaskKind::Backward: return "backward of " + what;
      case TaskKind::Gather: return "gathering weights of " + what;
      case TaskKind::Reduce: return "summing gradients of " + what;
      case TaskKind::Send: return "an input of " + what + " from the device before";
      case TaskKind::Update:
      case TaskKind::HostUpdate: return "the update of " + what;
      default: return fmt::format("{} of {}", bytes_of(label.what), what);
    }
  }

  // A step among others, with all it waits for.
  void look_at_run() {
    PackLowering lowering(chain_, machine_);
    steps_ = lowering.lower(strategy_, minibatch_, strategy_.streams ? 3 : 1);
    Simulator simulator;
    const SimResult& run = simulator.run(*steps_->graph, *steps_->times, {.enforce_limits = false});
    const size_t step = strategy_.streams ? 1 : 0;
    for (int32_t team = 0; team < strategy_.depth; ++team) look_at_device(run, step, team);
    std::ranges::stable_sort(result_.waits, std::ranges::greater(), &PackWait::seconds);
    if (result_.waits.size() > top_) result_.waits.resize(top_);

    size_t fullest = 0;
    for (size_t m = 0; m + 1 < run.peaks.size(); ++m)
      if (run.peaks[m].bytes > run.peaks[fullest].bytes) fullest = m;
    const MemoryPeak& peak = run.peaks[fullest];
    result_.fullest = steps_->graph->memories[fullest].name;
    std::map<std::string_view, int64_t> sums;
    int64_t rest = peak.bytes;
    for (BufferId id : alive_at(*steps_->graph, run, MemoryId(fullest), peak.time)) {
      const int64_t bytes = (*steps_->graph)[id].bytes.value;
      sums[bytes_of(steps_->buffers[id.index()].what)] += bytes;
      rest -= bytes;
    }
    if (rest > 0) sums["what a layer needs while it runs"] = rest;
    for (const auto& [what, bytes] : sums) result_.bytes.push_back({std::string(what), bytes});
    std::ranges::stable_sort(result_.bytes, std::ranges::greater(), &PackBytes::bytes);
    steps_ = nullptr;
  }

  void look_at_device(const SimResult& run, size_t step, int32_t team) {
    const TaskGraph& graph = *steps_->graph;
    const size_t depth = static_cast<size_t>(strategy_.depth);
    const size_t lane = graph.lanes.size() / depth * static_cast<size_t>(team);
    PackTimes times{.device = graph.memories[static_cast<size_t>(team)].name};
    Nanoseconds last = 0;
    for (size_t i = 0; i < steps_->begin[step + 1]; ++i) {
      if (graph.task_lanes[i].index() != lane) continue;
      if (i >= steps_->begin[step]) {
        const Nanoseconds wait = run.start[i] - last;
        times.idle += static_cast<double>(wait) * 1e-9;
        if (wait > 0) add_wait(run, i, times.device, wait);
        const double seconds = static_cast<double>(run.end[i] - run.start[i]) * 1e-9;
        switch (graph.tasks[i].kind) {
          case TaskKind::Forward: times.forward += seconds; break;
          case TaskKind::Recompute: times.recompute += seconds; break;
          case TaskKind::Backward: times.backward += seconds; break;
          default: times.update += seconds;
        }
      }
      last = run.end[i];
    }
    result_.times.push_back(times);
  }

  void add_wait(const SimResult& run, size_t task, const std::string& device, Nanoseconds wait) {
    std::string waits_for = "its turn";
    for (TaskId before : steps_->graph->predecessors_of(TaskId(task)))
      if (run.end[before.index()] == run.start[task]) waits_for = task_text(before.index());
    result_.waits.push_back({device, static_cast<double>(wait) * 1e-9, task_text(task), waits_for});
  }

  using Change = std::function<void(PackStrategy&)>;
  // Nothing if the change makes no difference or is no strategy.
  std::optional<StreamCost> with(const Change& change) {
    PackStrategy other = strategy_;
    change(other);
    if (other == strategy_) return std::nullopt;
    try {
      check_pack_strategy(chain_.profile(), other, minibatch_,
                          static_cast<int64_t>(machine_.devices.size()));
    } catch (const Error&) {
      return std::nullopt;
    }
    StreamCost cost = pricer_.price_long_run(other);
    if (cost.peak_bytes > result_.limit && other.streams) {
      other.state_bytes -= cost.peak_bytes - result_.limit;
      const StreamCost smaller =
          other.state_bytes > 0 ? pricer_.price_long_run(other) : StreamCost{};
      if (smaller.fits) cost = smaller;
    }
    if (cost.peak_bytes == 0) return std::nullopt;
    return cost;
  }
  void add(const char* decision, std::string choice, const Change& change) {
    if (const auto cost = with(change))
      result_.choices.push_back({decision, std::move(choice), *cost});
  }

  void add_choices() {
    const size_t packs = strategy_.backward_packs.size();
    const auto set = [&](PackStrategy& s, PackAction action) {
      std::fill_n(s.actions.begin(), packs - 1, action);
      if (action != PackAction::Recompute) s.forward_microbatch = s.backward_microbatch;
    };
    add("activations", "all recomputed", [&](PackStrategy& s) { set(s, PackAction::Recompute); });
    add("activations", "all kept", [&](PackStrategy& s) { set(s, PackAction::Keep); });
    add("activations", "all to the host", [&](PackStrategy& s) { set(s, PackAction::Offload); });
    add("inputs of packs", "all on the host",
        [&](PackStrategy& s) { s.stash_on_host.assign(packs, 1); });
    add("inputs of packs", "all on the device",
        [&](PackStrategy& s) { s.stash_on_host.assign(packs, 0); });
    if (strategy_.replicas > 1) {
      add("shares of weights", "all kept for the backward pass",
          [&](PackStrategy& s) { s.keep_shares.assign(packs, 1); });
      add("shares of weights", "none kept",
          [&](PackStrategy& s) { s.keep_shares.assign(packs, 0); });
    }
    add("updates", "all on the device", [&](PackStrategy& s) { s.device_update.assign(packs, 1); });
    add("updates", "all on the host", [&](PackStrategy& s) { s.device_update.assign(packs, 0); });
    if (strategy_.streams) {
      add("window for weights", "half", [](PackStrategy& s) { s.state_bytes /= 2; });
      add("window for weights", "twice", [](PackStrategy& s) { s.state_bytes *= 2; });
    }
    add("micro-batches", "half the size", [](PackStrategy& s) {
      s.forward_microbatch = std::max<int64_t>(1, s.forward_microbatch / 2);
      s.backward_microbatch = std::max<int64_t>(1, s.backward_microbatch / 2);
    });
    // No larger than all samples of a pipeline.
    const int64_t share = (minibatch_ + strategy_.replicas - 1) / strategy_.replicas;
    add("micro-batches", "twice the size", [&](PackStrategy& s) {
      for (int64_t* size : {&s.forward_microbatch, &s.backward_microbatch})
        *size = std::max(*size, std::min(2 * *size, share));
    });
    if (strategy_.replicas == 1 || strategy_.depth == 1)
      add("runtime", "Harmony's, with these packs",
          [&](PackStrategy& s) { s = harmony_runtime(harmony_plan_of(s)); });
  }

  void add_choices_of_packs() {
    std::vector<PackChoice>& list = result_.of_packs;
    for (size_t p = 0; p < strategy_.backward_packs.size(); ++p) {
      const auto of_pack = [&](std::string choice, const Change& change) {
        if (const auto cost = with(change))
          list.push_back({layers_text(strategy_.backward_packs[p]), std::move(choice), *cost});
      };
      for (PackAction action : {PackAction::Recompute, PackAction::Keep, PackAction::Offload})
        of_pack(std::string(pack_action_name(action)),
                [&](PackStrategy& s) { s.actions[p] = action; });
      of_pack(strategy_.stash_on_host[p] ? "input on the device" : "input on the host",
              [&](PackStrategy& s) { s.stash_on_host[p] ^= 1; });
      if (strategy_.replicas > 1)
        of_pack(
            strategy_.keep_shares[p] ? "shares of weights read again" : "shares of weights kept",
            [&](PackStrategy& s) { s.keep_shares[p] ^= 1; });
      of_pack(strategy_.device_update[p] ? "updated on the host" : "updated on the device",
              [&](PackStrategy& s) { s.device_update[p] ^= 1; });
      if (p == 0 || p + 1 == strategy_.backward_packs.size()) continue;
      of_pack("together with the pack before", [&](PackStrategy& s) {
        s.backward_packs[p - 1].last = s.backward_packs[p].last;
        const auto drop = [&](auto& list_of) {
          list_of.erase(list_of.begin() + static_cast<std::ptrdiff_t>(p));
        };
        drop(s.backward_packs);
        drop(s.actions);
        drop(s.stash_on_host);
        drop(s.device_update);
        drop(s.keep_shares);
      });
    }
    std::ranges::stable_sort(list, {}, [](const PackChoice& c) { return c.cost.seconds; });
    if (list.size() > top_) list.resize(top_);
  }

  ChainTables& chain_;
  const Machine& machine_;
  int64_t minibatch_;
  const PackStrategy& strategy_;
  size_t top_;
  StreamPricer pricer_;
  const PackSteps* steps_ = nullptr;
  PackExplanation result_;
};

}  // namespace

PackExplanation explain_packs(ChainTables& chain, const Machine& machine, int64_t minibatch,
                              const PackStrategy& strategy, size_t top) {
  return Explanation(chain, machine, minibatch, strategy, top).run();
}

}  // namespace windlass
