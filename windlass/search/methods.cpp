// The table of search methods.

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"

namespace windlass {
namespace {

bool fits_somewhere(const SearchResult& result) {
  return result.termination != Termination::Infeasible;
}

// Whether the second result is the better answer.
bool is_better(const SearchResult& first, const SearchResult& second) {
  if (fits_somewhere(first) != fits_somewhere(second)) return fits_somewhere(second);
  if (fits_somewhere(first)) return second.step_time < first.step_time;
  return second.least_limit && (!first.least_limit || *second.least_limit < *first.least_limit);
}

// What both have found out, beside the answer of the first.
void add_findings(SearchResult& to, const SearchResult& from) {
  to.tried += from.tried;
  to.proposals += from.proposals;
  to.seconds += from.seconds;
  to.out_of_time = to.out_of_time || from.out_of_time;
  to.lower_bound = std::min(to.lower_bound, from.lower_bound);
  to.stages.insert(to.stages.end(), from.stages.begin(), from.stages.end());
  if (to.termination == Termination::Optimal) to.termination = Termination::Feasible;
  std::vector<FrontierPoint> all = to.frontier;
  all.insert(all.end(), from.frontier.begin(), from.frontier.end());
  std::ranges::stable_sort(all, [](const FrontierPoint& a, const FrontierPoint& b) {
    return a.limit != b.limit ? a.limit < b.limit : a.step_time < b.step_time;
  });
  to.frontier.clear();
  for (const FrontierPoint& point : all)
    if (to.frontier.empty() || point.step_time < to.frontier.back().step_time)
      to.frontier.push_back(point);
}

// The network with rows of experts in slots, where experts can be split, and then, below what that
// takes, as it is: the better of both. Where there are slots, they mostly win, so that the second
// search ends early.
template <SearchResult (*method)(const Problem&, const SearchOptions&)>
SearchResult on_both_networks(const Problem& problem, const SearchOptions& options) {
  if (problem.with_slots == nullptr || options.fixed.ep == 1 || problem.machine.devices.size() == 1)
    return method(problem, options);
  const Problem slots = {.network = *problem.with_slots,
                         .machine = problem.machine,
                         .training = problem.training,
                         .cost = problem.cost,
                         .reprice = problem.reprice,
                         .measuring = problem.measuring};
  const bool both = options.fixed.ep == 0;
  SearchOptions first = options;
  first.starts.clear();  // are for the other network
  first.experts_split = both;
  SearchResult split = method(slots, first);
  split.in_slots = true;
  if (!both) return split;
  SearchOptions rest = options;
  rest.time_limit = Seconds(std::max(0.0, options.time_limit.value - split.seconds.value));
  if (fits_somewhere(split)) rest.below = split.step_time;
  SearchResult plain = method(problem, rest);
  const bool better = is_better(plain, split);
  SearchResult& answer = better ? split : plain;
  add_findings(answer, better ? plain : split);
  return std::move(answer);
}

}  // namespace

const std::vector<SearchMethod>& search_methods() {
  static const std::vector<SearchMethod> methods = {
      {"auto", "the best of all that suit the machine; more memory never gives a slower plan",
       on_both_networks<search_all>},
      {"one-device", "keep, recompute or move tensors of one device to the host",
       search_one_device},
      {"exact", "split every op in its own way over all devices", on_both_networks<search_exact>},
      {"grid", "replicas, tensor parallelism, pipelines and remedies against full memory",
       on_both_networks<search_grid>},
      {"mcmc", "Markov chains over all decisions, from named strategies or from --from PLAN",
       on_both_networks<search_mcmc>},
      {"chain", "replicas, and what to keep, recompute or move by dynamic programming",
       search_chain},
      {"harmony", "packs of layers that pass through the devices, weights streamed from the host",
       search_harmony},
  };
  return methods;
}

const SearchMethod& find_search_method(std::string_view name, const Machine& machine) {
  std::string known;
  for (const SearchMethod& method : search_methods()) {
    if (method.name != name) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", method.name);
      continue;
    }
    if (name == "one-device" && machine.devices.size() != 1)
      fail_input("--search one-device: {} has {} devices; use --devices 1, or another search",
                 machine.name, machine.devices.size());
    if (name == "harmony" && !suits_packs(machine))
      fail_input(
          "--search harmony: packs of layers want devices that are alike, on one node; {} "
          "has others; use another search",
          machine.name);
    return method;
  }
  fail_input("--search \"{}\": there is no such method; known: {}", name, known);
}

}  // namespace windlass
