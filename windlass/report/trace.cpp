#include "windlass/report/trace.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/report/labels.h"
#include "windlass/report/lives.h"

namespace windlass {
namespace {

constexpr size_t kChunk = 1 << 16;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class TraceWriter {
 public:
  TraceWriter(const TracedStep& traced, const Graph* training, const Machine& machine,
              const std::function<void(std::string_view)>& write, size_t first_process)
      : step_(*traced.step),
        title_(traced.title),
        first_process_(first_process),
        graph_(step_.tasks),
        result_(step_.whole()),
        training_(training),
        machine_(machine),
        write_(write) {}

  TraceSummary run(const TraceOptions& options) {
    changes_ = memory_changes(graph_, step_.times, result_);
    choose_window(options.max_events);
    first_ = first_process_ == 0;
    name_tracks();
    write_tasks();
    write_links();
    write_counters();
    write_(text_);
    return {events_, Seconds(static_cast<double>(until_) * 1e-9), until_ < result_.makespan};
  }

  // One past the last process that the step takes.
  size_t end_process() const { return link_process() + 1; }

 private:
  // Processes: teams, then host memories, then links.
  size_t process_of(TeamId team) const { return first_process_ + team.index() + 1; }
  size_t process_of(MemoryId memory) const {
    const TeamId team = graph_[memory].team;
    return team.valid() ? process_of(team)
                        : first_process_ + graph_.teams.size() + 1 + memory.index();
  }
  size_t link_process() const {
    return first_process_ + graph_.teams.size() + graph_.memories.size() + 1;
  }

  void choose_window(size_t max_events) {
    until_ = result_.makespan;
    std::vector<Nanoseconds> moments;
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (result_.end[i] < 0) continue;
      const TaskId task(i);
      moments.insert(moments.end(), graph_.lanes_of(task).size(), result_.start[i]);
      // A transfer begins a period on each of its links, and may begin another with its end.
      if (moves(graph_[task].kind))
        moments.insert(moments.end(), 2 * loads_of(task).size(), result_.start[i]);
    }
    for (const auto& changes : changes_)
      for (const MemoryChange& change : changes) moments.push_back(change.time);
    if (moments.size() <= max_events) return;
    const auto last = moments.begin() + static_cast<std::ptrdiff_t>(max_events);
    std::nth_element(moments.begin(), last, moments.end());
    until_ = *last;
  }

  const std::vector<SharedLoad>& loads_of(TaskId task) const {
    return graph_.loads[static_cast<size_t>(graph_[task].price)];
  }

  bool shown(size_t task) const {
    return result_.end[task] >= 0 && (result_.start[task] < until_ || until_ == result_.makespan);
  }

  void event(std::string_view body) {
    if (!first_) text_ += ',';
    first_ = false;
    text_ += '\n';
    text_ += body;
    if (text_.size() < kChunk) return;
    write_(text_);
    text_.clear();
  }

  static std::string micro(Nanoseconds time) {
    return fmt::format("{}.{:03}", time / 1000, time % 1000);
  }

  void name(std::string_view what, size_t process, size_t track, const std::string& name) {
    event(fmt::format(R"({{"ph":"M","name":"{}_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                      what, process, track, quoted(name)));
    event(fmt::format(
        R"({{"ph":"M","name":"{}_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", what,
        process, track, what == "process" ? process : track));
  }

  std::string titled(const std::string& text) const {
    return title_.empty() ? text : title_ + ": " + text;
  }

  void name_tracks() {
    for (size_t t = 0; t < graph_.teams.size(); ++t)
      name("process", process_of(TeamId(t)), 0, titled(team_label(graph_, TeamId(t))));
    for (size_t m = 0; m < graph_.memories.size(); ++m)
      if (!graph_.memories[m].team.valid())
        name("process", process_of(MemoryId(m)), 0, titled(graph_.memories[m].name));
    if (!graph_.links.empty()) name("process", link_process(), 0, titled("links"));
    for (size_t i = 0; i < graph_.lanes.size(); ++i) {
      const Lane& lane = graph_.lanes[i];
      std::string label(lane_kind_name(lane.kind));
      if (lane.receiver.valid()) label += " to " + team_label(graph_, lane.receiver);
      name("thread", process_of(lane.team), i + 1, label);
    }
    for (size_t i = 0; i < graph_.links.size(); ++i)
      name("thread", link_process(), i + 1, link_label(machine_, graph_.links[i]));
  }

  void slice(size_t process, size_t track, Nanoseconds start, Nanoseconds end,
             const std::string& label, std::string_view category, const std::string& arguments) {
    event(fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}}}})",
        process, track, micro(start), micro(end - start), quoted(label), category, arguments));
    ++events_;
  }

  void write_tasks() {
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (!shown(i)) continue;
      const TaskId id(i);
      const Task& task = graph_[id];
      std::string arguments = fmt::format(R"("task":{})", i);
      if (task.micro_batch >= 0) arguments += fmt::format(R"(,"micro_batch":{})", task.micro_batch);
      if (moves(task.kind))
        arguments += fmt::format(R"(,"bytes":{})",
                                 graph_.traffics[static_cast<size_t>(task.price)].volume.value);
      const std::string label = task_label(graph_, training_, id);
      for (LaneId lane : graph_.lanes_of(id))
        slice(process_of(graph_[lane].team), lane.index() + 1, result_.start[i], result_.end[i],
              label, task_kind_name(task.kind), arguments);
    }
  }

  // Periods with the same transfers under way, link by link.
  void write_links() {
    struct Change {
      Nanoseconds time;
      bool begins;
      TaskId task;
    };
    std::vector<std::vector<Change>> changes(graph_.links.size());
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (!moves(graph_.tasks[i].kind) || !shown(i)) continue;
      for (const SharedLoad& load : loads_of(TaskId(i))) {
        auto& list = changes[static_cast<size_t>(load.link)];
        list.push_back({result_.start[i], true, TaskId(i)});
        list.push_back({result_.end[i], false, TaskId(i)});
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
          const std::string label = present.size() == 1
                                        ? task_label(graph_, training_, present.front())
                                        : fmt::format("{} transfers", present.size());
          slice(link_process(), link + 1, since, change.time, label, "link",
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

  void write_counters() {
    for (size_t m = 0; m < changes_.size(); ++m) {
      const size_t process = process_of(MemoryId(m));
      for (const MemoryChange& change : changes_[m]) {
        if (change.time > until_) break;
        event(fmt::format(
            R"({{"ph":"C","pid":{},"ts":{},"name":"live bytes","args":{{"bytes":{}}}}})", process,
            micro(change.time), change.bytes));
        ++events_;
      }
    }
  }

  const SimulatedStep& step_;
  const std::string title_;
  const size_t first_process_;
  const TaskGraph& graph_;
  const SimResult& result_;
  const Graph* training_;
  const Machine& machine_;
  const std::function<void(std::string_view)>& write_;
  std::vector<std::vector<MemoryChange>> changes_;
  Nanoseconds until_ = 0;
  size_t events_ = 0;
  bool first_ = true;
  std::string text_;
};

}  // namespace

TraceSummary write_trace(const SimulatedStep& step, const Graph* training, const Machine& machine,
                         const std::function<void(std::string_view)>& write,
                         const TraceOptions& options) {
  const TracedStep alone = {&step, ""};
  return write_traces(std::span(&alone, 1), training, machine, write, options);
}

TraceSummary write_traces(std::span<const TracedStep> steps, const Graph* training,
                          const Machine& machine,
                          const std::function<void(std::string_view)>& write,
                          const TraceOptions& options) {
  write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  TraceSummary all;
  size_t process = 0;
  for (const TracedStep& step : steps) {
    TraceWriter writer(step, training, machine, write, process);
    const TraceSummary summary = writer.run(options);
    all.events += summary.events;
    all.until = std::max(all.until, summary.until);
    all.cut |= summary.cut;
    process = writer.end_process();
  }
  write("\n]}\n");
  return all;
}

}  // namespace windlass
