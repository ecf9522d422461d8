#include "windlass/plan/termination.h"

namespace windlass {

std::string_view termination_name(Termination termination) {
  switch (termination) {
    case Termination::Optimal: return "optimal";
    case Termination::Feasible: return "feasible";
    case Termination::Infeasible: return "infeasible";
    case Termination::Limit: return "limit";
  }
  return "";
}

}  // namespace windlass
