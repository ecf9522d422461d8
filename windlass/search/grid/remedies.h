// The usual ways to save memory under a structure, by name.
#pragma once

#include <vector>

#include "windlass/search/search.h"

namespace windlass {

// Where weights and optimizer state live, from the mildest to the strongest.
std::vector<BaselineSpec> all_homes(const BaselineSpec& plain);

// The same with what becomes of saved tensors, where the user's decisions allow it.
std::vector<BaselineSpec> all_remedies(const BaselineSpec& plain, const FixedDecisions& fixed);

}  // namespace windlass
