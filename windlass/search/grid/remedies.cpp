#include "windlass/search/grid/remedies.h"

namespace windlass {

std::vector<BaselineSpec> all_homes(const BaselineSpec& plain) {
  std::vector<BaselineSpec> list;
  for (const int home : {0, 1, 2})
    for (const int zero : {0, 1, 2, 3}) {
      if (zero > 0 && plain.dp * plain.cp == 1) continue;
      BaselineSpec spec = plain;
      spec.zero = zero;
      spec.host_update = home >= 1;
      spec.host_weights = home == 2;
      list.push_back(spec);
    }
  return list;
}

std::vector<BaselineSpec> all_remedies(const BaselineSpec& plain, const FixedDecisions& fixed) {
  std::vector<BaselineSpec> list;
  for (BaselineSpec spec : all_homes(plain))
    for (const RecomputePolicy recompute : {RecomputePolicy::None, RecomputePolicy::Selective,
                                            RecomputePolicy::Sqrt, RecomputePolicy::Full})
      for (const bool offload : {false, true}) {
        if (offload && recompute != RecomputePolicy::None && recompute != RecomputePolicy::Full)
          continue;
        spec.recompute = recompute;
        spec.offload = offload;
        if (fixed.allows(spec)) list.push_back(spec);
      }
  return list;
}

}  // namespace windlass
