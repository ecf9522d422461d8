// What the transformers of the zoo have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "windlass/base/error.h"
#include "windlass/model/zoo.h"

namespace windlass {

// A parameter, or `automatic` where it is 0.
inline int64_t parameter_or(const ZooParameters& p, const std::string& name, int64_t automatic) {
  const int64_t value = p.at(name);
  return value != 0 ? value : automatic;
}

// `heads`, or one for each `width` of the hidden size where that is 0.
inline int64_t heads_of(const ZooParameters& p, int64_t width) {
  return parameter_or(p, "heads", std::max<int64_t>(1, p.at("hidden") / width));
}

// `dropout` is in percent.
inline double dropout_of(const ZooParameters& p) {
  const int64_t percent = p.at("dropout");
  if (percent > 99) fail_input("parameter dropout is {}, expected percent from 0 to 99", percent);
  return static_cast<double>(percent) / 100;
}

// Throws unless `sequence` fits the learned table of `positions`.
inline void check_positions(const ZooParameters& p) {
  if (p.at("sequence") > p.at("positions"))
    fail_input("a sequence of {} needs positions={} or more; the model has {}", p.at("sequence"),
               p.at("sequence"), p.at("positions"));
}

}  // namespace windlass
