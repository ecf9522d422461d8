// The forward pass in windows of some ops. What the compute lane waits for inside of a window, if
// all that comes from outside is there in time, it waits for in any step with these shardings: the
// lane runs one window after the other. Strategies that are asked for one after the other differ in
// few windows, and what is known of a window is kept.

#include <algorithm>

#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {
namespace {

constexpr size_t kLeastOps = 24, kMostOps = 48;  // of a window
constexpr size_t kKnownDelays = 4096;            // of a window
// Windows that are walked for one strategy: if more are new, a walk over all ops is not far.
constexpr int kMostNew = 12;

}  // namespace

size_t StepBound::State::HashList::operator()(const std::vector<int32_t>& list) const {
  uint64_t hash = 0;
  for (int32_t value : list)
    hash = (hash ^ static_cast<uint64_t>(static_cast<uint32_t>(value))) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32;
}

// Cut where the fewest tensors are passed on.
void StepBound::State::list_windows() {
  const Graph& graph = training.graph;
  std::vector<int32_t> passed(training.forward_ops + 1,
                              0);  // by op: tensors made before, read later
  std::vector<size_t> last(graph.tensors.size(), 0);
  for (size_t i = 0; i < training.forward_ops; ++i)
    for (TensorId id : graph.ops[i].inputs)
      if (id.valid()) last[id.index()] = i;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const OpId producer = graph.tensors[t].producer;
    if (!producer.valid() || producer.index() >= training.forward_ops) continue;
    for (size_t i = producer.index() + 1; i <= last[t]; ++i) ++passed[i];
  }
  window_of.assign(training.forward_ops, 0);
  for (size_t first = 0; first < training.forward_ops;) {
    size_t end = training.forward_ops;
    if (end - first > kMostOps) {
      end = first + kMostOps;
      for (size_t i = end; i-- > first + kLeastOps;)
        if (passed[i] < passed[end]) end = i;
    }
    for (size_t i = first; i < end; ++i) window_of[i] = static_cast<uint32_t>(windows.size());
    windows.push_back({.first = first, .last = end});
    first = end;
  }
  // Backward ops come in the reverse order. A sum belongs to the op before it, which made one of
  // its terms.
  size_t w = windows.size();
  for (Window& window : windows) window.back_first = window.back_last = backward_ops.size();
  for (size_t i = 0; i < backward_ops.size(); ++i) {
    if (backward_ops[i].forward < 0) continue;
    const size_t now = window_of[static_cast<size_t>(backward_ops[i].forward)];
    if (now >= w) continue;
    if (w < windows.size()) windows[w].back_last = i;
    for (size_t skipped = now; skipped < std::min(w, windows.size()); ++skipped)
      windows[skipped].back_first = windows[skipped].back_last = i;
    w = now;
    windows[w].back_last = backward_ops.size();
  }
}

void StepBound::State::list_backward_of() {
  backward_of.assign(training.forward_ops, {0, 0});
  size_t last = training.forward_ops;
  for (size_t i = 0; i < backward_ops.size(); ++i) {
    const bool sum = backward_ops[i].forward < 0;
    if (sum && last == training.forward_ops) continue;
    const auto op = sum ? last : static_cast<size_t>(backward_ops[i].forward);
    if (op > last) {
      backward_of.clear();
      return;
    }
    if (op != last) backward_of[op].first = i;
    backward_of[op].second = i + 1;
    last = op;
  }
}

StepBound::State::Delays StepBound::State::walk_window(const Window& window, int32_t stage) {
  const bool kept = keeps_all;
  streams = plain = false;
  keeps_all = in_window = true;
  Delays result;
  begin_walk();
  for (size_t i = window.first; i < window.last; ++i) {
    forward(i);
    result.forward -= chosen[i]->forward;
  }
  result.forward = std::max<Nanoseconds>(0, result.forward + tasks.end(LaneTasks::kCompute));
  begin_walk();
  for (size_t i = window.back_first; i < window.back_last; ++i) {
    const Backward& op = backward_ops[i];
    if (op.forward >= 0) {
      backward(op);
      result.backward -= chosen[static_cast<size_t>(op.forward)]->backward;
    } else if (!op.dropped && (stage < 0 || stage_of[training.forward_ops + i] == stage)) {
      accumulate(op);
    }
  }
  result.backward = std::max<Nanoseconds>(0, result.backward + tasks.end(LaneTasks::kCompute));
  keeps_all = kept;
  in_window = false;
  return result;
}

void StepBound::State::find_delays() {
  int left = kMostNew;
  for (size_t w = 0; w < windows.size(); ++w) {
    if (!outdated[w]) continue;
    const Window& window = windows[w];
    const auto first = chosen_shardings.begin();
    window_shardings.assign(first + static_cast<std::ptrdiff_t>(window.first),
                            first + static_cast<std::ptrdiff_t>(window.last));
    auto& list = known_delays[w];
    auto found = list.find(window_shardings);
    if (found == list.end() && left-- <= 0) {
      // Nothing is known of it this time.
      all_delays.forward -= delays[w].forward;
      all_delays.backward -= delays[w].backward;
      delays[w] = {};
      continue;
    }
    outdated[w] = false;
    if (found == list.end()) {
      if (list.size() == kKnownDelays) list.clear();
      found = list.emplace(window_shardings, walk_window(window)).first;
    }
    all_delays.forward += found->second.forward - delays[w].forward;
    all_delays.backward += found->second.backward - delays[w].backward;
    delays[w] = found->second;
  }
}

}  // namespace windlass
