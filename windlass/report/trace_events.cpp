#include "windlass/report/trace_events.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/report/labels.h"

namespace windlass {
namespace {

constexpr size_t kChunk = 1 << 16;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string micro(Nanoseconds time) { return fmt::format("{}.{:03}", time / 1000, time % 1000); }

const std::vector<SharedLoad>& loads_of(const TaskGraph& graph, TaskId task) {
  return graph.loads[static_cast<size_t>(graph[task].price)];
}

}  // namespace

TraceEvents::TraceEvents(const std::function<void(std::string_view)>& write) : write_(write) {
  write_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
}

void TraceEvents::event(std::string_view body) {
  if (!first_) text_ += ',';
  first_ = false;
  text_ += '\n';
  text_ += body;
  if (text_.size() < kChunk) return;
  write_(text_);
  text_.clear();
}

void TraceEvents::finish(const std::string& facts) {
  text_ += facts.empty() ? "\n]}\n" : fmt::format("\n],\"otherData\":{{{}}}}}\n", facts);
  write_(text_);
  text_.clear();
}

void TraceEvents::name(std::string_view what, size_t process, size_t track,
                       const std::string& name) {
  event(fmt::format(R"({{"ph":"M","name":"{}_name","pid":{},"tid":{},"args":{{"name":{}}}}})", what,
                    process, track, quoted(name)));
  event(fmt::format(
      R"({{"ph":"M","name":"{}_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", what,
      process, track, what == "process" ? process : track));
}

void TraceEvents::name_process(size_t process, const std::string& text) {
  name("process", process, 0, text);
}

void TraceEvents::name_track(size_t process, size_t track, const std::string& text) {
  name("thread", process, track, text);
}

void TraceEvents::slice(size_t process, size_t track, Nanoseconds start, Nanoseconds end,
                        const std::string& label, std::string_view category,
                        const std::string& arguments) {
  event(fmt::format(
      R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}}}})",
      process, track, micro(start), micro(end - start), quoted(label), category, arguments));
  ++written_;
}

void TraceEvents::live_bytes(size_t process, Nanoseconds time, int64_t bytes) {
  event(fmt::format(R"({{"ph":"C","pid":{},"ts":{},"name":"live bytes","args":{{"bytes":{}}}}})",
                    process, micro(time), bytes));
  ++written_;
}

void write_task(TraceEvents& events, const TaskGraph& graph, const Graph* training, TaskId id,
                size_t process, size_t track, Nanoseconds start, Nanoseconds end) {
  const Task& task = graph[id];
  std::string arguments = fmt::format(R"("task":{})", id.index());
  if (task.micro_batch >= 0) arguments += fmt::format(R"(,"micro_batch":{})", task.micro_batch);
  if (moves(task.kind))
    arguments +=
        fmt::format(R"(,"bytes":{})", graph.traffics[static_cast<size_t>(task.price)].volume.value);
  events.slice(process, track, start, end, task_label(graph, training, id),
               task_kind_name(task.kind), arguments);
}

void write_links(TraceEvents& events, const TaskGraph& graph, const Graph* training,
                 const Machine& machine, const TraceTimes& times, Nanoseconds until,
                 size_t process) {
  for (size_t i = 0; i < graph.links.size(); ++i)
    events.name_track(process, i + 1, link_label(machine, graph.links[i]));
  struct Change {
    Nanoseconds time;
    bool begins;
    TaskId task;
  };
  std::vector<std::vector<Change>> changes(graph.links.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    if (!moves(graph.tasks[i].kind) || times.end[i] < 0 || times.start[i] >= until) continue;
    for (const SharedLoad& load : loads_of(graph, TaskId(i))) {
      auto& list = changes[static_cast<size_t>(load.link)];
      list.push_back({times.start[i], true, TaskId(i)});
      list.push_back({times.end[i], false, TaskId(i)});
    }
  }
  std::vector<TaskId> present;
  for (size_t link = 0; link < changes.size(); ++link) {
    auto& list = changes[link];
    std::sort(list.begin(), list.end(), [](const Change& a, const Change& b) {
      return std::tuple(a.time, a.begins, a.task) < std::tuple(b.time, b.begins, b.task);
    });
    present.clear();
    Nanoseconds since = 0;
    for (const Change& change : list) {
      if (!present.empty() && change.time > since) {
        const std::string label = present.size() == 1 ? task_label(graph, training, present.front())
                                                      : fmt::format("{} transfers", present.size());
        events.slice(
            process, link + 1, since, change.time, label, "link",
            fmt::format(R"("transfers":{},"task":{})", present.size(), present.front().value));
      }
      since = change.time;
      if (change.begins)
        present.push_back(change.task);
      else
        present.erase(std::find(present.begin(), present.end(), change.task));
    }
  }
}

void add_link_moments(const TaskGraph& graph, const TraceTimes& times,
                      std::vector<Nanoseconds>& moments) {
  for (size_t i = 0; i < graph.size(); ++i)
    // A transfer begins a period on each of its links, and may begin another with its end.
    if (times.end[i] >= 0 && moves(graph.tasks[i].kind))
      moments.insert(moments.end(), 2 * loads_of(graph, TaskId(i)).size(), times.start[i]);
}

Nanoseconds trace_window(std::vector<Nanoseconds> moments, size_t max_events,
                         Nanoseconds makespan) {
  if (moments.size() <= max_events) return makespan;
  const auto last = moments.begin() + static_cast<std::ptrdiff_t>(max_events);
  std::nth_element(moments.begin(), last, moments.end());
  return *last;
}

}  // namespace windlass
