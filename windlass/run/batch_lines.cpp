#include "windlass/run/batch_lines.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "windlass/base/error.h"
#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

double elements_of(const Graph& graph) {
  double sum = 0;
  for (const Tensor& tensor : graph.tensors)
    sum += static_cast<double>(element_count(tensor.type.shape));
  return sum;
}

void check_same(const Graph& a, const Graph& b) {
  bool same = a.ops.size() == b.ops.size();
  for (size_t i = 0; same && i < a.ops.size(); ++i)
    same = a.ops[i].kind == b.ops[i].kind && a.ops[i].pass == b.ops[i].pass;
  if (!same)
    fail_input(
        "the network has other ops at another batch: its prices cannot be lines in the batch");
}

}  // namespace

BatchLines::BatchLines(KernelProfile& profile, const TrainingGraph& small,
                       const TrainingGraph& large)
    : profile_(profile),
      small_(small),
      large_(large),
      small_elements_(elements_of(small.graph)),
      large_elements_(elements_of(large.graph)),
      small_workspace_(small.graph.ops.size(), -1),
      large_workspace_(large.graph.ops.size(), -1) {
  check_same(small.graph, large.graph);
  if (large_elements_ <= small_elements_)
    fail_input("two batches of different size are needed for lines in the batch");
}

double BatchLines::place(const TrainingGraph& training) const {
  return (elements_of(training.graph) - small_elements_) / (large_elements_ - small_elements_);
}

KernelPrice BatchLines::at(double place, size_t op, uint64_t adds, int64_t workspace) {
  const KernelPrice low = profile_.price(whole_run(small_.graph, small_.graph.ops[op], adds));
  const KernelPrice high = profile_.price(whole_run(large_.graph, large_.graph.ops[op], adds));
  const auto line = [&](int64_t from, int64_t to, int64_t least) {
    const double value = static_cast<double>(from) + place * static_cast<double>(to - from);
    return std::max(least, static_cast<int64_t>(std::llround(value)));
  };
  const bool known =
      low.workspace == small_workspace_[op] && high.workspace == large_workspace_[op];
  return {line(low.time, high.time, 1), known ? workspace : line(low.workspace, high.workspace, 0)};
}

void BatchLines::reprice(const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times) {
  check_same(small_.graph, training.graph);
  const double where = place(training);
  const TaskKernels kernels(training, tasks);
  std::set<std::pair<OpId, uint64_t>> seen;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskId id(i);
    if (!kernels.has(id)) continue;
    ensure(kernels.whole(id), "prices by lines in the batch are of whole ops");
    const OpId op = tasks[id].op;
    const uint64_t adds = kernels.adds(id);
    if (where == 0) small_workspace_[op.index()] = times.workspace[i];
    if (where == 1) large_workspace_[op.index()] = times.workspace[i];
    if (!seen.insert({op, adds}).second) continue;
    const std::string key = key_of(training.graph, training.graph[op], adds);
    if (profile_.knows(key)) continue;
    const KernelPrice price = at(where, op.index(), adds, times.workspace[i]);
    profile_.remember({{key, price.time, price.workspace}});
  }
  profile_.reprice(training, tasks, times);
}

}  // namespace windlass
