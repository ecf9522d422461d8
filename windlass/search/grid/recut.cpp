#include "windlass/search/grid/recut.h"

#include <algorithm>
#include <map>
#include <utility>

#include "windlass/cost/traffic.h"
#include "windlass/search/chain/measure_step.h"
#include "windlass/search/grid/stage_cut.h"

namespace windlass {
namespace {

constexpr size_t kMostPieces = 128;
// More ways to have used some groups of each kind are not looked at.
constexpr size_t kMostStates = 512;
constexpr int64_t kPassedBytes = 64 << 20;  // that passes are priced for

// What makes a device another one for a plan.
using DeviceKind = std::pair<size_t, int64_t>;
DeviceKind kind_of(const Machine& machine, DeviceId device) {
  return {machine[device].type, machine[device].limit.value};
}

bool has_one_stage_a_group(const Strategy& strategy) {
  if (strategy.virtual_memory || strategy.stages.size() < 2 ||
      strategy.stages.size() != strategy.groups.size())
    return false;
  for (size_t s = 0; s < strategy.stages.size(); ++s)
    if (strategy.stages[s].group != static_cast<int32_t>(s)) return false;
  return true;
}

// Groups of one kind are used in their order: only the way to the next one matters.
std::vector<std::vector<StageProblem::Pass>> price_passes(const Machine& machine,
                                                          const Strategy& strategy, bool one_kind) {
  TrafficPlanner planner(machine);
  const size_t count = strategy.groups.size();
  std::vector<std::vector<StageProblem::Pass>> passes(count,
                                                      std::vector<StageProblem::Pass>(count));
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < count; ++b) {
      if (a == b || (one_kind && b != a + 1)) continue;
      std::vector<Copy> copies;
      const size_t members = std::min(strategy.groups[a].size(), strategy.groups[b].size());
      for (size_t i = 0; i < members; ++i)
        copies.push_back({machine[strategy.groups[a][i]].endpoint,
                          machine[strategy.groups[b][i]].endpoint,
                          Bytes(kPassedBytes / static_cast<int64_t>(members))});
      const Traffic traffic = planner.copies(copies);
      const double time = time_alone(machine, traffic).value;
      passes[a][b] = {
          .start = traffic.latency.value,
          .per_byte = (time - traffic.latency.value) / static_cast<double>(kPassedBytes)};
    }
  return passes;
}

// Weights, their gradients and optimizer state on the fullest device.
int64_t standing_bytes(const TaskGraph& tasks) {
  std::vector<int64_t> sums(tasks.memories.size(), 0);
  for (const Buffer& buffer : tasks.buffers)
    if (tasks[buffer.memory].team.valid() &&
        (buffer.kind == BufferKind::Weight || buffer.kind == BufferKind::WeightGradient ||
         buffer.kind == BufferKind::OptimizerState))
      sums[buffer.memory.index()] += buffer.bytes.value;
  return *std::ranges::max_element(sums);
}

// One micro-batch of everything on one group, as a simulated step says.
class PieceMeasuring {
 public:
  PieceMeasuring(const TrainingGraph& training, const TrainingFacts& facts,
                 const std::vector<ChainPiece>& pieces, const std::vector<size_t>& piece_of)
      : training_(training), facts_(facts), pieces_(pieces), piece_of_(piece_of) {}

  StageProblem::Kind run(Evaluator& evaluator, const Strategy& pipeline, size_t group,
                         StageMemory memory) {
    const Strategy strategy = alone(pipeline, group);
    const Evaluator::Run run = evaluator.run_unlimited(strategy);
    std::vector<bool> decides(training_.saved.size());
    for (size_t s = 0; s < decides.size(); ++s) decides[s] = training_.saved[s].producer.valid();
    const StepMeasure measure = measure_step(facts_, strategy, decides, run);

    StageProblem::Kind kind;
    for (auto* list : {&kind.standing, &kind.kept, &kind.beside}) list->assign(pieces_.size(), 0);
    kind.time.assign(pieces_.size(), 0);
    for (size_t i = 0; i < training_.forward_ops; ++i)
      kind.time[piece_of_[i]] += static_cast<double>(measure.time[i]) * 1e-9;
    for (size_t p = 0; p < pieces_.size(); ++p)
      for (OpId op : pieces_[p].backward)
        kind.time[p] += static_cast<double>(measure.time[op.index()]) * 1e-9;
    for (size_t s = 0; s < decides.size(); ++s)
      if (decides[s])
        kind.kept[piece_of_[training_.saved[s].producer.index()]] += measure.saved_bytes[s];
    if (memory == StageMemory::Least) keep_inputs(kind, measure);
    if (memory == StageMemory::Some) compute_again(kind, measure);
    share_out(standing_bytes(run.tasks), kind);
    return kind;
  }

 private:
  Strategy alone(const Strategy& pipeline, size_t group) const {
    Strategy result = pipeline;
    result.groups = {pipeline.groups[group]};
    result.stages = {{.first = 0, .last = training_.forward_ops}};
    result.schedule = ScheduleKind::AllAtOnce;
    result.micro_batches = 1;
    for (MemoryAction& action : result.saved)
      if (action != MemoryAction::Regather) action = MemoryAction::Keep;
    return result;
  }

  // Only what each piece starts from stays; the rest is there while the piece is worked on.
  void keep_inputs(StageProblem::Kind& kind, const StepMeasure& measure) const {
    kind.beside = kind.kept;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      const int32_t input = p == 0 ? -1 : pieces_[p - 1].output;
      kind.kept[p] = input < 0 ? 0 : measure.saved_bytes[static_cast<size_t>(input)];
    }
  }

  // All but what pieces start from, each by itself.
  void compute_again(StageProblem::Kind& kind, const StepMeasure& measure) const {
    kind.again.resize(pieces_.size());
    std::vector<bool> stays(training_.saved.size(), false);
    for (const ChainPiece& piece : pieces_)
      if (piece.output >= 0) stays[static_cast<size_t>(piece.output)] = true;
    for (size_t s = 0; s < stays.size(); ++s) {
      const OpId producer = training_.saved[s].producer;
      if (stays[s] || !producer.valid()) continue;
      kind.again[piece_of_[producer.index()]].push_back(
          {measure.saved_bytes[s], static_cast<double>(measure.time[producer.index()]) * 1e-9});
    }
  }

  // By the elements of the weights that each piece reads first.
  void share_out(int64_t standing, StageProblem::Kind& kind) const {
    std::vector<double> elements(pieces_.size(), 0);
    double all = 0;
    for (size_t u = 0; u < facts_.updates.size(); ++u) {
      const auto count =
          static_cast<double>(element_count(training_.graph[facts_.updates[u].weight].type.shape));
      elements[piece_of_[facts_.first_use[u].first.index()]] += count;
      all += count;
    }
    for (size_t p = 0; p < pieces_.size() && all > 0; ++p)
      kind.standing[p] = static_cast<int64_t>(static_cast<double>(standing) * elements[p] / all);
  }

  const TrainingGraph& training_;
  const TrainingFacts& facts_;
  const std::vector<ChainPiece>& pieces_;
  const std::vector<size_t>& piece_of_;
};

}  // namespace

StageCutter::StageCutter(const Problem& problem, const TrainingGraph& training,
                         Evaluator& evaluator)
    : problem_(problem), training_(training), facts_(training), evaluator_(evaluator) {
  pieces_ =
      chain_pieces(training, facts_, plain_strategy(training, DeviceId(size_t{0})), kMostPieces)
          .front();
  piece_of_.assign(training.forward_ops, 0);
  for (size_t p = 0; p < pieces_.size(); ++p)
    for (size_t i = pieces_[p].first; i < pieces_[p].last; ++i) piece_of_[i] = p;
  // The last piece that reads each tensor.
  const Graph& graph = training.graph;
  std::vector<size_t> last(graph.tensors.size(), 0);
  for (size_t i = 0; i < training.forward_ops; ++i)
    for (TensorId id : graph.ops[i].inputs)
      if (id.valid()) last[facts_.roots[id.index()].index()] = piece_of_[i];
  passed_.assign(pieces_.size(), 0);
  for (size_t t = 0; t < last.size(); ++t) {
    const OpId producer = graph.tensors[t].producer;
    if (!producer.valid() || producer.index() >= training.forward_ops ||
        facts_.roots[t] != TensorId(t))
      continue;
    for (size_t p = piece_of_[producer.index()]; p < last[t]; ++p)
      passed_[p] += byte_size(graph.tensors[t].type).value;
  }
}

std::optional<Strategy> StageCutter::recut(const Strategy& strategy, StageMemory memory) {
  if (!has_one_stage_a_group(strategy)) return std::nullopt;
  const Machine& machine = problem_.machine;
  StageProblem stages = {.passed = passed_, .passes = {}, .micro_batches = strategy.micro_batches};
  PieceMeasuring measuring(training_, facts_, pieces_, piece_of_);
  std::map<std::vector<DeviceKind>, size_t> known;
  for (size_t g = 0; g < strategy.groups.size(); ++g) {
    std::vector<DeviceKind> devices;
    for (DeviceId device : strategy.groups[g]) devices.push_back(kind_of(machine, device));
    const auto [entry, fresh] = known.try_emplace(devices, stages.kinds.size());
    if (fresh) {
      stages.kinds.push_back(measuring.run(evaluator_, strategy, g, memory));
      if (memory != StageMemory::Free)
        stages.kinds.back().limit = std::ranges::min(devices, {}, &DeviceKind::second).second;
    }
    stages.kinds[entry->second].groups.push_back(static_cast<int32_t>(g));
  }
  stages.passes = price_passes(machine, strategy, stages.kinds.size() == 1);
  size_t states = 1;
  for (const StageProblem::Kind& kind : stages.kinds) states *= kind.groups.size() + 1;
  if (states > kMostStates) return std::nullopt;
  const auto cut = cut_stages(stages);
  if (!cut) return std::nullopt;
  Strategy result = strategy;
  size_t first = 0;
  for (size_t s = 0; s < cut->ends.size(); ++s) {
    const size_t last = pieces_[cut->ends[s] - 1].last;
    result.stages[s] = {first, last, static_cast<int32_t>(s)};
    result.groups[s] = strategy.groups[static_cast<size_t>(cut->groups[s])];
    first = last;
  }
  return result;
}

Strategy sort_devices(const Machine& machine, Strategy strategy) {
  std::vector<DeviceId> devices;
  for (const auto& group : strategy.groups)
    devices.insert(devices.end(), group.begin(), group.end());
  std::ranges::stable_sort(devices, {}, [&](DeviceId device) { return kind_of(machine, device); });
  size_t next = 0;
  for (auto& group : strategy.groups)
    for (DeviceId& device : group) device = devices[next++];
  return strategy;
}

}  // namespace windlass
