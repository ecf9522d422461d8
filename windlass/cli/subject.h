// What the verbs simulate and check work on: a model, a machine and a strategy, named by flags or
// all together in a plan file.
#pragma once

#include <optional>
#include <string>

#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"
#include "windlass/cli/pricing.h"
#include "windlass/model/model.h"
#include "windlass/plan/plan.h"
#include "windlass/report/simulation.h"

namespace windlass {

struct Subject {
  Machine machine;
  ModelRequest request;
  Model model;             // of the whole batch, as it was loaded
  TrainingGraph training;  // that the strategy is for: of one micro-batch, for packs of the batch
  Strategy strategy;
  StepFacts facts;
  std::optional<Plan> plan;  // if it comes from one
};

// Whether the argument is a plan file rather than a model.
bool is_plan_file(const std::string& path);

// What a report says about the step: all but the facts is there.
void fill_facts(Subject& subject, int64_t samples);

// Names the strategy by what it does: for one that a search has found.
void name_by_degrees(Subject& subject);

// The range of the step's time, if devices of the machine were calibrated.
void fill_range(Subject& subject);

// Throw Error{Input} as loading a model, a machine or a plan does.
Subject subject_from_flags(const ModelFlags& model, const MachineFlags& machine,
                           const std::string& strategy);
// The prices of a plan are of the kind that it was made with.
Pricing pricing_of(const Subject& subject);
// A machine given by flags must be the plan's own.
// A plan for another runner can be looked at, but not carried out by windlass.
enum class ForWhom : uint8_t { Windlass, AnyRunner };
Subject subject_from_plan(const std::string& path, const MachineFlags& machine,
                          ForWhom for_whom = ForWhom::Windlass);
// Of a plan that was read; `where` begins messages.
Subject subject_of_plan(Plan plan, const std::string& where, const MachineFlags& machine,
                        ForWhom for_whom = ForWhom::Windlass);

}  // namespace windlass
