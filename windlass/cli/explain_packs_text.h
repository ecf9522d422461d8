// Why a plan of packs of layers is as it is, for people and for programs.
#pragma once

#include "windlass/plan/plan.h"
#include "windlass/search/packs/explain_packs.h"

namespace windlass {

void report_explanation(const Plan& plan, const PackExplanation& found, bool json);

}  // namespace windlass
