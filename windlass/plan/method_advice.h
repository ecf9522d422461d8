// Which way to save memory pays: what the verb `advise` has found, as plain data. Text, JSON and
// plots are written from this.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "windlass/plan/few_shot.h"
#include "windlass/plan/performance_model.h"

namespace windlass {

// One way to train inside of a memory, all along the batches.
struct MethodCurve {
  std::string name;                  // "plain", "recompute", "offload", "compress-4", "mixture"
  bool lossy = false;                // changes the mathematics
  std::vector<BatchPoint> points;    // ascending batches
  std::optional<int64_t> largest;    // that fits; none: not one sample
  bool capped = false;               // `largest` is the most that was tried
  std::vector<std::string> made_of;  // of a mixture, by point: what it is
  // Of all points. None: there are none, or they are of different ways to do it, as a mixture's.
  std::optional<PerformanceModel> model;
  Correction correction;   // by measured steps, of this method or of plain training
  std::string impossible;  // why there is no curve at all

  // The point with the most samples a second of those that fit; none: none fits.
  const BatchPoint* best() const;
  // At a batch, if it was simulated.
  const BatchPoint* at(int64_t batch) const;
};

struct MethodAdvice {
  MethodCurve curve;
  // Against plain training, at the batch where both were simulated that is the largest for plain.
  std::optional<int64_t> compared_at;
  double slower = 0;                 // time over that of plain
  Bytes saved{};                     // of the peak
  double seconds_per_byte = 0;       // cost of a saved byte; 0 where nothing is saved
  bool pays = false;                 // more samples a second at best than plain at best
  double gain = 0;                   // best throughput over that of plain; 0: one of them has none
  std::string because;               // "does not pay, because ..." or why it does
  std::optional<double> from_batch;  // from which it is faster than plain at best, by its model
  Crossing memory, depth;            // where it begins and ceases to pay, by the models
  PapayaDecision papaya;
};

struct MethodsReport {
  std::string model, machine, provenance, runner;
  std::string base;  // the strategy that methods are added to, as parse_baseline() takes it
  int64_t devices = 1;
  Bytes limit, card;                  // of each device: for tensors, and installed
  std::vector<MethodAdvice> methods;  // the first is plain
};

// Draws conclusions from curves, of which the first is plain.
std::vector<MethodAdvice> advise_methods(std::vector<MethodCurve> curves, Bytes limit, Bytes card);

}  // namespace windlass
