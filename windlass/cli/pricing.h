// Where the prices of a verb come from: the analytic model, or kernels measured on this host.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "windlass/cost/cost_model.h"
#include "windlass/cost/runner.h"
#include "windlass/plan/step.h"
#include "windlass/run/price_cache.h"
#include "windlass/run/profile.h"

namespace CLI {
class App;
}

namespace windlass {

class Progress;

// Begins the provenance of prices that were measured.
inline constexpr std::string_view kMeasured = "measured";
// What a machine is called that `windlass calibrate` has written.
inline constexpr std::string_view kCalibrated = "calibrated";

// What becomes of prices that were measured by earlier runs (run/price_cache.h).
struct PriceCacheFlags {
  bool fresh = false;  // measured anew, and kept for later
  bool off = false;    // neither read nor kept

  void add_to(CLI::App& verb);
};

class Pricing {
 public:
  // `measured`: kernels of ops and updates are run on this host, with so many threads on each of so
  // many devices, when their price is asked for and is not known from earlier; copies follow the
  // machine's figures. What was measured is kept at the end. Kernels are measured for windlass
  // alone: they are its own.
  Pricing(bool measured, int threads, int devices = 1, const PriceCacheFlags& cache = {},
          const Runner& runner = {});
  ~Pricing();
  Pricing(Pricing&&) noexcept;

  const CostModel& cost() const { return *cost_; }
  Reprice reprice();  // empty if nothing is measured
  std::string provenance() const;
  // Prices that a plan brings along, and those that it should.
  void know(const std::vector<MeasuredKernel>& kernels);
  std::vector<MeasuredKernel> used_by(const TrainingGraph& training, const TaskGraph& tasks);
  // What it took to measure kernels; none if none are.
  std::optional<Seconds> measuring() const;
  // The same, to be asked while that goes on; empty if nothing is measured.
  std::function<Seconds()> measured_seconds() const;
  // Shows what is being measured.
  void watch(Progress* progress);

 private:
  std::unique_ptr<CostModel> cost_;
  std::unique_ptr<KernelProfile> profile_;
  std::optional<PriceCache> cache_;
  size_t remembered_ = 0;   // prices of earlier runs
  double others_then_ = 0;  // part of the host that others took then, at most
  int threads_;
};

// Whether the devices of a machine are this host's, as `local` or a file of `windlass calibrate`
// has them: plans for it can be carried out here.
bool runs_here(const Machine& machine);
// Whether plans for it are made from its kernels, measured when they are asked for: of hosts that
// are not alike, kernels of this one say nothing.
bool measured_here(const Machine& machine);
// Devices of a machine whose kernels run on one host at the same time: of a cluster those of the
// host with most, else all of them.
size_t devices_here(const Machine& machine);
// Threads that the kernels of each device of this host use by default: as many as libtorch would,
// shared among the devices.
int default_threads(size_t devices);

}  // namespace windlass
