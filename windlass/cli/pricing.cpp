#include "windlass/cli/pricing.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/progress.h"
#include "windlass/machine/cluster.h"
#include "windlass/run/library_threads.h"

namespace windlass {
namespace {

// What measured steps take beside their tasks is little: no driver, no launches.
AnalyticOptions local_options() {
  AnalyticOptions options;
  options.step_issue = 0;
  options.product_workspace = {};
  options.blocked_convolutions = true;
  return options;
}

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", printable(note));
}

}  // namespace

void PriceCacheFlags::add_to(CLI::App& verb) {
  verb.add_flag("--fresh", fresh, "measure kernels anew, whatever earlier runs have measured");
  verb.add_flag("--no-cache", off, "neither use nor keep prices of kernels of other runs");
}

Pricing::Pricing(bool measured, int threads, int devices, const PriceCacheFlags& cache,
                 const Runner& runner)
    : cost_(analytic_cost_model(measured && is_windlass(runner) ? local_options()
                                                                : analytic_options(runner))),
      threads_(threads) {
  if (!measured || !is_windlass(runner)) return;
  profile_ = std::make_unique<KernelProfile>(threads, devices);
  const std::string folder = price_cache_folder();
  if (cache.off || folder.empty()) return;
  cache_.emplace(folder, price_setting(threads, devices));
  if (cache.fresh) return;
  std::vector<std::string> notes;
  std::vector<MeasuredKernel> known;
  for (CachedPrice& price : cache_->read(seconds_now(), notes)) {
    others_then_ = std::max(others_then_, static_cast<double>(price.others_percent) / 100);
    known.push_back(std::move(price.price));
  }
  print_notes(notes);
  remembered_ = known.size();
  profile_->remember(known);
}

Pricing::Pricing(Pricing&&) noexcept = default;

Pricing::~Pricing() {
  if (!profile_ || !cache_) return;
  const std::vector<MeasuredKernel> measured = profile_->measured();
  if (measured.empty()) return;
  std::vector<std::string> notes;
  cache_->add(measured, open_runtime().libraries(), profile_->others().share(), seconds_now(),
              notes);
  print_notes(notes);
}

Reprice Pricing::reprice() {
  if (!profile_) return {};
  KernelProfile* profile = profile_.get();
  return [profile](const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times) {
    profile->reprice(training, tasks, times);
  };
}

std::string Pricing::provenance() const {
  if (!profile_) return cost_->provenance();
  const OtherLoad& others = profile_->others();
  std::string earlier = remembered_ > 0 ? ", some by earlier runs" : "";
  if (others_then_ >= OtherLoad::kNoticed)
    earlier += fmt::format(" while other programs took up to {:.0f} %", 100 * others_then_);
  return fmt::format("{} kernels on this host{}, {} thread{}{}; copies at the machine's rate",
                     kMeasured, earlier, threads_, threads_ == 1 ? "" : "s",
                     others.noticed() ? ", while " + others.text() : "");
}

void Pricing::know(const std::vector<MeasuredKernel>& kernels) {
  if (profile_) profile_->know(kernels);
}

std::vector<MeasuredKernel> Pricing::used_by(const TrainingGraph& training,
                                             const TaskGraph& tasks) {
  return profile_ ? profile_->used_by(training, tasks) : std::vector<MeasuredKernel>{};
}

std::optional<Seconds> Pricing::measuring() const {
  if (!profile_) return std::nullopt;
  return profile_->spent();
}

std::function<Seconds()> Pricing::measured_seconds() const {
  if (!profile_) return {};
  return [profile = profile_.get()] { return profile->spent(); };
}

void Pricing::watch(Progress* progress) {
  if (!profile_ || progress == nullptr) return;
  profile_->progress = [progress](size_t known) {
    progress->show(fmt::format("measuring kernels: {} done", known));
  };
}

bool runs_here(const Machine& machine) {
  const bool calibrated =
      machine.name == kCalibrated && machine.device_types.front().calibration.any();
  return calibrated || of_cpu_hosts(machine);
}

bool measured_here(const Machine& machine) {
  return of_cpu_hosts(machine) && machine.device_types.size() == 1;
}

size_t devices_here(const Machine& machine) {
  return machine.name == kClusterName ? most_devices_of_a_node(machine) : machine.devices.size();
}

int default_threads(size_t devices) {
  const auto threads = static_cast<size_t>(std::max(1, library_threads()));
  return static_cast<int>(std::max<size_t>(1, threads / std::max<size_t>(1, devices)));
}

}  // namespace windlass
