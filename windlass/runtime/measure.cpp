#include "windlass/runtime/measure.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/update_kernels.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// A kernel is repeated until it has been run so often, or for so long.
constexpr int kRepeats = 5;
constexpr auto kPatience = std::chrono::milliseconds(60);
// A first run that took so long is not repeated: fresh pages and cold caches are a small part of
// it.
constexpr Nanoseconds kLong = 1'000'000'000;

Nanoseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

// Of the calling thread: what others take of its core does not count.
Nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return Nanoseconds{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Indices are 0, which exists in every table, or `integer`; other values are positive and of
// moderate size. Few are drawn and then repeated: drawing all would take longer than most kernels.
at::Tensor operand(const TensorType& type, int64_t integer = 0) {
  if (!type.present()) return {};
  if (!is_float(type.dtype)) return at::full(type.shape, integer, scalar_type(type.dtype));
  constexpr int64_t kDrawn = int64_t{1} << 16;
  at::Tensor tensor = at::empty(type.shape, scalar_type(type.dtype));
  const at::Tensor flat = tensor.view({-1});
  const int64_t count = flat.numel();
  int64_t filled = std::min(count, kDrawn);
  flat.narrow(0, 0, filled).uniform_(0.25, 1);
  while (filled < count) {
    const int64_t more = std::min(filled, count - filled);
    flat.narrow(0, filled, more).copy_(flat.narrow(0, 0, more));
    filled += more;
  }
  return tensor;
}

// Runs `work` on a thread of its own, as a device has it.
void on_device_thread(int threads, const std::function<void(Arena&)>& work) {
  install_allocator();
  std::exception_ptr error;
  std::thread worker([&] {
    try {
      use_threads(threads);
      set_blas_threads(threads);
      Arena arena("profile", kNoLimit, kAllocationUnit);
      const ArenaScope scope(arena);
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      work(arena);
    } catch (...) {
      error = std::current_exception();
    }
  });
  worker.join();
  if (error) std::rethrow_exception(error);
}

template <class Run>
Nanoseconds time_of(int threads, Run&& run) {
  const auto start = Clock::now();
  const Nanoseconds worked = thread_time();
  run();
  return threads == 1 ? thread_time() - worked : since(start);
}

// The shortest of a few runs: whatever else runs on the host only adds.
template <class Run>
Nanoseconds shortest(int threads, Run&& run) {
  std::vector<Nanoseconds> times;
  const auto begin = Clock::now();
  while (times.size() < kRepeats && (times.empty() || Clock::now() - begin < kPatience))
    times.push_back(time_of(threads, run));
  return std::max<Nanoseconds>(1, std::ranges::min(times));
}

// How rows fall to the experts of a mixture: to each as many, or all to one. The latter is where a
// kernel needs most memory.
enum class Routing : uint8_t { Even, Crowded };

// What the choice of experts says must make sense: an order of rows, and the rows of each expert.
at::Tensor operand(const Graph& graph, TensorId id, Routing routing) {
  at::Tensor tensor = operand(graph.type_of(id));
  const OpId producer = id.valid() ? graph[id].producer : OpId();
  if (!producer.valid() || graph[producer].kind != OpKind::Route || graph[producer].forward.valid())
    return tensor;
  const std::vector<TensorId>& routed = graph[producer].outputs;
  const auto value = [&](int64_t i) -> int64_t& { return tensor.data_ptr<int64_t>()[i]; };
  if (id == routed[1])
    for (int64_t i = 0; i < tensor.numel(); ++i) value(i) = i;
  if (id == routed[2]) {
    const int64_t rows = element_count(graph.type_of(routed[1]).shape), experts = tensor.numel();
    for (int64_t i = 0; i < rows; ++i) ++value(routing == Routing::Even ? i % experts : 0);
  }
  return tensor;
}

// An op with operands made up for it, ready to be run again and again.
class Rehearsal {
 public:
  Rehearsal(const Graph& graph, const Op& op, uint64_t adds, Routing routing = Routing::Even)
      : graph_(graph), op_(op) {
    for (TensorId id : op.inputs) inputs_.push_back(operand(graph, id, routing));
    // Nothing divides by 0.
    if (op.kind == OpKind::Binary && op.pass == Pass::Forward)
      inputs_[1] = operand(graph.type_of(op.inputs[1]), 1);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const bool adds_to = i < 64 && (adds >> i & 1) != 0;
      sums_.push_back(adds_to ? operand(graph.type_of(op.outputs[i])) : at::Tensor());
    }
  }

  // Bytes of the results, as they are counted.
  int64_t run(const Arena& arena) {
    std::vector<Result> made;
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      const TensorType type = graph_.type_of(op_.outputs[i]);
      made.push_back(sums_[i].defined() ? Result(type, sums_[i]) : Result(type));
    }
    for (TensorId id : op_.auxiliaries) made.emplace_back(graph_.type_of(id));
    run_op(graph_, op_, inputs_, made);
    int64_t bytes = 0;
    for (const Result& result : made)
      if (result.wanted() && !result.adds()) bytes += arena.rounded(byte_size(result.type()).value);
    return bytes;
  }

 private:
  const Graph& graph_;
  const Op& op_;
  std::vector<at::Tensor> inputs_, sums_;
};

}  // namespace

KernelPrice measure_op(const Graph& graph, const Op& op, uint64_t adds, int threads) {
  KernelPrice price;
  on_device_thread(threads, [&](Arena& arena) {
    const auto note_workspace = [&](Rehearsal& rehearsal) {
      arena.reset_peak();
      const int64_t before = arena.statistics().live;
      const int64_t results = rehearsal.run(arena);
      price.workspace = std::max(price.workspace, arena.statistics().peak - before - results);
    };
    if (op.kind == OpKind::GroupedLinear) {
      Rehearsal crowded(graph, op, adds, Routing::Crowded);
      note_workspace(crowded);
    }
    Rehearsal rehearsal(graph, op, adds);
    const Nanoseconds first = time_of(threads, [&] { note_workspace(rehearsal); });
    price.time = first > kLong ? first : shortest(threads, [&] { rehearsal.run(arena); });
  });
  return price;
}

Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads) {
  // So many weights, one after the other, that caches do not hold them; but not more tiny ones than
  // it takes to time them.
  constexpr int64_t kElements = int64_t{1} << 22, kMostWeights = 4096;
  const int64_t weights = std::clamp<int64_t>(kElements / elements, 1, kMostWeights);
  Nanoseconds time = 0;
  on_device_thread(threads, [&](Arena&) {
    const auto pool = [&](DType dtype) { return operand({dtype, {weights * elements}}); };
    const at::Tensor weight = pool(variant.weight), gradient = pool(variant.gradient);
    const at::Tensor master = variant.master ? pool(DType::F32) : at::Tensor();
    std::vector<at::Tensor> states;
    for (int i = 0; i < optimizer_state_count(variant.optimizer); ++i)
      states.push_back(pool(DType::F32));
    const auto run = [&] {
      for (int64_t i = 0; i < weights; ++i) {
        const auto piece = [&](const at::Tensor& all) {
          return all.narrow(0, i * elements, elements);
        };
        at::Tensor own = piece(weight), copy = variant.master ? piece(master) : at::Tensor();
        std::vector<at::Tensor> own_states;
        for (const at::Tensor& state : states) own_states.push_back(piece(state));
        update_weight(variant.optimizer, {}, 1, 1, own, piece(gradient),
                      variant.master ? &copy : nullptr, own_states);
      }
    };
    run();
    time = shortest(threads, run) / weights;
  });
  return std::max<Nanoseconds>(1, time);
}

}  // namespace windlass
