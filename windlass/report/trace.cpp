#include "windlass/report/trace.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/report/labels.h"
#include "windlass/report/lives.h"
#include "windlass/report/trace_events.h"

namespace windlass {
namespace {

class TraceWriter {
 public:
  TraceWriter(const SimulatedStep& step, const Graph* training, const Machine& machine,
              const std::function<void(std::string_view)>& write)
      : step_(step),
        graph_(step.tasks),
        result_(step.whole()),
        training_(training),
        machine_(machine),
        events_(write) {}

  TraceSummary run(const TraceOptions& options) {
    changes_ = memory_changes(graph_, step_.times, result_);
    choose_window(options.max_events);
    name_tracks();
    write_tasks();
    write_links(events_, graph_, training_, machine_, {result_.start, result_.end}, shown_until(),
                link_process());
    write_counters();
    events_.finish();
    return {events_.written(), seconds(until_), until_ < result_.makespan};
  }

 private:
  // Processes: teams, then host memories, then links.
  size_t process_of(TeamId team) const { return team.index() + 1; }
  size_t process_of(MemoryId memory) const {
    const TeamId team = graph_[memory].team;
    return team.valid() ? process_of(team) : graph_.teams.size() + 1 + memory.index();
  }
  size_t link_process() const { return graph_.teams.size() + graph_.memories.size() + 1; }

  void choose_window(size_t max_events) {
    std::vector<Nanoseconds> moments;
    for (size_t i = 0; i < graph_.size(); ++i)
      if (result_.end[i] >= 0)
        moments.insert(moments.end(), graph_.lanes_of(TaskId(i)).size(), result_.start[i]);
    add_link_moments(graph_, {result_.start, result_.end}, moments);
    for (const auto& changes : changes_)
      for (const MemoryChange& change : changes) moments.push_back(change.time);
    until_ = trace_window(std::move(moments), max_events, result_.makespan);
  }

  // What begins before is written.
  Nanoseconds shown_until() const { return until_ == result_.makespan ? until_ + 1 : until_; }

  void name_tracks() {
    for (size_t t = 0; t < graph_.teams.size(); ++t)
      events_.name_process(process_of(TeamId(t)), team_label(graph_, TeamId(t)));
    for (size_t m = 0; m < graph_.memories.size(); ++m)
      if (!graph_.memories[m].team.valid())
        events_.name_process(process_of(MemoryId(m)), graph_.memories[m].name);
    if (!graph_.links.empty()) events_.name_process(link_process(), "links");
    for (size_t i = 0; i < graph_.lanes.size(); ++i)
      events_.name_track(process_of(graph_.lanes[i].team), i + 1, lane_label(graph_, LaneId(i)));
  }

  void write_tasks() {
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (result_.end[i] < 0 || result_.start[i] >= shown_until()) continue;
      for (LaneId lane : graph_.lanes_of(TaskId(i)))
        write_task(events_, graph_, training_, TaskId(i), process_of(graph_[lane].team),
                   lane.index() + 1, result_.start[i], result_.end[i]);
    }
  }

  void write_counters() {
    for (size_t m = 0; m < changes_.size(); ++m)
      for (const MemoryChange& change : changes_[m]) {
        if (change.time > until_) break;
        events_.live_bytes(process_of(MemoryId(m)), change.time, change.bytes);
      }
  }

  const SimulatedStep& step_;
  const TaskGraph& graph_;
  const SimResult& result_;
  const Graph* training_;
  const Machine& machine_;
  TraceEvents events_;
  std::vector<std::vector<MemoryChange>> changes_;
  Nanoseconds until_ = 0;
};

}  // namespace

TraceSummary write_trace(const SimulatedStep& step, const Graph* training, const Machine& machine,
                         const std::function<void(std::string_view)>& write,
                         const TraceOptions& options) {
  return TraceWriter(step, training, machine, write).run(options);
}

}  // namespace windlass
