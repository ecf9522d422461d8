#include "windlass/runtime/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>

#include "windlass/base/error.h"
#include "windlass/runtime/compute_pacer.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/update_kernels.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// A kernel is repeated until it has been run so often, or for so long.
constexpr int kRepeats = 7;
constexpr auto kPatience = std::chrono::milliseconds(60);
// A first run that took so long is not repeated: fresh pages and cold caches are a small part of
// it.
constexpr Nanoseconds kLong = 1'000'000'000;

Nanoseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
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

// Devices that run the same at the same time, each on a thread of its own.
struct Together {
  explicit Together(int devices) : ready(devices), busy(devices) {}
  std::latch ready;
  std::atomic<int> busy;
};

// One device of them. One that fails keeps nobody waiting.
class DeviceTurn {
 public:
  explicit DeviceTurn(Together& all) : all_(all) {}
  ~DeviceTurn() {
    if (!started_) all_.ready.count_down();
    end();
  }
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

  // Waits until all are ready.
  void start() {
    started_ = true;
    all_.ready.arrive_and_wait();
  }
  // This one has measured. It goes on as long as others measure, so that they share what they share
  // in a step.
  template <class Run>
  void end_with(const Run& run) {
    end();
    while (all_.busy > 0) run();
  }

 private:
  void end() {
    if (!ended_) --all_.busy;
    ended_ = true;
  }

  Together& all_;
  bool started_ = false, ended_ = false;
};

// Runs `work` on a thread of each of so many devices, as far as there are cores, and throws what
// one of them threw.
void on_device_threads(int devices, int threads,
                       const std::function<void(Arena&, DeviceTurn&)>& work) {
  install_allocator();
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int count = std::clamp(devices, 1, cores);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  std::vector<std::thread> workers;
  Together together(count);
  for (std::exception_ptr& error : errors)
    workers.emplace_back([&] {
      try {
        DeviceTurn device(together);
        use_threads(threads);
        set_blas_threads(threads);
        Arena arena("profile", kNoLimit, kAllocationUnit);
        const ArenaScope scope(arena);
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        work(arena, device);
      } catch (...) {
        error = std::current_exception();
      }
    });
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// What it takes where devices share cores; they were not more than those when it was measured.
Nanoseconds shared(Nanoseconds time, int threads, int devices) {
  return static_cast<Nanoseconds>(static_cast<double>(time) * core_sharing(devices, threads));
}

template <class Run>
Nanoseconds time_of(int threads, Run&& run) {
  const auto start = Clock::now();
  const Nanoseconds worked = thread_time();
  run();
  return threads == 1 ? thread_time() - worked : since(start);
}

// Other kernels, as there are between two runs of the same one in a step: their code and what the
// core has learnt of its branches must be fetched again.
class OtherKernels {
 public:
  void run() {
    at::mm_out(product_, values_, values_);
    product_.tanh_();
    product_ = at::softmax(product_, -1);
    product_.mul_(values_).add_(1.5);
    at::sum_out(sums_, product_, {0});
    at::native_layer_norm(product_, {kSize}, {}, {}, 1e-5);
    at::gelu_(product_);
    at::copy(product_, values_.t());
  }

 private:
  static constexpr int64_t kSize = 48;
  at::Tensor values_ = operand({DType::F32, {kSize, kSize}}),
             product_ = operand({DType::F32, {kSize, kSize}}),
             sums_ = operand({DType::F32, {kSize}});
};

// The median of a few runs: some find their operands nearer than others.
template <class Run>
Nanoseconds usual(int threads, size_t repeats, Run&& run) {
  std::vector<Nanoseconds> times;
  OtherKernels others;
  const auto begin = Clock::now();
  while (times.size() < repeats && (times.empty() || Clock::now() - begin < kPatience)) {
    others.run();
    times.push_back(time_of(threads, run));
  }
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return std::max<Nanoseconds>(1, *middle);
}

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
    constexpr int64_t kCache = 16 << 20, kMost = 32;
    sets_.resize(
        static_cast<size_t>(std::clamp<int64_t>(kCache / std::max<int64_t>(1, bytes), 1, kMost)));
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
                          op.kind == OpKind::CrossEntropy;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (&set != &sets_[0] && fresh(i)) {
        set.inputs.push_back(sets_[0].inputs[i]);
        continue;
      }
      set.inputs.push_back(operand(operands.inputs[i], looks_up ? rows.to_whole(0) : 0));
      if (set.inputs[i].defined())
        route(op.inputs[i], *operands.input_regions[i], routing, set.inputs[i]);
    }
    // Nothing divides by 0.
    if (op.kind == OpKind::Binary && op.pass == Pass::Forward)
      set.inputs[1] = operand(operands.inputs[1], 1);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const bool adds_to = i < 64 && (run.adds >> i & 1) != 0;
      set.sums.push_back(adds_to ? operand(types_[i]) : at::Tensor());
    }
  }

  // What the choice of experts says must make sense: an order of rows, and the rows of each expert.
  void route(TensorId id, const Region& region, Routing routing, at::Tensor& tensor) const {
    const Graph& graph = *run_.graph;
    const OpId producer = graph[id].producer;
    if (!producer.valid() || graph[producer].kind != OpKind::Route ||
        graph[producer].forward.valid())
      return;
    const std::vector<TensorId>& routed = graph[producer].outputs;
    const auto value = [&](int64_t i) -> int64_t& { return tensor.data_ptr<int64_t>()[i]; };
    if (id == routed[1])
      for (int64_t i = 0; i < tensor.numel(); ++i) value(i) = whole_element(region, i);
    if (id == routed[2]) {
      const int64_t rows = element_count(graph.type_of(routed[1]).shape), experts = tensor.numel();
      for (int64_t i = 0; i < rows; ++i) ++value(routing == Routing::Even ? i % experts : 0);
    }
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
      own.time = usual(threads, std::max<size_t>(kRepeats, rehearsal.turns()), again);
    }
    device.end_with(again);
    const std::lock_guard lock(mutex);
    price.time = std::max(price.time, own.time);
    price.workspace = std::max(price.workspace, own.workspace);
  });
  price.time = shared(price.time, threads, devices);
  return price;
}

Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads,
                           int devices) {
  // So many weights, one after the other, that caches do not hold them; but not more tiny ones than
  // it takes to time them.
  constexpr int64_t kElements = int64_t{1} << 22, kMostWeights = 4096;
  const int64_t weights = std::clamp<int64_t>(kElements / elements, 1, kMostWeights);
  std::atomic<Nanoseconds> time = 1;
  on_device_threads(devices, threads, [&](Arena&, DeviceTurn& device) {
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
    device.start();
    const Nanoseconds own = usual(threads, kRepeats, run) / weights;
    device.end_with(run);
    Nanoseconds most = time;
    while (most < own && !time.compare_exchange_weak(most, own)) {
    }
  });
  return shared(time, threads, devices);
}

}  // namespace windlass
