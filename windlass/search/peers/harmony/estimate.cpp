// Harmony's event rules, walked once.
//
// Every stream holds its events in the order of tasks, then of micro-batches, and an event begins
// when the one before it in its stream and all its inputs have ended. Inputs lie in earlier tasks
// or earlier in the same task, if a transfer between devices (one event in two streams) is counted
// to the task that receives it. So one walk in task order computes every end time; a stream is the
// end of its last event. Exact: the same additions and maxima as an event loop would do.
#include "windlass/search/peers/harmony/estimate.h"

#include <algorithm>

namespace windlass {
namespace {

constexpr double kNoEvent = -1;  // no such event: nobody waits for it

void cut(std::vector<int64_t>& parts, int64_t samples, int64_t size) {
  parts.assign(static_cast<size_t>(samples / size), size);
  if (samples % size != 0) parts.push_back(samples % size);
}

// Puts an event at the end of a stream; returns its end.
double put(double& stream, double wait, double seconds) {
  return stream = std::max(stream, wait) + seconds;
}

}  // namespace

int32_t HarmonyEstimator::device_of(size_t task) const {
  return pipeline_ ? static_cast<int32_t>(task % static_cast<size_t>(devices_)) : 0;
}

// When the first input of a task may enter, with double buffers shared with the task before it.
double HarmonyEstimator::first_wait(const Device& device) const {
  if (device.previous.before >= 0) return device.previous.before;
  return device.previous.last >= 0 ? device.earlier.freed : kNoEvent;
}

void HarmonyEstimator::end_task(Device& device, const Done& done) {
  device.earlier = device.previous;
  device.previous = done;
}

void HarmonyEstimator::prepare(const HarmonyPlan& plan, int64_t minibatch) {
  pipeline_ = plan.mode == HarmonyMode::Pipeline;
  const size_t tasks = plan.forward_packs.size() + plan.backward_packs.size();
  devices_ = pipeline_ ? static_cast<int32_t>(std::min(tasks, static_cast<size_t>(plan.devices)))
                       : plan.devices;
  peers_ = pipeline_ && devices_ > 1;
  converts_ = peers_ && plan.forward_microbatch != plan.backward_microbatch;
  swap_ = devices_ / constants_.swap_bandwidth;
  message_ = 2 * devices_ / constants_.message_bandwidth;
  peer_ = 1 / constants_.peer_bandwidth;
  const int64_t samples = samples_of_device(plan.mode, minibatch, plan.devices);
  cut(forward_.of, samples, plan.forward_microbatch);
  cut(backward_.of, samples, plan.backward_microbatch);
  const auto look_up = [&](Sizes& sizes, bool backward) {
    sizes.forward_whole = &chain_.forward(sizes.of.front());
    sizes.forward_rest = &chain_.forward(sizes.of.back());
    if (!backward) return;
    sizes.backward_whole = &chain_.backward(sizes.of.front());
    sizes.backward_rest = &chain_.backward(sizes.of.back());
  };
  if (!plan.forward_packs.empty()) look_up(forward_, false);
  look_up(backward_, true);
  forward_.released.clear();
  int64_t ready = 0, used = 0;
  size_t next = 0;
  for (int64_t size : forward_.of) {
    ready += size;
    int64_t released = 0;
    for (; next < backward_.of.size() && used + backward_.of[next] <= ready; ++next, ++released)
      used += backward_.of[next];
    forward_.released.push_back(released);
  }
  device_.assign(static_cast<size_t>(pipeline_ ? devices_ : 1), {});
  const size_t most = std::max(forward_.of.size(), backward_.of.size());
  output_.assign(most, 0);
  next_output_.assign(most, 0);
  computed_.assign(most, 0);
  stashed_.resize(plan.backward_packs.size() * backward_.of.size());
  next_stash_ = 0;
}

void HarmonyEstimator::forward_task(const HarmonyPlan& plan, size_t task) {
  const Pack pack = plan.forward_packs[task];
  Device& device = device_[static_cast<size_t>(device_of(task))];
  Streams& on = device.streams;
  const Done before = device.previous;
  const int64_t whole = plan.forward_microbatch;
  const size_t count = forward_.of.size();
  const bool has_rest = forward_.of.back() != whole;

  // The pack is computed in parts, cut where an input is stashed.
  const size_t first_stash = next_stash_;
  while (next_stash_ + 1 < plan.backward_packs.size() &&
         plan.backward_packs[next_stash_].first <= pack.last)
    ++next_stash_;
  const size_t stashes = next_stash_ - first_stash;
  const bool stashes_input = stashes > 0 && plan.backward_packs[first_stash].first == pack.first;
  parts_.clear();
  int32_t begin = pack.first;
  const auto add_part = [&](int32_t end) {
    const Pack part{begin, end - 1};
    parts_.push_back({ChainTables::seconds(*forward_.forward_whole, part),
                      ChainTables::seconds(*forward_.forward_rest, part)});
    begin = end;
  };
  for (size_t s = stashes_input ? 1 : 0; s < stashes; ++s)
    add_part(plan.backward_packs[first_stash + s].first);
  add_part(pack.last + 1);

  const bool last_task = task + 1 == plan.forward_packs.size();
  const bool sends_here = peers_ && !(last_task && converts_);  // by peer transfer, at the receiver
  const double load = static_cast<double>(chain_.state_bytes(pack)) * swap_;
  const auto input = static_cast<double>(chain_.input(pack.first, 1));
  const auto result = static_cast<double>(chain_.input(pack.last + 1, 1));
  const bool from_peer = peers_ && task > 0;
  double weights = 0;
  const auto load_weights = [&] {
    weights = put(on.swap_in, prefetch_ ? before.last : before.freed, load);
  };
  if (!prefetch_ || pipeline_) load_weights();

  double output = kNoEvent;
  size_t released = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto size = static_cast<double>(forward_.of[i]);
    const bool rest = has_rest && i + 1 == count;
    double wait = kNoEvent;
    if (prefetch_)
      wait = i == 0 ? first_wait(device) : i == 1 ? before.freed : computed_[i - 2];
    else
      wait = i == 0 ? weights : pipeline_ ? computed_[i - 1] : output;
    double arrived = 0;
    if (task > 0) wait = std::max(wait, output_[i]);
    if (from_peer) {
      Streams& sender = device_[static_cast<size_t>(device_of(task - 1))].streams;
      arrived = put(on.peer_in, std::max(wait, sender.peer_out), input * size * peer_);
      sender.peer_out = arrived;
    } else {
      arrived = put(on.swap_in, wait, input * size * swap_);
    }
    if (prefetch_ && !pipeline_ && i == 0) load_weights();

    double ready = i == 0 ? std::max(arrived, weights) : arrived;
    size_t stash = first_stash;
    const size_t first_released = released;
    const auto stash_out = [&](double made) {
      const int32_t layer = plan.backward_packs[stash].first;
      const auto bytes = static_cast<double>(chain_.input(layer, 1));
      const double out = put(on.swap_out, made, bytes * size * swap_);
      const size_t reader = plan.forward_packs.size() + plan.backward_packs.size() - 1 - stash;
      const bool itself = device_of(reader) == device_of(task);
      for (size_t j = first_released;
           j < first_released + static_cast<size_t>(forward_.released[i]); ++j)
        stashed_[stash * backward_.of.size() + j] =
            put(on.host, out, itself ? 0 : bytes * static_cast<double>(backward_.of[j]) * message_);
      ++stash;
      return out;
    };
    if (stashes_input) {
      double made = arrived;
      if (prefetch_) made = std::max(made, i == 0 ? before.freed : computed_[i - 1]);
      const double out = stash_out(made);
      if (!prefetch_) ready = std::max(ready, out);
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      const double end = put(on.compute, ready, rest ? parts_[p].rest : parts_[p].whole);
      if (p + 1 == parts_.size()) {
        computed_[i] = end;
      } else {
        const double out = stash_out(end);
        ready = prefetch_ ? end : out;
      }
    }
    output = computed_[i];
    if (!sends_here) output = put(on.swap_out, output, result * size * swap_);
    if (!last_task) {
      next_output_[i] = output;
    } else {
      for (int64_t k = 0; k < forward_.released[i]; ++k) {
        const size_t j = first_released + static_cast<size_t>(k);
        next_output_[j] = output;
        if (converts_)
          next_output_[j] =
              put(on.host, output, result * static_cast<double>(backward_.of[j]) * message_);
      }
    }
    released += static_cast<size_t>(forward_.released[i]);
  }
  events_ += static_cast<int64_t>(count * (2 + parts_.size() + 2 * stashes));
  const double freed =
      put(on.compute, !prefetch_ && !pipeline_ ? output : kNoEvent, constants_.free_seconds);
  end_task(device, {.last = computed_[count - 1],
                    .before = count > 1 ? computed_[count - 2] : kNoEvent,
                    .freed = freed});
  std::swap(output_, next_output_);
}

void HarmonyEstimator::backward_task(const HarmonyPlan& plan, size_t task) {
  const size_t packs = plan.backward_packs.size();
  const size_t place = packs - 1 - (task - plan.forward_packs.size());
  const Pack pack = plan.backward_packs[place];
  const bool loss = place + 1 == packs;
  Device& device = device_[static_cast<size_t>(device_of(task))];
  Streams& on = device.streams;
  const Done before = device.previous;
  const size_t count = backward_.of.size();

  const auto time_of = [&](const PassTable& forward, const PassTable& backward) {
    const double recompute = ChainTables::seconds(forward, pack);
    return Part{recompute, ChainTables::seconds(backward, pack) - recompute};
  };
  const Part whole = time_of(*backward_.forward_whole, *backward_.backward_whole);
  const Part rest = time_of(*backward_.forward_rest, *backward_.backward_rest);
  const auto state = static_cast<double>(chain_.state_bytes(pack));
  const auto input = static_cast<double>(chain_.input(pack.first, 1));
  const auto result = static_cast<double>(chain_.input(pack.last + 1, 1));
  const bool from_peer = peers_ && task > 0 && !(loss && converts_);
  Streams* sender =
      from_peer ? &device_[static_cast<size_t>(device_of(task - 1))].streams : nullptr;
  double weights = 0;
  const auto load_weights = [&] {
    weights = put(on.swap_in, prefetch_ ? before.last : before.freed, state * swap_);
  };
  if (!prefetch_ || (loss && pipeline_)) load_weights();

  // Brings the output of the task before in.
  const auto receive = [&](double wait, double bytes) {
    if (!sender) return put(on.swap_in, wait, bytes * swap_);
    sender->peer_out = put(on.peer_in, std::max(wait, sender->peer_out), bytes * peer_);
    return sender->peer_out;
  };

  double recomputed = kNoEvent, sent = kNoEvent;
  for (size_t i = 0; i < count; ++i) {
    const auto size = static_cast<double>(backward_.of[i]);
    const Part& time = i + 1 == count ? rest : whole;
    double wait = kNoEvent;
    if (prefetch_)
      wait = i == 0 ? first_wait(device) : i == 1 ? before.freed : computed_[i - 2];
    else
      wait = i == 0 ? weights : pipeline_ || pack.first == 0 ? computed_[i - 1] : sent;
    double arrived = 0, gradient = kNoEvent;
    if (loss) {
      if (task > 0) wait = std::max(wait, output_[i]);
      arrived =
          task > 0 ? receive(wait, input * size) : put(on.swap_in, wait, input * size * swap_);
    } else {
      arrived = put(on.swap_in, std::max(wait, stashed_[place * count + i]), input * size * swap_);
      if (prefetch_) {
        double space = recomputed;
        if (i == 0)
          space = !pipeline_ || before.stashed_backward ? before.recomputed : first_wait(device);
        gradient = receive(std::max(space, output_[i]), result * size);
      }
    }
    if (i == 0 && prefetch_ && !(loss && pipeline_)) load_weights();
    recomputed = put(on.compute, i == 0 ? std::max(arrived, weights) : arrived, time.whole);
    if (!loss && !prefetch_) gradient = receive(std::max(recomputed, output_[i]), result * size);
    computed_[i] = put(on.compute, gradient, time.rest);
    sent = computed_[i];
    if (pack.first > 0 && !peers_) sent = put(on.swap_out, sent, input * size * swap_);
    next_output_[i] = sent;
  }
  events_ += static_cast<int64_t>(count * 5);

  double reduced = computed_[count - 1];
  if (!pipeline_ && devices_ > 1)
    reduced = put(on.compute, prefetch_ ? kNoEvent : sent,
                  2.0 * (devices_ - 1) / devices_ * state * peer_);
  const double written = put(on.swap_out, reduced, state * swap_);
  const double freed = put(on.compute, written, constants_.free_seconds);
  put(on.host, written, chain_.update_seconds(pack));
  end_task(device, {.last = computed_[count - 1],
                    .before = count > 1 ? computed_[count - 2] : kNoEvent,
                    .recomputed = recomputed,
                    .freed = freed,
                    .stashed_backward = !loss});
  std::swap(output_, next_output_);
}

double HarmonyEstimator::seconds(const HarmonyPlan& plan, int64_t minibatch, bool prefetch) {
  prefetch_ = prefetch;
  prepare(plan, minibatch);
  const size_t forwards = plan.forward_packs.size();
  for (size_t task = 0; task < forwards; ++task) forward_task(plan, task);
  for (size_t task = 0; task < plan.backward_packs.size(); ++task)
    backward_task(plan, forwards + task);
  double end = 0;
  for (const Device& device : device_) {
    const Streams& on = device.streams;
    end = std::max({end, on.swap_in, on.peer_in, on.compute, on.peer_out, on.swap_out, on.host});
  }
  return end;
}

}  // namespace windlass
