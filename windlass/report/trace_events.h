// Events of a Chrome trace, as they are written: what all traces of windlass have in common.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/plan/step.h"

namespace windlass {

// Hands the JSON piece by piece to `write`, which must outlive it. Times are in microseconds, as
// the format asks, with nanoseconds after the point.
class TraceEvents {
 public:
  explicit TraceEvents(const std::function<void(std::string_view)>& write);

  // Processes and tracks are shown in the order of their numbers.
  void name_process(size_t process, const std::string& name);
  void name_track(size_t process, size_t track, const std::string& name);
  // `arguments`: members of a JSON object.
  void slice(size_t process, size_t track, Nanoseconds start, Nanoseconds end,
             const std::string& label, std::string_view category, const std::string& arguments);
  void live_bytes(size_t process, Nanoseconds time, int64_t bytes);
  // After the last one. `facts`: members of a JSON object, of the trace as a whole.
  void finish(const std::string& facts = {});

  // Slices and counters.
  size_t written() const { return written_; }

 private:
  void name(std::string_view what, size_t process, size_t track, const std::string& name);
  void event(std::string_view body);

  const std::function<void(std::string_view)>& write_;
  size_t written_ = 0;
  bool first_ = true;
  std::string text_;
};

// A slice for a task on one of its tracks.
void write_task(TraceEvents& events, const TaskGraph& graph, const Graph* training, TaskId task,
                size_t process, size_t track, Nanoseconds start, Nanoseconds end);

// Times of tasks, by task; what did not run has no end (-1).
struct TraceTimes {
  const std::vector<Nanoseconds>& start;
  const std::vector<Nanoseconds>& end;
};

// Names the tracks of the links, and writes periods with the same transfers under way, link by
// link, of those transfers that begin before `until`.
void write_links(TraceEvents& events, const TaskGraph& graph, const Graph* training,
                 const Machine& machine, const TraceTimes& times, Nanoseconds until,
                 size_t process);

// Moments at which the transfers of a step may begin an event on the track of a link.
void add_link_moments(const TaskGraph& graph, const TraceTimes& times,
                      std::vector<Nanoseconds>& moments);

// Up to when events are written if more than so many are too many: the makespan if they are not.
Nanoseconds trace_window(std::vector<Nanoseconds> moments, size_t max_events, Nanoseconds makespan);

}  // namespace windlass
