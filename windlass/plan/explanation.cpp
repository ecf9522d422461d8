#include "windlass/plan/explanation.h"

namespace windlass {

std::string_view action_phrase(MemoryAction action) {
  switch (action) {
    case MemoryAction::Keep: return "kept";
    case MemoryAction::Regather: return "gathered again";
    case MemoryAction::Recompute: return "recomputed";
    case MemoryAction::Offload: return "moved to the host";
    case MemoryAction::Compress8: return "compressed to 8 bits";
    case MemoryAction::Compress4: return "compressed to 4 bits";
    case MemoryAction::Compress2: return "compressed to 2 bits";
  }
  return "";
}

}  // namespace windlass
