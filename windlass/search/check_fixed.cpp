#include <numeric>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/search/search.h"
#include "windlass/strategy/context_parallel.h"

namespace windlass {
namespace {

std::string divisors_text(int64_t number) {
  std::vector<std::string> list;
  for (int64_t i = 2; i <= number; ++i)
    if (number % i == 0) list.push_back(std::to_string(i));
  return list.empty() ? "only 1 is possible here" : "possible here: " + join(list, ", ");
}

void check_experts(const FixedDecisions& fixed, const Graph& network, int64_t replicas) {
  const int64_t experts = experts_of(network);
  if (experts < 2) fail_input("--fix ep={}: the model has no experts to share out", fixed.ep);
  const std::string others = divisors_text(std::gcd(experts, replicas));
  if (experts % fixed.ep != 0)
    fail_input("--fix ep={}: {} experts cannot be shared out equally; {}", fixed.ep, experts,
               others);
  if (fixed.dp > 0 ? fixed.dp % fixed.ep != 0 : fixed.ep > replicas)
    fail_input("--fix ep={}: {} replicas cannot share the experts so; {}", fixed.ep, replicas,
               others);
}

}  // namespace

void check_fixed(const FixedDecisions& fixed, const Graph& network, const Machine& machine) {
  const auto devices = static_cast<int64_t>(machine.devices.size());
  std::vector<std::string> decided;
  int64_t others = 1, needed = 1;  // without replicas, with them
  const auto add = [&](const char* name, int64_t degree) {
    if (degree > 0) decided.push_back(fmt::format("{}={}", name, degree));
    needed = std::min(needed * std::max<int64_t>(1, degree), int64_t{1} << 40);
  };
  add("tp", fixed.tp), add("pp", fixed.pp), add("cp", fixed.cp);
  others = needed;
  add("dp", fixed.dp);
  if (needed > devices)
    fail_input("--fix {}: takes {} devices, {} has {}", join(decided, ","), needed, machine.name,
               devices);
  if (fixed.cp > 1) {
    const int64_t positions = positions_of(network);
    if (positions == 1) fail_input("--fix cp={}: the model has no sequences to split", fixed.cp);
    if (positions % fixed.cp != 0)
      fail_input("--fix cp={}: {} positions cannot be cut into equal parts; {}", fixed.cp,
                 positions, divisors_text(std::gcd(positions, devices)));
  }
  if (fixed.ep > 1) check_experts(fixed, network, fixed.dp > 0 ? fixed.dp : devices / others);
}

}  // namespace windlass
