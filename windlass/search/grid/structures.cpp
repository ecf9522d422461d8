#include "windlass/search/grid/structures.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/graph/expert_slots.h"
#include "windlass/search/bounds/work_bound.h"
#include "windlass/search/grid/balance.h"
#include "windlass/search/grid/subsets.h"
#include "windlass/strategy/context_parallel.h"
#include "windlass/strategy/replicas.h"

namespace windlass {
namespace {

constexpr int64_t kMostTensorParallel = 16, kMostStages = 32;
// Sequences are split where parts of them are still long: shorter ones have little to compute
// beside what is gathered, and there are samples to split instead.
constexpr int64_t kMostContextParallel = 64, kFewestPositions = 2048;

bool later(const Structure& a, const Structure& b) { return a.time > b.time; }

// Without a pipeline, and alike but for micro-batches.
bool same_replicas(const Structure& a, const Structure& b) {
  return a.spec.pp == 1 && b.spec.pp == 1 && a.spec.tp == b.spec.tp && a.spec.cp == b.spec.cp &&
         a.spec.ep == b.spec.ep && a.spec.sequence_parallel == b.spec.sequence_parallel &&
         a.devices == b.devices;
}

}  // namespace

// What each takes at least, as far as work alone says; the least first.
void StructureQueue::begin() {
  begun_ = true;
  for (const std::vector<DeviceId>& devices : sets_) add_structures(devices);
  const Problem& problem = ledger_.problem();
  if (!memo_.work) memo_.work.emplace(problem, ledger_.cut(1).training);
  const WorkBound& bound = *memo_.work;
  for (Structure& structure : rough_) {
    const auto alike = [&](DeviceId device) {
      return problem.machine[device].type == problem.machine[structure.devices[0]].type;
    };
    double time = problem.reprice ? 0 : bound.passes(structure.devices).value;
    // One micro-batch goes through all stages, the others through the slowest.
    const auto stages = static_cast<double>(structure.spec.pp),
               parts = static_cast<double>(structure.micro_batches);
    if (std::ranges::all_of(structure.devices, alike)) time *= (stages + parts - 1) / parts;
    structure.time = static_cast<Nanoseconds>(time * 1e9);
  }
  std::ranges::stable_sort(rough_, {}, &Structure::time);
}

// More micro-batches of the same take no less.
void StructureQueue::delay(const Structure& made) {
  for (Structure& other : rough_)
    if (same_replicas(made, other)) other.time = std::max(other.time, made.time);
  std::ranges::stable_sort(rough_, {}, &Structure::time);
}

std::optional<Structure> StructureQueue::next() {
  if (!begun_) begin();
  const auto waits = [&](size_t at) {
    return std::any_of(rough_.begin(), rough_.begin() + static_cast<std::ptrdiff_t>(at),
                       [&](const Structure& other) { return same_replicas(other, rough_[at]); });
  };
  for (size_t i = 0; i < rough_.size();) {
    const Nanoseconds least = ready_.empty() ? ledger_.ceiling() : ready_.front().time;
    if (rough_[i].time >= std::min(least, ledger_.ceiling())) break;
    if (waits(i)) {
      ++i;
      continue;
    }
    if (ledger_.over() && !ready_.empty()) break;
    const Structure structure = rough_[i];
    rough_.erase(rough_.begin() + static_cast<std::ptrdiff_t>(i));
    for (Structure& made : measured(structure)) {
      if (made.samples.empty()) delay(made);
      ready_.push_back(std::move(made));
      std::ranges::push_heap(ready_, later);
    }
    i = 0;
  }
  if (ready_.empty() || ledger_.beaten(ready_.front().time)) return std::nullopt;
  if (ledger_.over()) {
    ledger_.leave_out(fmt::format("{} structures", ready_.size() + rough_.size()));
    return std::nullopt;
  }
  std::ranges::pop_heap(ready_, later);
  Structure next = std::move(ready_.back());
  ready_.pop_back();
  return next;
}

// Into how many parts sequences are split: powers of two, or what the user wants.
std::vector<int64_t> StructureQueue::context_degrees(int64_t devices) const {
  if (fixed_.cp > 0) return {fixed_.cp};
  const int64_t positions = positions_of(ledger_.problem().network);
  std::vector<int64_t> degrees = {1};
  for (int64_t cp = 2; cp <= std::min(devices, kMostContextParallel); cp *= 2)
    if (positions % cp == 0 && positions / cp >= kFewestPositions) degrees.push_back(cp);
  return degrees;
}

// Over how many replicas experts are split. That they are not is left to the network without slots.
std::vector<int64_t> StructureQueue::expert_degrees(int64_t replicas) const {
  const Graph& network = ledger_.problem().network;
  if (!has_expert_slots(network)) return {1};
  const int64_t experts = experts_of(network);
  std::vector<int64_t> degrees;
  for (int64_t ep = ledger_.options().experts_split ? 2 : 1; ep <= std::min(replicas, experts);
       ++ep)
    if (replicas % ep == 0 && experts % ep == 0 && (fixed_.ep == 0 || fixed_.ep == ep))
      degrees.push_back(ep);
  return degrees;
}

void StructureQueue::add_structures(const std::vector<DeviceId>& members) {
  const auto devices = static_cast<int64_t>(members.size());
  const auto allowed = [](int64_t fixed, int64_t value) { return fixed == 0 || fixed == value; };
  const std::vector<int64_t> contexts = context_degrees(devices);
  for (int64_t tp = 1; tp <= std::min(devices, kMostTensorParallel); ++tp)
    for (int64_t pp = 1; pp <= std::min(devices, kMostStages); ++pp)
      for (const int64_t cp : contexts) {
        if (devices % (tp * pp * cp) != 0) continue;
        const int64_t dp = devices / (tp * pp * cp);
        if (!allowed(fixed_.tp, tp) || !allowed(fixed_.pp, pp) || !allowed(fixed_.dp, dp)) continue;
        for (const int64_t ep : expert_degrees(dp)) {
          Structure structure;
          structure.devices = members;
          structure.spec = parse_baseline("megatron");
          structure.spec.tp = tp;
          structure.spec.pp = pp;
          structure.spec.cp = cp;
          structure.spec.dp = dp;
          structure.spec.ep = ep;
          add_micro_batches(structure);
        }
      }
}

void StructureQueue::add_micro_batches(Structure structure) {
  BaselineSpec& spec = structure.spec;
  const bool any_micro = ledger_.options().micro_batches == 0;
  for (int64_t m : ledger_.micro_batches(kMostMicroBatches)) {
    // A pipeline with fewer micro-batches than stages never fills.
    if (spec.pp > 1 && m < spec.pp && any_micro) continue;
    for (const bool sequence : {false, true}) {
      if (sequence && spec.tp == 1) continue;
      spec.micro_batches = structure.micro_batches = m;
      spec.sequence_parallel = sequence;
      rough_.push_back(structure);
    }
  }
}

std::vector<Structure> StructureQueue::measured(const Structure& structure) {
  // Measured kernels may be there later; unlike replicas look at limits.
  if (ledger_.problem().reprice || mixed(ledger_.problem().machine, structure.devices))
    return measure(structure);
  const BaselineSpec& spec = structure.spec;
  std::string name =
      fmt::format("{} {} {} {} {} {} {} {}", spec.dp, spec.tp, spec.pp, spec.cp, spec.ep,
                  structure.micro_batches, spec.sequence_parallel, ledger_.beside_answer());
  for (DeviceId device : structure.devices) name += fmt::format(" {}", device.index());
  const auto known = memo_.measured.find(name);
  if (known != memo_.measured.end()) return known->second;
  return memo_.measured.emplace(std::move(name), measure(structure)).first->second;
}

std::vector<Structure> StructureQueue::measure(Structure structure) {
  std::vector<Structure> result;
  const auto named = ledger_.named(structure.spec, structure.micro_batches, structure.devices);
  if (!named) return result;
  const Strategy strategy = sort_devices(ledger_.problem().machine, *named);
  structure.cuts = {{strategy.stages, strategy.groups}};
  Evaluator& evaluator = *ledger_.cut(structure.micro_batches).evaluator;
  structure.time = least_time(evaluator, strategy);
  if (auto better = cutter(structure.micro_batches).recut(strategy, StageMemory::Free)) {
    const Nanoseconds time = least_time(evaluator, *better);
    Borders borders = {better->stages, better->groups};
    if (time < structure.time && borders != structure.cuts[0])
      structure.cuts.insert(structure.cuts.begin(), std::move(borders));
    structure.time = std::min(structure.time, time);
  }
  // Updates on the host may be hidden where those on the device are not.
  if (fixed_.host_update.value_or(true)) {
    Strategy updated = strategy;
    for (Residency& weight : updated.weights) weight.host_update = true;
    structure.time = std::min(structure.time, least_time(evaluator, updated));
  }
  result.push_back(structure);
  add_balanced(strategy, structure, result);
  ledger_.report();
  return result;
}

// The same with more samples on faster devices.
void StructureQueue::add_balanced(const Strategy& strategy, Structure structure,
                                  std::vector<Structure>& result) {
  const Machine& machine = ledger_.problem().machine;
  if (structure.spec.dp == 1 || structure.spec.pp > 1 || !mixed(machine, strategy.groups[0]))
    return;
  Cut& cut = ledger_.cut(structure.micro_batches);
  for (const auto& samples :
       balanced_samples(ledger_.problem(), cut, strategy, structure.spec.dp)) {
    Strategy sized = strategy;
    size_replicas(cut.training, cut.batch, {samples}, sized);
    structure.samples = samples;
    structure.time = cut.evaluator->evaluate_unlimited(sized).time;
    result.push_back(structure);
  }
}

// The bound knows one kind of device in a group. Where many sets of devices compete, those that
// mix kinds would all come first.
Nanoseconds StructureQueue::least_time(Evaluator& evaluator, const Strategy& strategy) const {
  const bool unlike = std::ranges::any_of(
      strategy.groups, [&](const auto& group) { return mixed(ledger_.problem().machine, group); });
  return ledger_.beside_answer() && unlike ? evaluator.evaluate_unlimited(strategy).time
                                           : evaluator.bound(strategy);
}

StageCutter& StructureQueue::cutter(int64_t micro) {
  return memo_.cutter(ledger_.problem(), micro, ledger_.cut(micro));
}

}  // namespace windlass
