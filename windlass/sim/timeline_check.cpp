#include "windlass/sim/timeline_check.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

namespace windlass {
namespace {

class Checker {
 public:
  Checker(const TaskGraph& graph, const TaskTimes& times, const SimResult& result)
      : graph_(graph), times_(times), result_(result) {}

  std::vector<std::string> run() {
    const size_t count = graph_.size();
    if (result_.start.size() != count || result_.end.size() != count ||
        result_.peaks.size() != graph_.memories.size() || times_.duration.size() != count ||
        times_.workspace.size() != count) {
      complain("the result is not of this graph");
      return complaints_;
    }
    check_order();
    check_durations();
    check_links();
    check_memories();
    check_whole();
    return complaints_;
  }

 private:
  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    complaints_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool ran(size_t task) const { return result_.start[task] >= 0; }

  void check_order() {
    const std::unordered_set<Nanoseconds> ends(result_.end.begin(), result_.end.end());
    std::vector<TaskId> last(graph_.lanes.size());
    for (size_t i = 0; i < graph_.size(); ++i) {
      Nanoseconds possible = 0;
      const auto follow = [&](TaskId before, const char* what) {
        const Nanoseconds end = result_.end[before.index()];
        if (ran(i) && (end < 0 || end > result_.start[i])) {
          complain("task {} starts at {} before {} {} ends at {}", i, result_.start[i], what,
                   before.value, end);
        }
        possible = std::max(possible, end);
      };
      for (TaskId before : graph_.predecessors_of(TaskId(i))) follow(before, "its predecessor");
      for (LaneId lane : graph_.lanes_of(TaskId(i))) {
        TaskId& before = last[lane.index()];
        if (before.valid() && before != TaskId(i)) follow(before, "the task before it on its lane");
        before = TaskId(i);
      }
      if (ran(i) && result_.start[i] > possible && !ends.contains(result_.start[i])) {
        complain("task {} could start at {} but starts at {}, when nothing ends", i, possible,
                 result_.start[i]);
      }
    }
  }

  // Traffic that shares links; others take a fixed time.
  const std::vector<SharedLoad>* loads_of(size_t task) const {
    if (!moves(graph_.tasks[task].kind)) return nullptr;
    const auto price = static_cast<size_t>(graph_.tasks[task].price);
    const bool shares = graph_.traffics[price].volume.value > 0 && !graph_.loads[price].empty();
    return shares ? &graph_.loads[price] : nullptr;
  }
  double volume_of(size_t task) const {
    const auto price = static_cast<size_t>(graph_.tasks[task].price);
    return static_cast<double>(graph_.traffics[price].volume.value) * 0x1p20;
  }
  double capacity_of(size_t link) const {
    return std::max(1.0, std::round(graph_.links[link].bandwidth.value * 0x1p20 / 1e9));
  }

  void check_durations() {
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (!ran(i)) continue;
      const Nanoseconds took = result_.end[i] - result_.start[i];
      if (!loads_of(i)) {
        const Nanoseconds expected = std::max<Nanoseconds>(1, times_.duration[i]);
        if (took != expected) complain("task {} takes {}, not {}", i, took, expected);
        continue;
      }
      double rate = INFINITY;
      for (const SharedLoad& load : *loads_of(i)) {
        rate = std::min(rate, capacity_of(static_cast<size_t>(load.link)) * double{kLoadUnit} /
                                  static_cast<double>(load.weight));
      }
      const double least = volume_of(i) / std::max(1.0, rate);
      // Doubles lose less than a nanosecond of any step that ends within a month.
      if (static_cast<double>(took - times_.duration[i]) < least - 1) {
        complain("task {} takes {}, but its traffic alone takes {} after a latency of {}", i, took,
                 least, times_.duration[i]);
      }
    }
  }

  void check_links() {
    struct Passage {
      Nanoseconds from, to;
      double units;
      double rounding;  // per nanosecond, that rates may exceed the capacity by
    };
    std::vector<std::vector<Passage>> passages(graph_.links.size());
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (!ran(i) || !loads_of(i)) continue;
      for (const SharedLoad& load : *loads_of(i)) {
        const double weight = static_cast<double>(load.weight) / double{kLoadUnit};
        passages[static_cast<size_t>(load.link)].push_back({result_.start[i] + times_.duration[i],
                                                            result_.end[i], volume_of(i) * weight,
                                                            1 + weight});
      }
    }
    for (size_t link = 0; link < passages.size(); ++link) {
      auto& list = passages[link];
      std::sort(list.begin(), list.end(),
                [](const Passage& a, const Passage& b) { return a.from < b.from; });
      for (size_t i = 0; i < list.size();) {
        Passage busy = list[i];
        for (++i; i < list.size() && list[i].from < busy.to; ++i) {
          busy.to = std::max(busy.to, list[i].to);
          busy.units += list[i].units;
          busy.rounding += list[i].rounding;
        }
        const auto length = static_cast<double>(busy.to - busy.from);
        if (busy.units > length * (capacity_of(link) + busy.rounding) * (1 + 1e-9)) {
          complain("link {} passes {} bytes from {} to {}, more than it can", link,
                   busy.units / 0x1p20, busy.from, busy.to);
        }
      }
    }
  }

  struct Event {
    Nanoseconds time = 0;
    int64_t change = 0;
  };

  void check_memories() {
    struct Life {
      Nanoseconds from = -1, to = -1;  // -1: not yet
      bool lasts = false;
    };
    std::vector<Life> lives(graph_.buffers.size());
    std::vector<std::vector<Event>> events(graph_.memories.size());
    for (size_t i = 0; i < graph_.size(); ++i) {
      for (const Use& use : graph_.uses_of(TaskId(i))) {
        Life& life = lives[use.buffer.index()];
        if (ran(i) && (life.from < 0 || result_.start[i] < life.from)) life.from = result_.start[i];
        life.to = std::max(life.to, result_.end[i]);
        life.lasts |= result_.end[i] < 0;
      }
      if (!ran(i) || times_.workspace[i] <= 0) continue;
      const MemoryId memory = graph_[graph_[graph_.lanes_of(TaskId(i))[0]].team].memory;
      events[memory.index()].push_back({result_.start[i], times_.workspace[i]});
      events[memory.index()].push_back({result_.end[i], -times_.workspace[i]});
    }
    std::vector<int64_t> at_start(graph_.memories.size(), 0);
    for (size_t i = 0; i < lives.size(); ++i) {
      const Buffer& buffer = graph_.buffers[i];
      const Life& life = lives[i];
      const size_t memory = buffer.memory.index();
      if (buffer.at_start) {
        at_start[memory] += buffer.bytes.value;
      } else if (life.from >= 0) {
        events[memory].push_back({life.from, buffer.bytes.value});
      }
      if (life.to >= 0 && !life.lasts && !buffer.at_end)
        events[memory].push_back({life.to, -buffer.bytes.value});
    }
    for (size_t i = 0; i < events.size(); ++i) check_peak(i, at_start[i], events[i]);
  }

  void check_peak(size_t memory, int64_t at_start, std::vector<Event>& events) {
    // Releases before starts: they are the negative ones.
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return a.time != b.time ? a.time < b.time : a.change < b.change;
    });
    int64_t live = at_start;
    int64_t highest = live;
    Nanoseconds when = 0;
    for (const Event& event : events) {
      live += event.change;
      if (live <= highest) continue;
      highest = live;
      when = event.time;
    }
    const MemoryPeak& peak = result_.peaks[memory];
    if (peak.bytes != highest || peak.time != when) {
      complain("memory {} has its peak of {} bytes at {}, not {} at {}", memory, highest, when,
               peak.bytes, peak.time);
    }
    if (peak.task.valid() != (highest > at_start))
      complain("memory {}: its peak is {}of the start", memory, highest > at_start ? "not " : "");
    if (peak.task.valid() && result_.start[peak.task.index()] != when)
      complain("memory {}: task {} does not start at its peak", memory, peak.task.value);
  }

  void check_whole() {
    Nanoseconds last = 0;
    for (size_t i = 0; i < graph_.size(); ++i) {
      last = std::max(last, result_.end[i]);
      if (ran(i) != (result_.end[i] >= 0)) complain("task {} starts but does not end", i);
      if (!ran(i) && result_.status == SimStatus::Done) complain("task {} never ran", i);
    }
    if (result_.makespan != last)
      complain("the makespan is {}, but the last task ends at {}", result_.makespan, last);
  }

  const TaskGraph& graph_;
  const TaskTimes& times_;
  const SimResult& result_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<std::string> check_timeline(const TaskGraph& graph, const TaskTimes& times,
                                        const SimResult& result) {
  return Checker(graph, times, result).run();
}

}  // namespace windlass
