#include "windlass/sweep/step_profile.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/error.h"
#include "windlass/run/kernel_run.h"

namespace windlass {

std::vector<double> StepProfile::spans() const {
  ensure(!records_.empty(), "a profile of a step that was not carried out");
  std::vector<const StepRecord*> order;
  for (const StepRecord& record : records_) order.push_back(&record);
  std::ranges::sort(order, {}, [](const StepRecord* record) { return record->time; });
  order.resize((order.size() + 1) / 2);
  std::vector<double> sum(tasks_.size(), 0);
  for (const StepRecord* record : order) {
    std::vector<size_t> by_end(tasks_.size());
    for (size_t i = 0; i < by_end.size(); ++i) by_end[i] = i;
    std::ranges::stable_sort(by_end, {}, [&](size_t i) { return record->end[i]; });
    Nanoseconds before = 0;
    for (size_t i : by_end) {
      sum[i] += static_cast<double>(record->end[i] - before) / static_cast<double>(order.size());
      before = record->end[i];
    }
  }
  return sum;
}

std::vector<MeasuredKernel> StepProfile::kernels(KernelProfile& profile) const {
  const std::vector<double> took = spans();
  const TaskKernels kernels(training_, tasks_);
  struct Sum {
    double time = 0;
    int64_t tasks = 0, workspace = 0;
  };
  std::map<std::string, Sum> sums;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (!kernels.has(TaskId(i))) continue;
    const KernelRun run = kernels.run(TaskId(i));
    Sum& sum = sums[key_of(run)];
    sum.time += took[i];
    if (sum.tasks++ == 0) sum.workspace = profile.price(run).workspace;
  }
  std::vector<MeasuredKernel> list;
  for (const auto& [key, sum] : sums) {
    const double mean = sum.time / static_cast<double>(sum.tasks);
    list.push_back({key, std::max<Nanoseconds>(1, std::llround(mean)), sum.workspace});
  }
  return list;
}

double StepProfile::updates() const {
  const std::vector<double> took = spans();
  double measured = 0, predicted = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_.tasks[i].kind != TaskKind::Update) continue;
    measured += took[i];
    predicted += static_cast<double>(times_.duration[i]);
  }
  return predicted > 0 ? measured / predicted : 1;
}

}  // namespace windlass
