#include <algorithm>
#include <map>

#include "windlass/base/hash.h"
#include "windlass/graph/blocks.h"
#include "windlass/search/chain/piece_options.h"
#include "windlass/task/lower.h"

namespace windlass {

PieceModel::PieceModel(const TrainingGraph& training, const TrainingFacts& facts,
                       const Strategy& strategy, const StepMeasure& measure,
                       const std::vector<bool>& decides, const ChainPiece& piece, int64_t standing,
                       const CompressionTimes& compression)
    : standing_(standing), compression_(compression) {
  const Graph& graph = training.graph;
  std::map<int32_t, int32_t> local;  // saved tensor: index into piece.saved
  for (int32_t s : piece.saved) {
    local.emplace(s, static_cast<int32_t>(saved_.size()));
    if (s == piece.output) output_ = static_cast<int32_t>(saved_.size());
    const SavedTensor& tensor = training.saved[static_cast<size_t>(s)];
    Saved& saved = saved_.emplace_back();
    saved.bytes = measure.saved_bytes[static_cast<size_t>(s)];
    saved.gathered = measure.gathered_bytes[static_cast<size_t>(s)];
    saved.producer = static_cast<int32_t>(tensor.producer.index() - piece.first);
    saved.last_forward = saved.producer;
    saved.element_size = element_bytes(graph[tensor.tensor].type.dtype);
    saved.compressible = is_float(graph[tensor.tensor].type.dtype);
    if (strategy.saved[static_cast<size_t>(s)] == MemoryAction::Regather)
      saved.keep = MemoryAction::Regather;
  }
  // What a tensor is to the piece: an op of it, a decision, or there anyway.
  const auto add_read = [&](TensorId id, std::vector<int32_t>& reads) {
    if (!id.valid()) return;
    const int32_t s = facts.saved_index[id.index()];
    if (const auto found = local.find(s); s >= 0 && found != local.end()) {
      reads.push_back(~found->second);
      return;
    }
    if (s >= 0 && !decides[static_cast<size_t>(s)]) return;
    const OpId producer = graph[facts.roots[id.index()]].producer;
    if (!producer.valid() || producer.index() < piece.first || producer.index() >= piece.last)
      return;
    reads.push_back(static_cast<int32_t>(producer.index() - piece.first));
  };
  Hasher hasher;
  hasher.add(structure_hash(graph, piece.first, piece.last));
  for (size_t i = piece.first; i < piece.last; ++i) {
    Forward& forward = forward_.emplace_back();
    forward.time = measure.time[i];
    forward.beside = std::max(standing, measure.beside[i]);
    forward_time_ += forward.time;
    for (TensorId id : graph.ops[i].inputs) add_read(id, forward.reads);
    for (int32_t read : forward.reads)
      if (read < 0)
        saved_[static_cast<size_t>(~read)].last_forward = static_cast<int32_t>(i - piece.first);
    hasher.add(forward.time);
  }
  for (size_t s = 0; s < saved_.size(); ++s) {
    forward_[static_cast<size_t>(saved_[s].producer)].makes.push_back(static_cast<int32_t>(s));
    hasher.add(saved_[s].bytes).add(static_cast<int64_t>(saved_[s].keep));
  }
  for (OpId op : piece.backward) {
    Backward& backward = backward_.emplace_back();
    backward.time = measure.time[op.index()];
    backward.beside = std::max(standing, measure.beside[op.index()]);
    backward_time_ += backward.time;
    const Op& made = graph[op];
    for (size_t k = made.inputs.size() - made.saved.size(); k < made.inputs.size(); ++k)
      add_read(made.inputs[k], backward.reads);
    for (int32_t read : backward.reads)
      if (read < 0)
        saved_[static_cast<size_t>(~read)].last_backward =
            static_cast<int32_t>(backward_.size() - 1);
    hasher.add(backward.time);
  }
  for (size_t s = 0; s < saved_.size(); ++s) {
    const int32_t last = saved_[s].last_backward;
    (last < 0 ? ends_before_ : backward_[static_cast<size_t>(last)].ends)
        .push_back(static_cast<int32_t>(s));
  }
  hash_ = hasher.result();
}

int64_t PieceModel::stored(size_t s, MemoryAction action) const {
  const Saved& saved = saved_[s];
  switch (action) {
    case MemoryAction::Recompute:
    case MemoryAction::Offload: return 0;
    case MemoryAction::Compress8:
    case MemoryAction::Compress4:
    case MemoryAction::Compress2: {
      const int64_t elements = saved.bytes / saved.element_size;
      return allocated(compressed_bytes(elements, compressed_bits(action))).value;
    }
    case MemoryAction::Keep:
    case MemoryAction::Regather: break;
  }
  return saved.bytes;
}

void PieceModel::forward_pass(const Actions& actions, int64_t& peak) const {
  int64_t live = 0;
  std::vector<int64_t> released(forward_.size(), 0);
  for (size_t s = 0; s < saved_.size(); ++s) {
    // Copies to the host go on while the piece runs.
    if (actions[s] == MemoryAction::Offload || static_cast<int32_t>(s) == output_) continue;
    released[static_cast<size_t>(saved_[s].last_forward)] +=
        saved_[s].bytes - stored(s, actions[s]);
  }
  for (size_t i = 0; i < forward_.size(); ++i) {
    for (int32_t s : forward_[i].makes) live += saved_[static_cast<size_t>(s)].bytes;
    peak = std::max(peak, live + forward_[i].beside);
    live -= released[i];
  }
}

ChainOption PieceModel::price(const Actions& actions) const {
  ChainOption option = {.forward = forward_time_, .backward = backward_time_, .again = false};
  int64_t live = 0;
  for (size_t s = 0; s < saved_.size(); ++s) {
    option.kept += stored(s, actions[s]);
    if (actions[s] == MemoryAction::Offload) option.sent += saved_[s].bytes;
    if (compressed_bits(actions[s]) > 0) {
      const auto bytes = static_cast<double>(saved_[s].bytes);
      option.forward += static_cast<Nanoseconds>(compression_.out * bytes);
      option.backward += static_cast<Nanoseconds>(compression_.back * bytes);
    }
  }
  option.sends_output =
      output_ >= 0 && actions[static_cast<size_t>(output_)] == MemoryAction::Offload;
  int64_t peak = 0;
  forward_pass(actions, peak);
  option.forward_bytes = std::max<int64_t>(0, peak - option.kept);

  // What was sent is back before its first reader.
  live = option.kept + option.sent;
  peak = live + standing_;
  std::vector<char> there(saved_.size(), 0), run(forward_.size(), 0);
  for (size_t s = 0; s < saved_.size(); ++s)
    there[s] = actions[s] != MemoryAction::Recompute && compressed_bits(actions[s]) == 0;
  const auto held = [&](int32_t s) {
    const auto at = static_cast<size_t>(s);
    if (compressed_bits(actions[at]) > 0)
      return stored(at, actions[at]) + (there[at] != 0 ? saved_[at].bytes : 0);
    const int64_t copies = actions[at] == MemoryAction::Recompute ? saved_[at].gathered : 0;
    return there[at] != 0 ? saved_[at].bytes + copies : 0;
  };
  for (int32_t s : ends_before_) live -= held(s);
  std::vector<int32_t> pending, again;
  for (const Backward& op : backward_) {
    pending = op.reads;
    again.clear();
    while (!pending.empty()) {
      const int32_t read = pending.back();
      pending.pop_back();
      int32_t producer = read;
      if (read < 0) {
        const auto s = static_cast<size_t>(~read);
        if (there[s] != 0) continue;
        if (compressed_bits(actions[s]) > 0) {
          there[s] = 1;
          live += saved_[s].bytes;
          continue;
        }
        producer = saved_[s].producer;
      }
      if (run[static_cast<size_t>(producer)] != 0) continue;
      run[static_cast<size_t>(producer)] = 1;
      again.push_back(producer);
      const auto& reads = forward_[static_cast<size_t>(producer)].reads;
      pending.insert(pending.end(), reads.begin(), reads.end());
    }
    std::ranges::sort(again);
    for (int32_t i : again) {
      const Forward& forward = forward_[static_cast<size_t>(i)];
      option.backward += forward.time;
      for (int32_t s : forward.makes) {
        const auto at = static_cast<size_t>(s);
        if (there[at] != 0 || actions[at] != MemoryAction::Recompute) continue;
        there[at] = 1;
        live += saved_[at].bytes + saved_[at].gathered;
      }
      peak = std::max(peak, live + op.beside + forward.beside - standing_);
    }
    peak = std::max(peak, live + op.beside);
    for (int32_t s : op.ends) live -= held(s);
  }
  option.backward_bytes = std::max<int64_t>(0, peak - option.kept);
  return option;
}

ChainOption PieceModel::price_again() const {
  Actions keep;
  for (const Saved& saved : saved_) keep.push_back(saved.keep);
  ChainOption option = price(keep);
  option.first = false;
  option.again = true;
  const int64_t gradients =
      backward_.empty() ? 0 : std::max<int64_t>(0, backward_.front().beside - standing_);
  int64_t copies = 0;
  for (const Saved& saved : saved_) copies += saved.gathered;
  option.kept += copies;
  option.forward_bytes += gradients;
  return option;
}

int64_t PieceModel::pass_bytes() const {
  const Actions none(saved_.size(), MemoryAction::Recompute);
  int64_t peak = standing_;
  forward_pass(none, peak);
  return peak;
}

}  // namespace windlass
