#include "windlass/search/advice/device_frontier.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/machine/first_devices.h"

namespace windlass {
namespace {

Bytes peak_of(const SimulatedStep& step) {
  Bytes most{0};
  for (size_t m = 0; m < step.tasks.memories.size(); ++m)
    if (step.tasks.memories[m].team.valid())
      most = std::max(most, Bytes(step.whole().peaks[m].bytes));
  return most;
}

class FrontierSearch {
 public:
  FrontierSearch(const Problem& problem, const SearchMethod* method,
                 const DeviceFrontierOptions& options)
      : problem_(problem), method_(method), options_(options) {}

  std::vector<FrontierCell> run() {
    for (size_t devices : options_.devices) search_limits(devices);
    carry_on();
    return std::move(cells_);
  }

 private:
  size_t limits() const { return options_.limits.size(); }

  // The largest limit first: where its plan needs less than the next one, it is the plan there too.
  void search_limits(size_t devices) {
    const size_t first = cells_.size();
    cells_.resize(first + limits());
    Machine machine = first_devices(problem_.machine, devices);
    for (size_t i = limits(); i-- > 0;) {
      FrontierCell& cell = cells_[first + i];
      const Bytes limit = options_.limits[i];
      const FrontierCell* larger = i + 1 < limits() ? &cells_[first + i + 1] : nullptr;
      if (larger != nullptr && larger->fits && larger->peak <= limit) {
        cell = *larger;
        cell.limit = limit;
      } else if (larger != nullptr && !larger->fits) {
        cell = *larger;  // what does not fit into more
        cell.limit = limit;
      } else {
        cell = search(machine, limit);
      }
      if (options_.progress) options_.progress(first + limits() - i, total());
    }
  }

  size_t total() const { return options_.devices.size() * limits(); }

  FrontierCell search(Machine& machine, Bytes limit) {
    for (Device& device : machine.devices) {
      device.limit = limit;
      Bytes& memory = machine.device_types[device.type].memory;
      memory = std::max(memory, limit);
    }
    const Problem part = {.network = problem_.network,
                          .machine = machine,
                          .training = problem_.training,
                          .cost = problem_.cost};
    const SearchMethod& method =
        method_ != nullptr ? *method_ : find_search_method("auto", machine);
    const SearchResult found = method.search(part, options_.search);
    FrontierCell cell = {.devices = machine.devices.size(), .limit = limit};
    cell.found_for_devices = cell.devices;
    cell.found_for_limit = limit;
    cell.least_limit = found.least_limit;
    cell.fits = found.termination != Termination::Infeasible;
    if (!cell.fits) return cell;
    const SimulatedStep step =
        simulate_step(found.training, found.strategy, machine, problem_.cost, {}, {});
    cell.step_time = step.step_time();
    cell.peak = peak_of(step);
    cell.degrees =
        degrees_of(found.training, find_batch(problem_.network), found.strategy, found.samples);
    return cell;
  }

  // Who has more may do as who has less.
  void carry_on() {
    const auto take = [](FrontierCell& cell, const FrontierCell& less) {
      if (!cell.fits && less.least_limit)
        cell.least_limit =
            std::min(cell.least_limit.value_or(*less.least_limit), *less.least_limit);
      if (!less.fits || (cell.fits && cell.step_time <= less.step_time)) return;
      const size_t devices = cell.devices;
      const Bytes limit = cell.limit;
      cell = less;
      cell.devices = devices;
      cell.limit = limit;
    };
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (i % limits() > 0) take(cells_[i], cells_[i - 1]);
      if (i >= limits()) take(cells_[i], cells_[i - limits()]);
    }
  }

  const Problem& problem_;
  const SearchMethod* method_;
  const DeviceFrontierOptions& options_;
  std::vector<FrontierCell> cells_;
};

}  // namespace

std::vector<FrontierCell> device_frontier(const Problem& problem, const SearchMethod* method,
                                          const DeviceFrontierOptions& options) {
  ensure(!options.devices.empty() && !options.limits.empty(), "a frontier has points");
  return FrontierSearch(problem, method, options).run();
}

std::vector<size_t> usual_device_counts(size_t devices) {
  std::vector<size_t> counts;
  for (size_t count = 1; count < devices; count *= 2) counts.push_back(count);
  counts.push_back(devices);
  return counts;
}

}  // namespace windlass
