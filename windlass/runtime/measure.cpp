#include "windlass/runtime/measure.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/measure_harness.h"

namespace windlass {
namespace {

using namespace measuring;

// A first run that took so long is not repeated: fresh pages and cold caches are a small part of
// it.
constexpr Nanoseconds kLong = 1'000'000'000;

// How rows fall to the experts of a mixture: to each as many, or all to one. The latter is where a
// kernel needs most memory.
enum class Routing : uint8_t { Even, Crowded };

// A kernel with operands made up for it, ready to be run again and again.
//
// In a step, what the op before has made is still in a cache; weights, sums of gradients and what
// was saved have not been touched for long, and results come to where others were before. So there
// are as many copies of those as it takes to fill a cache, used in turn.
class Rehearsal {
 public:
  explicit Rehearsal(const KernelRun& run, Routing routing = Routing::Even)
      : run_(run), types_(operands_of(run).results) {
    const KernelOperands operands = operands_of(run);
    sets_.resize(1);
    make(operands, routing, sets_[0]);
    int64_t bytes = 0;
    for (const at::Tensor& tensor : sets_[0].inputs)
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    for (const TensorType& type : types_)
      if (type.present()) bytes += byte_size(type).value;
    constexpr int64_t kMost = 32;
    const int64_t beyond = 2 * last_cache() / std::max<int64_t>(1, bytes) + 1;
    sets_.resize(static_cast<size_t>(std::clamp<int64_t>(beyond, 1, kMost)));
    for (size_t i = 1; i < sets_.size(); ++i) make(operands, routing, sets_[i]);
    exchange_ = run.exchange();
    if (exchange_.needed() && !run.begins) statistics_ = operand(exchange_.type);
  }

  // Runs after which all copies have been used.
  size_t turns() const { return sets_.size(); }

  // Bytes of the results, as they are counted.
  int64_t run(const Arena& arena) {
    Set& set = sets_[next_];
    next_ = (next_ + 1) % sets_.size();
    if (run_.begins) {
      at::Tensor made;
      begin_piece(*run_.op, run_.piece, set.inputs, {}, made);
      return arena.rounded(byte_size(exchange_.type).value);
    }
    std::vector<Result> made;
    for (size_t i = 0; i < types_.size(); ++i) {
      const bool adds = i < set.sums.size() && set.sums[i].defined();
      made.push_back(adds ? Result(types_[i], set.sums[i]) : Result(types_[i]));
    }
    run_piece(*run_.op, run_.piece, set.inputs, made, {}, false,
              statistics_.defined() ? &statistics_ : nullptr);
    int64_t bytes = 0;
    for (const Result& result : made)
      if (result.wanted() && !result.adds()) bytes += arena.rounded(byte_size(result.type()).value);
    set.results = std::move(made);
    return bytes;
  }

 private:
  struct Set {
    std::vector<at::Tensor> inputs, sums;
    std::vector<Result> results = {};
  };

  // Whether the op before in a step has just made it.
  bool fresh(size_t input) const {
    const Op& op = *run_.op;
    if (op.pass == Pass::Backward) return input + op.saved.size() < op.inputs.size();
    const TensorId id = op.inputs[input];
    return id.valid() && (*run_.graph)[id].producer.valid();
  }

  void make(const KernelOperands& operands, Routing routing, Set& set) {
    const KernelRun& run = run_;
    const Op& op = *run.op;
    // Indices name a row that is here.
    const AxisPart& rows = run.piece.facts.rows;
    const bool looks_up = op.kind == OpKind::Embedding || op.kind == OpKind::Gather ||
                          op.kind == OpKind::CrossEntropy || op.kind == OpKind::GroupedLinear;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (&set != &sets_[0] && fresh(i)) {
        set.inputs.push_back(sets_[0].inputs[i]);
        continue;
      }
      set.inputs.push_back(operand(operands.inputs[i], looks_up ? rows.to_whole(0) : 0));
      if (set.inputs[i].defined()) route(op.inputs[i], routing, set.inputs[i]);
    }
    // Nothing divides by 0.
    if (op.kind == OpKind::Binary && op.pass == Pass::Forward)
      set.inputs[1] = operand(operands.inputs[1], 1);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const bool adds_to = i < 64 && (run.adds >> i & 1) != 0;
      set.sums.push_back(adds_to ? operand(types_[i]) : at::Tensor());
    }
  }

  // Rows of all experts, or of one; slots that are used evenly.
  void route(TensorId id, Routing routing, at::Tensor& tensor) const {
    const Graph& graph = *run_.graph;
    const OpId producer = graph[id].producer;
    if (producer.valid() && graph[producer].kind == OpKind::Dispatch &&
        !graph[producer].forward.valid() && id == graph[producer].outputs[1]) {
      const auto& slots = std::get<SlotAttrs>(graph[producer].attrs);
      const int64_t choices = graph.type_of(graph[producer].inputs[1]).shape[1];
      tensor.fill_(std::min(slots.slots, slots.block * choices / slots.experts));
      return;
    }
    if (!producer.valid() || graph[producer].kind != OpKind::Route ||
        graph[producer].forward.valid() || id != graph[producer].outputs[1] ||
        routing == Routing::Crowded)
      return;
    const int64_t experts = graph.type_of(graph[producer].inputs[0]).shape[1];
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<int64_t>()[i] = i % experts;
  }

  const KernelRun& run_;
  const std::vector<TensorType> types_;  // of the results
  std::vector<Set> sets_;
  size_t next_ = 0;
  Exchange exchange_;
  at::Tensor statistics_;
};

}  // namespace

KernelPrice measure_op(const KernelRun& run, int threads, int devices) {
  KernelPrice price;
  std::mutex mutex;
  on_device_threads(devices, threads, [&](Arena& arena, DeviceTurn& device) {
    KernelPrice own;
    const auto note_workspace = [&](Rehearsal& rehearsal) {
      arena.reset_peak();
      const int64_t before = arena.statistics().live;
      const int64_t results = rehearsal.run(arena);
      own.workspace = std::max(own.workspace, arena.statistics().peak - before - results);
    };
    if (run.op->kind == OpKind::GroupedLinear) {
      Rehearsal crowded(run, Routing::Crowded);
      note_workspace(crowded);
    }
    Rehearsal rehearsal(run);
    const auto again = [&] { rehearsal.run(arena); };
    device.start();
    own.time = time_of(threads, [&] { note_workspace(rehearsal); });
    if (own.time <= kLong) {
      for (size_t i = 1; i < rehearsal.turns(); ++i) again();  // takes its pages
      own.time = usual(threads, devices, std::max<size_t>(kRepeats, rehearsal.turns()), again);
    }
    device.end_with(again);
    const std::lock_guard lock(mutex);
    price.time = std::max(price.time, own.time);
    price.workspace = std::max(price.workspace, own.workspace);
  });
  price.time = shared(price.time, threads, devices);
  return price;
}

}  // namespace windlass
