#include "windlass/search/book/effort.h"

namespace windlass {

std::string time_cuts(const std::vector<StageEffort>& stages) {
  std::string text;
  for (const StageEffort& stage : stages) {
    if (!stage.time_limit) continue;
    text += (text.empty() ? "" : ", ") + stage.name;
    if (!stage.left_out.empty()) text += " (left out: " + stage.left_out + ")";
  }
  return text;
}

}  // namespace windlass
