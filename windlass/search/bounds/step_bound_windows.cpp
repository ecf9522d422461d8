// The forward pass in windows of some ops. What the compute lane waits for inside of a window, if
// all that comes from outside is there in time, it waits for in any step with these shardings: the
// lane runs one window after the other. What the last op before the window makes is there no sooner
// than the window begins, and has to be moved in it. Strategies that are asked for one after the
// other differ in few windows, and what is known of a window is kept.

#include <algorithm>
#include <utility>

#include "windlass/graph/op_info.h"
#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {
namespace {

constexpr size_t kLeastOps = 24, kMostOps = 48;  // of a window
constexpr size_t kKnownDelays = 4096;            // of a window
// Windows that are walked for one strategy: if more are new, a walk over all ops is not far.
constexpr size_t kMostNew = 12;
constexpr Nanoseconds kUnknown = -1;

}  // namespace

size_t StepBound::State::HashList::operator()(const std::vector<int32_t>& list) const {
  uint64_t hash = 0;
  for (int32_t value : list)
    hash = (hash ^ static_cast<uint64_t>(static_cast<uint32_t>(value))) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32;
}

size_t StepBound::State::entry_of(size_t first) const {
  for (size_t i = first; i-- > (windows.empty() ? first : windows.back().first);)
    if (!op_info(training.graph.ops[i].kind).view) return i;
  return first;
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
  enters.assign(training.forward_ops, 0);
  for (size_t first = 0; first < training.forward_ops;) {
    size_t end = training.forward_ops;
    if (end - first > kMostOps) {
      end = first + kMostOps;
      for (size_t i = end; i-- > first + kLeastOps;)
        if (passed[i] < passed[end]) end = i;
    }
    windows.push_back({.entry = entry_of(first), .first = first, .last = end});
    const auto w = static_cast<uint32_t>(windows.size() - 1);
    for (size_t i = first; i < end; ++i) window_of[i] = enters[i] = w;
    for (size_t i = windows[w].entry; i < first; ++i) enters[i] = w;
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

// What the last op before the window makes is there when the window begins, as that op leaves it,
// and nobody has moved it before.
void StepBound::State::enter(const Window& window) {
  if (window.entry == window.first) return;
  const int32_t entered = tasks.add(LaneTasks::kCompute, Nanoseconds{0});
  for (const Made& result : chosen[window.entry]->forward_makes())
    put(kForward, result.tensor, result.layout, value_buffers++, entered, 0);
  for (size_t i = window.entry + 1; i < window.first; ++i) forward(i);
}

Nanoseconds StepBound::State::walk_ahead(const Window& window) {
  streams = plain = false;
  in_window = true;
  begin_walk();
  enter(window);
  Nanoseconds delay = 0;
  for (size_t i = window.first; i < window.last; ++i) {
    forward(i);
    delay -= chosen[i]->forward;
  }
  in_window = false;
  return std::max<Nanoseconds>(0, delay + tasks.end(LaneTasks::kCompute));
}

Nanoseconds StepBound::State::walk_back(const Window& window, int32_t stage) {
  const bool kept = keeps_all;
  streams = plain = false;
  keeps_all = in_window = true;
  begin_walk();
  Nanoseconds delay = 0;
  for (size_t i = window.back_first; i < window.back_last; ++i) {
    const Backward& op = backward_ops[i];
    if (op.forward >= 0) {
      backward(op);
      delay -= chosen[static_cast<size_t>(op.forward)]->backward;
    } else if (!op.dropped && (stage < 0 || stage_of[training.forward_ops + i] == stage)) {
      accumulate(op);
    }
  }
  keeps_all = kept;
  in_window = false;
  return std::max<Nanoseconds>(0, delay + tasks.end(LaneTasks::kCompute));
}

void StepBound::State::set_delay(Nanoseconds Delays::*pass, size_t window, Nanoseconds delay) {
  all_delays.*pass += delay - delays[window].*pass;
  delays[window].*pass = delay;
}

// Of windows that were walked before; of the others, as many as it takes.
void StepBound::State::find_delays(Nanoseconds enough) {
  const auto done = [&] {
    return all_delays.forward + (keeps_all ? all_delays.backward : 0) > enough;
  };
  if (keeps_all && !back_asked) outdated.assign(windows.size(), true);
  back_asked = keeps_all;
  missing.clear();
  for (size_t w = 0; w < windows.size(); ++w) {
    if (!outdated[w]) continue;
    const auto first = chosen_shardings.begin();
    window_shardings.assign(first + static_cast<std::ptrdiff_t>(windows[w].entry),
                            first + static_cast<std::ptrdiff_t>(windows[w].last));
    auto& list = known_delays[w];
    auto found = list.find(window_shardings);
    if (found == list.end()) {
      if (list.size() == kKnownDelays) list.clear();
      found = list.emplace(window_shardings, Delays{kUnknown, kUnknown}).first;
    }
    set_delay(&Delays::forward, w, std::max<Nanoseconds>(0, found->second.forward));
    set_delay(&Delays::backward, w, std::max<Nanoseconds>(0, found->second.backward));
    outdated[w] =
        found->second.forward == kUnknown || (keeps_all && found->second.backward == kUnknown);
    if (outdated[w]) missing.push_back({w, &found->second});
  }
  if (missing.size() > kMostNew) missing.resize(kMostNew);
  for (const auto& [w, own] : missing) {
    if (done()) return;
    if (own->forward == kUnknown) {
      own->forward = walk_ahead(windows[w]);
      set_delay(&Delays::forward, w, own->forward);
      if (done()) return;
    }
    if (keeps_all && own->backward == kUnknown) {
      own->backward = walk_back(windows[w], -1);
      set_delay(&Delays::backward, w, own->backward);
    }
    outdated[w] = false;
  }
}

// When everything has ended, at the earliest: gradients are made as early as the work before them
// and the delays of whole windows let them, and all that becomes of them is walked.
Nanoseconds StepBound::State::walk_gradients() {
  Nanoseconds work_before = all_delays.forward;  // and after the last gradient
  for (const Choice* own : chosen) work_before += own->forward;
  size_t w = windows.size();
  for (size_t i = 0; i < backward_ops.size(); ++i) {
    for (; w > 0 && windows[w - 1].back_last <= i; --w) work_before += delays[w - 1].backward;
    if (backward_ops[i].forward < 0) continue;
    const Choice& own = *chosen[static_cast<size_t>(backward_ops[i].forward)];
    work_before += own.backward;
    int32_t done = -1;
    for (const Made& result : own.backward_makes()) {
      if (result.update < 0 || --terms_left[static_cast<size_t>(result.update)] != 0) continue;
      if (done < 0) done = tasks.add(LaneTasks::kCompute, std::exchange(work_before, 0));
      add_gradient(result.update, done);
    }
  }
  for (; w > 0; --w) work_before += delays[w - 1].backward;
  tasks.add(LaneTasks::kCompute, work_before);
  finish_plain();
  return tasks.end();
}

}  // namespace windlass
