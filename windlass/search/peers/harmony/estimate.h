// Harmony's own estimate of a step: six in-order streams a device (swap in, peer in, compute, peer
// out, swap out, host), durations from a layer profile, bandwidths divided by the number of devices
// by decree. For comparisons on equal terms: it is their model of a step, not windlass's.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// The constants that Harmony's scripts use.
struct HarmonyConstants {
  double swap_bandwidth = 11.5 * 0x1p30;   // bytes/s between a device and the host, for all
  double peer_bandwidth = 8.2 * 0x1p30;    // bytes/s between two devices
  double message_bandwidth = 16 * 0x1p30;  // bytes/s between the host sides of devices, for all
  double free_seconds = 0.040;             // at the end of each task
};

// Estimates plan after plan of one chain. Allocates only when a plan is larger than all before.
// Events are walked once, in an order in which every event comes after what it waits for: task by
// task, micro-batch by micro-batch, a transfer between devices with its receiver. So an estimate
// takes O(tasks x micro-batches + stashes x micro-batches), and cannot deadlock.
class HarmonyEstimator {
 public:
  // The chain must outlive the estimator.
  explicit HarmonyEstimator(ChainTables& chain, const HarmonyConstants& constants = {})
      : chain_(chain), constants_(constants) {}

  // Seconds of a step. The plan must pass check_harmony_plan(); `prefetch`: whether what a task
  // needs may arrive, and what it made may leave, while another one computes.
  double seconds(const HarmonyPlan& plan, int64_t minibatch, bool prefetch);

  int64_t events() const { return events_; }  // walked so far

 private:
  // The six streams of a device: when the last event of each ends.
  struct Streams {
    double swap_in = 0, peer_in = 0, compute = 0, peer_out = 0, swap_out = 0, host = 0;
  };
  // What later tasks of a device wait for of an earlier one. -1: there is none.
  struct Done {
    double last = -1;        // compute of the last micro-batch
    double before = -1;      // of the one before it
    double recomputed = -1;  // of the last micro-batch
    double freed = -1;
    bool stashed_backward = false;  // a backward task that is not the loss's
  };
  struct Device {
    Streams streams;
    Done previous, earlier;  // its last task and the one before that
  };
  struct Sizes {
    std::vector<int64_t> of;        // samples of each micro-batch
    std::vector<int64_t> released;  // forward only: backward micro-batches complete with this one
    // Of the first and of the last micro-batch.
    const PassTable *forward_whole = nullptr, *forward_rest = nullptr;
    const PassTable *backward_whole = nullptr, *backward_rest = nullptr;
  };
  // Seconds of a part of a pack for a whole and for the remaining micro-batch.
  struct Part {
    double whole = 0, rest = 0;
  };

  void prepare(const HarmonyPlan& plan, int64_t minibatch);
  void forward_task(const HarmonyPlan& plan, size_t task);
  void backward_task(const HarmonyPlan& plan, size_t task);
  double first_wait(const Device& device) const;
  void end_task(Device& device, const Done& done);
  int32_t device_of(size_t task) const;

  ChainTables& chain_;
  HarmonyConstants constants_;
  int64_t events_ = 0;

  // Of the plan at hand.
  bool pipeline_ = false, prefetch_ = false, peers_ = false, converts_ = false;
  int32_t devices_ = 1;
  double swap_ = 0, message_ = 0;  // seconds a byte
  double peer_ = 0;
  Sizes forward_, backward_;
  std::vector<Device> device_;
  std::vector<double> output_;  // of the task before: by micro-batch, when its output is there
  std::vector<double> next_output_;
  std::vector<double> stashed_;   // by backward pack and micro-batch: when the stash can be read
  std::vector<double> computed_;  // of the task at hand, by micro-batch
  std::vector<Part> parts_;
  size_t next_stash_ = 0;
};

}  // namespace windlass
