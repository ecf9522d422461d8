#include "windlass/search/peers/harmony/harmony_by_events.h"

#include <algorithm>
#include <map>
#include <set>

#include "windlass/search/peers/harmony/event_list.h"

namespace windlass {
namespace {

struct CoarseTask {
  Pack pack;
  bool forward = false, loss = false;
  int device = 0;
  int previous = -1, earlier = -1;  // tasks of the same device
};

// The events of a step, task by task.
class StepEvents {
  using Kind = EventList::Kind;
  using Name = EventList::Name;
  using enum EventList::Stream;

 public:
  StepEvents(ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch, bool prefetch,
             const HarmonyConstants& constants)
      : chain_(chain), plan_(plan), prefetch_(prefetch), constants_(constants) {
    pipeline_ = plan.mode == HarmonyMode::Pipeline;
    const int64_t samples = samples_of_device(plan.mode, minibatch, plan.devices);
    for (auto [sizes, size] : {std::pair(&forward_sizes_, plan.forward_microbatch),
                               std::pair(&backward_sizes_, plan.backward_microbatch)})
      for (int64_t left = samples; left > 0; left -= size) sizes->push_back(std::min(left, size));
    list_tasks();
    for (int t = 0; t < static_cast<int>(tasks_.size()); ++t)
      tasks_[static_cast<size_t>(t)].forward ? add_forward(t) : add_backward(t);
  }

  EventList list;

 private:
  void list_tasks() {
    for (const Pack& pack : plan_.forward_packs) tasks_.push_back({pack, true, false});
    for (size_t p = plan_.backward_packs.size(); p-- > 0;)
      tasks_.push_back({plan_.backward_packs[p], false, p + 1 == plan_.backward_packs.size()});
    const int count = static_cast<int>(tasks_.size());
    devices_ = pipeline_ ? std::min(count, plan_.devices) : plan_.devices;
    std::map<int, int> newest, second;
    for (int t = 0; t < count; ++t) {
      CoarseTask& task = tasks_[static_cast<size_t>(t)];
      task.device = pipeline_ ? t % devices_ : 0;
      if (newest.contains(task.device)) task.previous = newest[task.device];
      if (second.contains(task.device)) task.earlier = second[task.device];
      if (newest.contains(task.device)) second[task.device] = newest[task.device];
      newest[task.device] = t;
    }
    for (size_t p = 0; p + 1 < plan_.backward_packs.size(); ++p)
      stash_layers_.insert(plan_.backward_packs[p].first);
  }

  const CoarseTask& at(int t) const { return tasks_[static_cast<size_t>(t)]; }
  const std::vector<int64_t>& sizes(int t) const {
    return at(t).forward ? forward_sizes_ : backward_sizes_;
  }
  int parts(int t) const { return static_cast<int>(sizes(t).size()); }
  bool peers() const { return pipeline_ && devices_ > 1; }
  bool converts() const { return peers() && plan_.forward_microbatch != plan_.backward_microbatch; }
  double swap(int64_t bytes) const {
    return static_cast<double>(bytes) / (constants_.swap_bandwidth / devices_);
  }
  double peer(int64_t bytes) const {
    return static_cast<double>(bytes) / constants_.peer_bandwidth;
  }
  double message(int64_t bytes, int from, int to) const {
    if (from == to) return 0;
    return 2 * static_cast<double>(bytes) / (constants_.message_bandwidth / devices_);
  }

  // First layers of the parts that a forward pack is computed in.
  std::vector<int> part_layers(Pack pack) const {
    std::vector<int> result{pack.first};
    for (int layer : stash_layers_)
      if (layer > pack.first && layer <= pack.last) result.push_back(layer);
    return result;
  }
  // "Compute" of a micro-batch: its last forward part, or its backward.
  Name computed(int t, int part) const {
    if (t < 0 || part < 0) return {};
    if (at(t).forward) return {t, Kind::Forward, part, part_layers(at(t).pack).back()};
    return {t, Kind::Backward, part};
  }
  Name freed(int t) const { return {t, Kind::Free}; }
  Name first_wait(const CoarseTask& task) const {
    if (task.previous < 0) return {};
    return parts(task.previous) >= 2 ? computed(task.previous, parts(task.previous) - 2)
                                     : freed(task.earlier);
  }
  // What the input of a micro-batch waits for besides its source.
  Name input_wait(int t, int i) const {
    const CoarseTask& task = at(t);
    if (prefetch_) {
      if (i == 0) return first_wait(task);
      return i == 1 ? freed(task.previous) : computed(t, i - 2);
    }
    if (i == 0) return {t, Kind::Weights};
    if (pipeline_ || (!task.forward && task.pack.first == 0)) return computed(t, i - 1);
    return {t, Kind::Output, i - 1};
  }
  // The forward micro-batch with which the samples of a backward one are complete.
  int completed_with(int backward_part) const {
    int64_t samples = 0, done = 0;
    for (int j = 0; j <= backward_part; ++j) samples += backward_sizes_[static_cast<size_t>(j)];
    int i = 0;
    while ((done += forward_sizes_[static_cast<size_t>(i)]) < samples) ++i;
    return i;
  }

  void add_weights(int t) {
    const CoarseTask& task = at(t);
    const Name wait =
        prefetch_ ? (task.previous < 0 ? Name{} : computed(task.previous, parts(task.previous) - 1))
                  : freed(task.previous);
    list.add(
        {{t, Kind::Weights}, task.device, SwapIn, swap(chain_.state_bytes(task.pack)), {wait}});
  }
  // Output of task t - 1 into task t, as an input or as a gradient.
  void add_receive(int t, Kind kind, int i, int64_t bytes, Name wait) {
    const CoarseTask& task = at(t);
    const bool between_passes = !task.forward && task.loss;
    if (t == 0) {
      list.add({{t, kind, i}, task.device, SwapIn, swap(bytes), {wait}});
    } else if (peers() && !(between_passes && converts())) {
      list.add({{t, kind, i}, task.device, PeerIn, peer(bytes), {wait}, {t - 1, Kind::Output, i}});
    } else if (between_passes && converts()) {
      list.add({{t, kind, i},
                task.device,
                SwapIn,
                swap(bytes),
                {wait, {t - 1, Kind::OutputMessage, i}}});
    } else {
      const int source = between_passes ? completed_with(i) : i;
      list.add(
          {{t, kind, i}, task.device, SwapIn, swap(bytes), {wait, {t - 1, Kind::Output, source}}});
    }
  }
  // Output of task t for task t + 1.
  void add_output(int t, int i, int64_t bytes) {
    const CoarseTask& task = at(t);
    const bool to_loss = task.forward && at(t + 1).loss;
    if (peers() && !(to_loss && converts())) {
      const Kind kind = task.forward || at(t + 1).loss ? Kind::Input : Kind::Gradient;
      list.add({{t, Kind::Output, i},
                task.device,
                PeerOut,
                peer(bytes),
                {computed(t, i)},
                {t + 1, kind, i}});
      return;
    }
    list.add({{t, Kind::Output, i}, task.device, SwapOut, swap(bytes), {computed(t, i)}});
    if (!(to_loss && converts())) return;
    for (int j = 0; j < static_cast<int>(backward_sizes_.size()); ++j)
      if (completed_with(j) == i)
        list.add({{t, Kind::OutputMessage, j},
                  task.device,
                  Host,
                  message(chain_.input(task.pack.last + 1, backward_sizes_[static_cast<size_t>(j)]),
                          task.device, at(t + 1).device),
                  {{t, Kind::Output, i}}});
  }
  void add_stash(int t, int i, int layer, std::vector<Name> waits) {
    const CoarseTask& task = at(t);
    list.add({{t, Kind::StashOut, i, layer},
              task.device,
              SwapOut,
              swap(chain_.input(layer, sizes(t)[static_cast<size_t>(i)])),
              std::move(waits)});
    int reader = 0;
    while (at(reader).forward || at(reader).pack.first != layer) ++reader;
    for (int j = 0; j < static_cast<int>(backward_sizes_.size()); ++j)
      if (completed_with(j) == i)
        list.add({{reader, Kind::StashMessage, j},
                  task.device,
                  Host,
                  message(chain_.input(layer, backward_sizes_[static_cast<size_t>(j)]), task.device,
                          at(reader).device),
                  {{t, Kind::StashOut, i, layer}}});
  }

  void add_forward(int t) {
    const CoarseTask& task = at(t);
    const std::vector<int> layers = part_layers(task.pack);
    const bool weights_first = !prefetch_ || pipeline_;
    if (weights_first) add_weights(t);
    for (int i = 0; i < parts(t); ++i) {
      const int64_t size = sizes(t)[static_cast<size_t>(i)];
      add_receive(t, Kind::Input, i, chain_.input(task.pack.first, size), input_wait(t, i));
      if (i == 0 && !weights_first) add_weights(t);
      for (size_t p = 0; p < layers.size(); ++p) {
        const int layer = layers[p];
        const bool stashed = stash_layers_.contains(layer);
        if (stashed) {
          std::vector<Name> waits{p == 0 ? Name{t, Kind::Input, i}
                                         : Name{t, Kind::Forward, i, layers[p - 1]}};
          if (p == 0 && prefetch_)
            waits.push_back(i == 0 ? freed(task.previous) : computed(t, i - 1));
          add_stash(t, i, layer, waits);
        }
        std::vector<Name> waits;
        if (p == 0) waits.push_back({t, Kind::Input, i});
        if (p == 0 && i == 0) waits.push_back({t, Kind::Weights});
        if (stashed && !prefetch_) waits.push_back({t, Kind::StashOut, i, layer});
        const int end = p + 1 < layers.size() ? layers[p + 1] : task.pack.last + 1;
        list.add({{t, Kind::Forward, i, layer},
                  task.device,
                  Compute,
                  ChainTables::seconds(chain_.forward(size), {layer, end - 1}),
                  waits});
      }
      add_output(t, i, chain_.input(task.pack.last + 1, size));
    }
    std::vector<Name> waits;
    if (!prefetch_ && !pipeline_) waits.push_back({t, Kind::Output, parts(t) - 1});
    list.add({freed(t), task.device, Compute, constants_.free_seconds, waits});
  }

  void add_backward(int t) {
    const CoarseTask& task = at(t);
    const bool weights_first = !prefetch_ || (task.loss && pipeline_);
    if (weights_first) add_weights(t);
    for (int i = 0; i < parts(t); ++i) {
      const int64_t size = sizes(t)[static_cast<size_t>(i)];
      const int64_t input = chain_.input(task.pack.first, size);
      const Kind source = task.loss ? Kind::Input : Kind::StashIn;
      if (task.loss) {
        add_receive(t, source, i, input, input_wait(t, i));
      } else {
        list.add({{t, source, i},
                  task.device,
                  SwapIn,
                  swap(input),
                  {input_wait(t, i), {t, Kind::StashMessage, i}}});
        Name wait{t, Kind::Recompute, i};
        if (prefetch_) {
          const int last = task.previous < 0 ? -1 : parts(task.previous) - 1;
          const bool after_backward =
              task.previous >= 0 && !at(task.previous).forward && !at(task.previous).loss;
          wait = {t, Kind::Recompute, i - 1};
          if (i == 0)
            wait = !pipeline_ || after_backward ? Name{task.previous, Kind::Recompute, last}
                                                : first_wait(task);
        }
        add_receive(t, Kind::Gradient, i, chain_.input(task.pack.last + 1, size), wait);
      }
      if (i == 0 && !weights_first) add_weights(t);
      const double recompute = ChainTables::seconds(chain_.forward(size), task.pack);
      std::vector<Name> waits{{t, source, i}};
      if (i == 0) waits.push_back({t, Kind::Weights});
      list.add({{t, Kind::Recompute, i}, task.device, Compute, recompute, waits});
      list.add({{t, Kind::Backward, i},
                task.device,
                Compute,
                ChainTables::seconds(chain_.backward(size), task.pack) - recompute,
                {{t, Kind::Gradient, i}}});
      if (task.pack.first > 0) add_output(t, i, input);
    }
    const int64_t state = chain_.state_bytes(task.pack);
    const Name last_output{t, Kind::Output, parts(t) - 1};
    std::vector<Name> waits{computed(t, parts(t) - 1), {t, Kind::AllReduce}};
    if (!pipeline_ && devices_ > 1)
      list.add({{t, Kind::AllReduce},
                task.device,
                Compute,
                2.0 * (devices_ - 1) / devices_ * peer(state),
                prefetch_ ? std::vector<Name>{} : std::vector<Name>{last_output}});
    else if (!pipeline_ && !prefetch_)
      waits.push_back(last_output);
    list.add({{t, Kind::WriteBack}, task.device, SwapOut, swap(state), waits});
    list.add({freed(t), task.device, Compute, constants_.free_seconds, {{t, Kind::WriteBack}}});
    list.add({{t, Kind::Update},
              task.device,
              Host,
              chain_.update_seconds(task.pack),
              {{t, Kind::WriteBack}}});
  }

  ChainTables& chain_;
  const HarmonyPlan& plan_;
  bool prefetch_ = false, pipeline_ = false;
  int devices_ = 1;
  HarmonyConstants constants_;
  std::vector<int64_t> forward_sizes_, backward_sizes_;
  std::vector<CoarseTask> tasks_;
  std::set<int> stash_layers_;
};

}  // namespace

double harmony_seconds_by_events(ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch,
                                 bool prefetch, const HarmonyConstants& constants) {
  return StepEvents(chain, plan, minibatch, prefetch, constants).list.dispatch();
}

}  // namespace windlass
