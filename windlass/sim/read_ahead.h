// Asks for what the simulator will read of a large graph before it does. Lanes that run side by
// side go through a dozen arrays at once, more than processors guess on their own; without asking,
// a million tasks take a third longer. Tasks start about in the order of their ids, so the task
// that is furthest says where all will be soon. Changes no result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "windlass/sim/buffers.h"

namespace windlass {

class ReadAhead {
 public:
  void reset(const TaskGraph& graph, const TaskTimes& times, const SimResult& result,
             const LiveBuffers& buffers) {
    graph_ = &graph;
    times_ = &times;
    result_ = &result;
    buffers_ = &buffers;
    next_ = graph.size() < kSmall ? graph.size() : 0;
  }

  // A task starts.
  void pass(size_t task) {
    while (task >= next_) fetch_block();
  }

 private:
  static constexpr size_t kSmall = 4096;  // tasks: such graphs stay in the cache anyway
  static constexpr size_t kBlock = 8;
  // How far ahead, in tasks. Each step reads what the one before it has asked for.
  static constexpr size_t kTasks = 1024, kLists = 512, kBuffers = 256;

  // Inlined, since compilers drop calls of functions that only prefetch.
  template <typename T>
  [[gnu::always_inline]] static void fetch(std::span<const T> list) {
    constexpr size_t kLine = std::max<size_t>(1, 64 / sizeof(T));
    for (size_t i = 0; i < list.size(); i += kLine) __builtin_prefetch(list.data() + i);
  }
  template <typename T>
  [[gnu::always_inline]] static void fetch(const std::vector<T>& list, size_t begin, size_t end) {
    fetch(std::span(list.data() + begin, end - begin));
  }

  void fetch_block() {
    const TaskGraph& graph = *graph_;
    const auto block = [&](size_t distance) {
      const size_t begin = std::min(next_ + distance, graph.size());
      return std::pair(begin, std::min(begin + kBlock, graph.size()));
    };
    const auto tasks = block(kTasks);
    fetch(graph.tasks, tasks.first, tasks.second);
    fetch(graph.lane_begin, tasks.first, tasks.second);
    fetch(graph.predecessor_begin, tasks.first, tasks.second);
    fetch(graph.use_begin, tasks.first, tasks.second);
    fetch(times_->duration, tasks.first, tasks.second);
    fetch(times_->workspace, tasks.first, tasks.second);
    fetch(result_->start, tasks.first, tasks.second);
    fetch(result_->end, tasks.first, tasks.second);
    const auto lists = block(kLists);
    fetch(graph.task_lanes, graph.lane_begin[lists.first], graph.lane_begin[lists.second]);
    fetch(graph.predecessors, graph.predecessor_begin[lists.first],
          graph.predecessor_begin[lists.second]);
    fetch(buffers_->used(graph.use_begin[lists.first], graph.use_begin[lists.second]));
    const auto using_tasks = block(kBuffers);
    for (uint32_t buffer :
         buffers_->used(graph.use_begin[using_tasks.first], graph.use_begin[using_tasks.second]))
      buffers_->fetch(buffer);
    next_ += kBlock;
  }

  const TaskGraph* graph_ = nullptr;
  const TaskTimes* times_ = nullptr;
  const SimResult* result_ = nullptr;
  const LiveBuffers* buffers_ = nullptr;
  size_t next_ = 0;  // the first task that nothing has been asked for on account of
};

}  // namespace windlass
