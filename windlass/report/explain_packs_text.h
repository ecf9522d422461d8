// Why a plan of packs of layers is as it is, for people and for programs.
#pragma once

#include <string>

#include "windlass/plan/packs/pack_results.h"
#include "windlass/plan/plan.h"

namespace windlass {

std::string packs_explanation(const Plan& plan, const PackExplanation& found, bool json);

}  // namespace windlass
