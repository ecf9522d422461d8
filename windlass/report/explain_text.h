// What `windlass explain` prints, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/explanation.h"
#include "windlass/report/parts.h"
#include "windlass/report/simulation.h"

namespace windlass {

// A plan, simulated again.
struct Explained {
  const TrainingGraph& training;
  const Strategy& strategy;
  const Machine& machine;
  bool given;  // the strategy was, rather than found by a search
  const SimulatedStep& step;
  const SimulationReport& report;
  const Outcome& plan;
};

// The device with least room left at its peak.
const MemoryReport& tightest(const SimulationReport& report);

std::string overview_text(const Explained& explained, const std::vector<Alternative>& others);
nlohmann::ordered_json overview_json(const Explained& explained,
                                     const std::vector<Alternative>& others);

// `alike`: how many ops are like it, itself among them. `top`: how many alternatives are listed.
std::string op_text(const Explained& explained, OpId op, const OpParts& parts,
                    const std::vector<Alternative>& others, size_t alike, size_t top);
nlohmann::ordered_json op_json(const Explained& explained, OpId op, const OpParts& parts,
                               const std::vector<Alternative>& others, size_t alike);

// What becomes of a tensor: an action if it is saved, a home if it is a weight.
struct TensorChoice {
  TensorId tensor;
  std::string choice = {};  // "recompute"; empty: nothing to decide
  std::string phrase = {};  // "is recomputed"
  Bytes bytes = {};         // of the whole tensor
  size_t alike = 1;         // how many are like it, itself among them
};
std::string tensor_text(const Explained& explained, const TensorChoice& choice,
                        const TensorParts& parts, const std::vector<Alternative>& others);
nlohmann::ordered_json tensor_json(const Explained& explained, const TensorChoice& choice,
                                   const TensorParts& parts,
                                   const std::vector<Alternative>& others);
// One sentence: why this choice and not another.
std::string why(const Explained& explained, const TensorChoice& choice,
                const std::vector<Alternative>& others);

}  // namespace windlass
