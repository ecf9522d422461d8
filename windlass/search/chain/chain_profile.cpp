#include "windlass/search/chain/chain_profile.h"

#include <algorithm>
#include <map>

#include "windlass/task/order.h"

namespace windlass {
namespace {

// Half of what goes out during a mean block.
constexpr int64_t kUnitsPerBlock = 2;
constexpr int32_t kMostUnits = 8;
// Choices of all pieces of a chain together: few pieces may have many.
constexpr size_t kChoices = 400, kLeastChoices = 6;

class Profiling {
 public:
  Profiling(const TrainingGraph& training, const Strategy& base, Evaluator& evaluator,
            const ChainSearchOptions& options)
      : training_(training),
        facts_(training),
        base_(base),
        evaluator_(evaluator),
        options_(options),
        decides_(training.saved.size(), false) {}

  ChainProfile run() {
    ChainProfile profile;
    if (base_.virtual_memory) return profile;
    const auto pieces = chain_pieces(training_, facts_, base_, options_.most_pieces);
    for (const auto& stage : pieces)
      for (const ChainPiece& piece : stage)
        for (int32_t s : piece.saved) decides_[static_cast<size_t>(s)] = true;
    profile.decides = decides_;
    for (size_t s = 0; s < decides_.size(); ++s)
      if (decides_[s] && base_.saved[s] != MemoryAction::Regather)
        base_.saved[s] = MemoryAction::Keep;
    measure_ = measure_step(facts_, base_, decides_, evaluator_.run_unlimited(base_));
    profile.makespan = measure_.makespan;
    std::vector<double> send_times(base_.groups.size(), 0), out = send_times, back = send_times;
    if (options_.send) {
      const auto [strategy, run] = run_with(MemoryAction::Offload);
      sends_beside_ = runs_beside(run, TaskKind::SwapOut);
      send_times = byte_times(strategy, run, TaskKind::SwapOut);
    }
    if (const auto lossy = compressions(options_.compress); !lossy.empty()) {
      const auto [strategy, run] = run_with(lossy.back());
      out = byte_times(strategy, run, TaskKind::Compress);
      back = byte_times(strategy, run, TaskKind::Decompress);
    }
    profile.prefetch = sends_beside_ ? find_prefetch(pieces) : 0;
    const std::vector<int64_t> in_flight = find_in_flight();
    for (size_t g = 0; g < base_.groups.size(); ++g) {
      GroupChain group = {.group = static_cast<int32_t>(g)};
      for (size_t s = 0; s < pieces.size(); ++s)
        if (base_.stages[s].group == group.group)
          group.pieces.insert(group.pieces.end(), pieces[s].begin(), pieces[s].end());
      if (group.pieces.empty()) continue;
      group.chain.in_flight = in_flight[g];
      group.chain.floor = measure_.floor[g];
      fill(group, send_times[g], {out[g], back[g]});
      profile.groups.push_back(std::move(group));
    }
    return profile;
  }

 private:
  // A step with all that is decided about under one action.
  std::pair<Strategy, Evaluator::Run> run_with(MemoryAction action) {
    Strategy strategy = base_;
    for (size_t s = 0; s < decides_.size(); ++s) {
      const TensorId tensor = training_.saved[s].tensor;
      if (decides_[s] && is_float(training_.graph[tensor].type.dtype)) strategy.saved[s] = action;
    }
    Evaluator::Run run = evaluator_.run_unlimited(strategy);
    return {std::move(strategy), std::move(run)};
  }

  // The ops of four pieces: copies come back while those before run.
  static int32_t find_prefetch(const std::vector<std::vector<ChainPiece>>& stages) {
    size_t ops = 0, pieces = 0;
    for (const auto& stage : stages)
      for (const ChainPiece& piece : stage) {
        ops += piece.backward.size();
        ++pieces;
      }
    return static_cast<int32_t>(std::max<size_t>(4, 4 * ops / pieces));
  }

  // Micro-batches that a group is between the passes of, at most; for each of its stages alike.
  std::vector<int64_t> find_in_flight() const {
    std::vector<int64_t> most(base_.groups.size(), 1);
    const auto orders = group_orders(base_);
    for (size_t g = 0; g < orders.size(); ++g) {
      int64_t now = 0;
      for (const WorkItem& item : orders[g]) {
        now += item.backward ? -1 : 1;
        most[g] = std::max(most[g], now);
      }
      const int64_t stages = std::ranges::count_if(
          base_.stages, [&](const Stage& s) { return s.group == static_cast<int32_t>(g); });
      most[g] = (most[g] + stages - 1) / std::max<int64_t>(1, stages);
    }
    return most;
  }

  void fill(GroupChain& group, double send_time, const CompressionTimes& compression) {
    int64_t standing = INT64_MAX;
    for (const ChainPiece& piece : group.pieces)
      for (size_t i = piece.first; i < piece.last; ++i)
        if (measure_.beside[i] > 0) standing = std::min(standing, measure_.beside[i]);
    if (standing == INT64_MAX) standing = 0;
    PieceChoices choices;
    choices.most = std::max(kLeastChoices, kChoices / group.pieces.size());
    choices.send = send_time > 0;
    choices.compress = options_.compress;
    std::map<uint64_t, std::vector<Actions>> known;  // by what the pieces are
    Chain& chain = group.chain;
    int64_t before = 0;  // bytes of the output of the piece before
    for (const ChainPiece& piece : group.pieces) {
      const PieceModel model(training_, facts_, base_, measure_, decides_, piece, standing,
                             compression);
      auto [found, fresh] = known.try_emplace(model.hash());
      if (fresh) found->second = piece_actions(model, choices);
      ChainBlock block;
      block.input = before;
      block.pass = model.pass_time();
      block.pass_bytes = model.pass_bytes() + before;
      for (const Actions& actions : found->second) {
        ChainOption& option = block.options.emplace_back(model.price(actions));
        if (sends_beside_) continue;
        // Kernels wait for the copies, both ways.
        option.backward +=
            2 * static_cast<Nanoseconds>(send_time * static_cast<double>(option.sent));
        option.sent = 0;
      }
      group.actions.push_back(found->second);
      block.options.push_back(model.price_again());
      chain.blocks.push_back(std::move(block));
      before = model.output() < 0 ? 0 : model.bytes(static_cast<size_t>(model.output()));
    }
    if (!choices.send || !sends_beside_) return;
    int64_t time = 0;
    for (const ChainBlock& block : chain.blocks) time += block.pass;
    const auto count = static_cast<int64_t>(chain.blocks.size());
    chain.unit_time = std::max<int64_t>(1, time / (kUnitsPerBlock * count));
    chain.link_unit = std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(chain.unit_time) / send_time));
    chain.most_units = kMostUnits;
  }

  const TrainingGraph& training_;
  const TrainingFacts facts_;
  Strategy base_;
  Evaluator& evaluator_;
  const ChainSearchOptions& options_;
  std::vector<bool> decides_;
  StepMeasure measure_;
  bool sends_beside_ = true;  // copies to the host do not hold up kernels
};

}  // namespace

ChainProfile profile_chain(const TrainingGraph& training, const Strategy& base,
                           Evaluator& evaluator, const ChainSearchOptions& options) {
  return Profiling(training, base, evaluator, options).run();
}

void apply_schedule(const GroupChain& group, const std::vector<ChainStep>& steps, Actions& saved) {
  using Kind = ChainStep::Kind;
  std::vector<bool> seen(group.pieces.size(), false);
  // The output of the piece before a block that is started from.
  const auto set_input = [&](size_t block, MemoryAction action) {
    if (const int32_t output = group.pieces[block - 1].output; output >= 0)
      saved[static_cast<size_t>(output)] = action;
  };
  for (const ChainStep& step : steps) {
    const auto b = static_cast<size_t>(step.block);
    if (step.kind == Kind::Store && !seen[b]) set_input(b, MemoryAction::Keep);
    if (step.kind == Kind::Send) set_input(b, MemoryAction::Offload);
    if ((step.kind != Kind::Pass && step.kind != Kind::Keep) || seen[b]) continue;
    seen[b] = true;
    const std::vector<int32_t>& list = group.pieces[b].saved;
    for (size_t k = 0; k < list.size(); ++k)
      saved[static_cast<size_t>(list[k])] =
          step.kind == Kind::Pass ? MemoryAction::Recompute
                                  : group.actions[b][static_cast<size_t>(step.option)][k];
  }
}

}  // namespace windlass
