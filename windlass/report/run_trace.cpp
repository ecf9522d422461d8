#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/report/labels.h"
#include "windlass/report/lives.h"
#include "windlass/report/trace.h"
#include "windlass/report/trace_events.h"

namespace windlass {
namespace {

// A step as one device saw it, or the host (no device): when its part of each task ran.
struct Seen {
  DeviceId device;
  SimResult result;  // its start, end and makespan
};

// As it was predicted, or as it was measured.
struct Side {
  std::string title;
  std::vector<Seen> seen;  // by process: devices, then the host
  SimResult all;           // by task, whoever was last
};

class RunTraceWriter {
 public:
  RunTraceWriter(const SimulatedStep& predicted, const StepRecord& measured, const Graph* training,
                 const Machine& machine, const std::function<void(std::string_view)>& write)
      : graph_(predicted.tasks),
        times_(predicted.times),
        training_(training),
        machine_(machine),
        events_(write) {
    for (const Team& team : graph_.teams)
      devices_.insert(devices_.end(), team.devices.begin(), team.devices.end());
    std::ranges::sort(devices_);
    devices_.erase(std::unique(devices_.begin(), devices_.end()), devices_.end());
    devices_.push_back({});
    add_predicted(predicted.whole());
    add_measured(measured);
    clock_error_ = static_cast<double>(measured.clock_error);
  }

  TraceSummary run(const TraceOptions& options) {
    choose_window(options.max_events);
    for (size_t d = 0; d < devices_.size(); ++d)
      for (size_t s = 0; s < sides_.size(); ++s) write_place(d, s);
    for (size_t s = 0; s < sides_.size(); ++s) {
      if (graph_.links.empty()) continue;
      const size_t process = process_of(devices_.size(), s);
      events_.name_process(process, "links: " + sides_[s].title);
      write_links(events_, graph_, training_, machine_, {sides_[s].all.start, sides_[s].all.end},
                  shown_until(), process);
    }
    events_.finish(clock_error_ == 0 ? ""
                                     : fmt::format(R"("clock_error_s":{})", clock_error_ * 1e-9));
    return {events_.written(), seconds(until_), until_ < makespan_};
  }

 private:
  size_t process_of(size_t place, size_t side) const { return place * sides_.size() + side + 1; }

  void add_predicted(const SimResult& result) {
    Side& side = sides_.emplace_back(Side{"predicted", {}, result});
    for (DeviceId device : devices_) side.seen.push_back({device, result});
    makespan_ = result.makespan;
  }

  void add_measured(const StepRecord& record) {
    SimResult all;
    all.start = record.start;
    all.end = record.end;
    all.makespan = record.end.empty() ? 0 : *std::ranges::max_element(record.end);
    makespan_ = std::max(makespan_, all.makespan);
    Side& side = sides_.emplace_back(Side{"measured", {}, all});
    // What others did is taken as the last of them did it: buffers that they share live so long.
    for (DeviceId device : devices_) side.seen.push_back({device, all});
    for (const PartTime& part : record.parts)
      for (size_t d = 0; d < devices_.size(); ++d)
        if (part.device.valid() && part.device == devices_[d]) {
          side.seen[d].result.start[part.task.index()] = part.start;
          side.seen[d].result.end[part.task.index()] = part.end;
        }
  }

  bool has_lane(DeviceId device, LaneId id) const {
    const Lane& lane = graph_[id];
    if (lane.kind == LaneKind::Host) return !device.valid();
    return lane.team.valid() &&
           std::ranges::find(graph_[lane.team].devices, device) != graph_[lane.team].devices.end();
  }
  bool has_memory(DeviceId device, MemoryId id) const {
    const TeamId team = graph_[id].team;
    if (!team.valid()) return !device.valid();
    return std::ranges::find(graph_[team].devices, device) != graph_[team].devices.end();
  }

  void choose_window(size_t max_events) {
    std::vector<Nanoseconds> moments;
    for (const Side& side : sides_) {
      for (const Seen& seen : side.seen)
        for (size_t i = 0; i < graph_.size(); ++i)
          for (LaneId lane : graph_.lanes_of(TaskId(i)))
            if (seen.result.end[i] >= 0 && has_lane(seen.device, lane))
              moments.push_back(seen.result.start[i]);
      add_link_moments(graph_, {side.all.start, side.all.end}, moments);
    }
    until_ = trace_window(std::move(moments), max_events, makespan_);
  }
  // What begins before is written.
  Nanoseconds shown_until() const { return until_ == makespan_ ? until_ + 1 : until_; }

  void write_place(size_t place, size_t side) {
    const Seen& seen = sides_[side].seen[place];
    const size_t process = process_of(place, side);
    const std::string name = seen.device.valid() ? machine_[seen.device].name : "host";
    events_.name_process(process, name + ": " + sides_[side].title);
    for (size_t i = 0; i < graph_.lanes.size(); ++i)
      if (has_lane(seen.device, LaneId(i)))
        events_.name_track(process, i + 1, lane_label(graph_, LaneId(i)));
    const SimResult& result = seen.result;
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (result.end[i] < 0 || result.start[i] >= shown_until()) continue;
      for (LaneId lane : graph_.lanes_of(TaskId(i)))
        if (has_lane(seen.device, lane))
          write_task(events_, graph_, training_, TaskId(i), process, lane.index() + 1,
                     result.start[i], result.end[i]);
    }
    const auto changes = memory_changes(graph_, times_, result);
    for (size_t m = 0; m < changes.size(); ++m) {
      if (!has_memory(seen.device, MemoryId(m))) continue;
      for (const MemoryChange& change : changes[m])
        if (change.time <= until_) events_.live_bytes(process, change.time, change.bytes);
    }
  }

  const TaskGraph& graph_;
  const TaskTimes& times_;
  const Graph* training_;
  const Machine& machine_;
  TraceEvents events_;
  std::vector<DeviceId> devices_;  // ascending, then none for the host
  std::vector<Side> sides_;
  Nanoseconds makespan_ = 0, until_ = 0;
  double clock_error_ = 0;
};

}  // namespace

TraceSummary write_run_trace(const SimulatedStep& predicted, const StepRecord& measured,
                             const Graph* training, const Machine& machine,
                             const std::function<void(std::string_view)>& write,
                             const TraceOptions& options) {
  return RunTraceWriter(predicted, measured, training, machine, write).run(options);
}

}  // namespace windlass
