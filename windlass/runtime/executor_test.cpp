#include "windlass/runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/plan/case_networks.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

using testing_runs::TestRun;

const std::vector<std::string> kStrategies = {
    "single",
    "recompute-all",
    "recompute-sqrt",
    "offload-all",
    "single:recompute=full,offload=on",
    "single:host-update=on",
    "single:host-weights=on,host-update=on,bucket=4KiB",
    "single:host-weights=on",
    "offload-all:host-weights=on,host-update=on,bucket=4KiB",
};

std::vector<Graph> networks() {
  return {cases::mlp(8, 3),
          cases::views(4),
          cases::cnn(4),
          cases::cnn(4, true),
          cases::transformer(2, 2, false),
          cases::transformer(2, 2, true)};
}

// Never above what was predicted; exactly that, but for rounding, where nothing runs beside the
// kernels. What overlaps in the simulation need not when a thread is late.
void expect_peaks(TestRun& run, const StepOutcome& outcome, const std::string& what) {
  const TaskGraph& tasks = run.predicted().tasks;
  for (size_t m = 0; m < tasks.memories.size(); ++m) {
    const int64_t predicted = run.predicted().result.peaks[m].bytes;
    EXPECT_LE(outcome.peaks[m], predicted) << what << ", " << tasks.memories[m].name;
    if (tasks.lanes.size() == 1) {
      EXPECT_LE(static_cast<double>(predicted), 1.02 * static_cast<double>(outcome.peaks[m]))
          << what << ", " << tasks.memories[m].name;
    }
    EXPECT_LE(outcome.peaks[m], tasks.memories[m].limit.value);
  }
}

TEST(Executor, EveryMemoryActionGivesTheSameBits) {
  for (const Graph& network : networks()) {
    std::optional<std::map<std::string, std::vector<std::byte>>> first;
    for (const std::string& strategy : kStrategies) {
      const std::string what = network.name + " " + strategy;
      SCOPED_TRACE(what);
      TestRun run(network, strategy);
      run.begin();
      run.step();
      const auto gradients = run.gradients();
      EXPECT_FALSE(gradients.empty());
      if (!first) first = gradients;
      EXPECT_TRUE(gradients == *first) << what;
      expect_peaks(run, run.step(), what);
    }
  }
}

// One lane does it all: the same bits again, and the same promise about memory.
TEST(Executor, ADeviceThatCopiesItselfGivesTheSameBits) {
  const Graph network = cases::transformer(2, 2, true);
  TestRun plain(network, "single");
  plain.begin();
  const auto expected = plain.gradients();
  for (const std::string& strategy : kStrategies) {
    SCOPED_TRACE(strategy);
    TestRun run(network, strategy, {.optimizer = OptimizerKind::Adam}, std::nullopt, 1);
    run.begin();
    ASSERT_EQ(run.predicted().tasks.lanes.size(), 1u);
    EXPECT_TRUE(run.gradients() == expected);
    expect_peaks(run, run.step(), strategy);
  }
}

TEST(Executor, RandomMixturesGiveTheSameBits) {
  Rng rng(5);
  for (const Graph& network : networks()) {
    TestRun plain(network, "single");
    plain.begin();
    const auto expected = plain.gradients();
    for (int trial = 0; trial < 6; ++trial) {
      TestRun run(network, "single");
      for (size_t s = 0; s < run.strategy().saved.size(); ++s) {
        if (!run.training().saved[s].producer.valid()) continue;
        constexpr MemoryAction kActions[] = {MemoryAction::Keep, MemoryAction::Recompute,
                                             MemoryAction::Offload};
        run.strategy().saved[s] = kActions[rng.integer(0, 2)];
      }
      for (Residency& weight : run.strategy().weights) {
        weight.host = rng.chance(0.3);
        weight.host_update = rng.chance(0.3);
      }
      run.strategy().prefetch = static_cast<int32_t>(rng.integer(0, 4));
      run.begin();
      EXPECT_TRUE(run.gradients() == expected) << network.name << " trial " << trial;
      expect_peaks(run, run.step(), network.name);
    }
  }
}

// In equal micro-batches, and in those of 2, 1 and 1 samples.
TEST(Executor, MicroBatchesAddUp) {
  for (const Graph& network : {cases::transformer(4, 1, false), cases::repeated(4), cases::cnn(4)})
    for (const char* strategy : {"single:micro-batches=4", "single:micro-batches=3",
                                 "offload-all:micro-batches=3", "recompute-all:micro-batches=3"}) {
      SCOPED_TRACE(network.name + " " + strategy);
      TestRun whole(network, "single"), cut(network, strategy);
      whole.begin();
      cut.begin();
      const auto expected = whole.gradients(), found = cut.gradients();
      ASSERT_EQ(expected.size(), found.size());
      for (const auto& [name, bytes] : expected) {
        const auto* a = reinterpret_cast<const float*>(bytes.data());
        const auto* b = reinterpret_cast<const float*>(found.at(name).data());
        double most = 0, error = 0;
        for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
          most = std::max(most, std::abs(static_cast<double>(a[i])));
          error = std::max(error, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
        }
        EXPECT_LE(error, 1e-5 * most + 1e-7) << name;
      }
      const double loss = whole.step().loss;
      const StepOutcome outcome = cut.step();
      EXPECT_NEAR(outcome.loss, loss, 1e-5 * std::abs(loss));
      expect_peaks(cut, outcome, "micro-batches");
      // What is there is what is predicted, to the byte, where no copies run beside the kernels.
      if (cut.predicted().tasks.lanes.size() == 1) {
        EXPECT_EQ(outcome.peaks[0], cut.predicted().result.peaks[0].bytes);
      }
    }
}

// Dropout draws the same numbers for a sample, however the batch is cut.
TEST(Executor, MicroBatchesDropTheSame) {
  cases::Net net("dropping");
  TensorId x = net.b.input("x", cases::f32({4, 16}));
  x = net.linear(x, 32, "a");
  x = net.b.op(OpKind::Dropout, DropoutAttrs{.ratio = 0.5}, {x}, "drop");
  const Graph network = net.finish(net.linear(x, 8, "b"));
  TestRun whole(network, "single"), cut(network, "single:micro-batches=4"),
      unequal(network, "single:micro-batches=3"), again(network, "recompute-all:micro-batches=2");
  whole.begin();
  cut.begin();
  unequal.begin();
  again.begin();
  for (int i = 0; i < 3; ++i) {
    const double expected = whole.step().loss;
    EXPECT_NEAR(cut.step().loss, expected, 1e-5 * std::abs(expected));
    EXPECT_NEAR(unequal.step().loss, expected, 1e-5 * std::abs(expected));
    EXPECT_NEAR(again.step().loss, expected, 1e-5 * std::abs(expected));
  }
}

// So do noise, and dropout where the samples lie inside of another axis.
TEST(Executor, MicroBatchesDrawTheSame) {
  for (const RandomFn fn : {RandomFn::Normal, RandomFn::Uniform, RandomFn::Bernoulli}) {
    cases::Net net("drawing");
    TensorId x = net.b.input("x", cases::f32({4, 3, 7}));
    x = net.linear(x, 5, "a");
    x = net.b.op(OpKind::Transpose, TransposeAttrs{{1, 0, 2}}, {x}, "turn");
    x = net.b.op(OpKind::Dropout, DropoutAttrs{.ratio = 0.5}, {x}, "drop");
    const TensorId noise = net.b.op(
        OpKind::Random, RandomAttrs{.fn = fn, .shape = {3, 4, 5}, .alpha = 0.5}, {}, "noise");
    x = net.b.op(OpKind::Transpose, TransposeAttrs{{1, 0, 2}}, {net.add(x, noise, "sum")}, "back");
    const Graph network = net.finish(net.linear(net.reshape(x, {4, 15}, "flat"), 8, "b"));
    TestRun whole(network, "single"), cut(network, "single:micro-batches=4"),
        unequal(network, "recompute-all:micro-batches=3"),
        half(network, "recompute-all:micro-batches=2");
    for (TestRun* run : {&whole, &cut, &unequal, &half}) run->begin();
    for (int i = 0; i < 3; ++i) {
      const double expected = whole.step().loss;
      EXPECT_NEAR(cut.step().loss, expected, 1e-5 * std::abs(expected));
      EXPECT_NEAR(unequal.step().loss, expected, 1e-5 * std::abs(expected));
      EXPECT_NEAR(half.step().loss, expected, 1e-5 * std::abs(expected));
    }
  }
}

TEST(Executor, CompressionTrainsAndStaysInItsMemory) {
  for (const MemoryAction action :
       {MemoryAction::Compress8, MemoryAction::Compress4, MemoryAction::Compress2}) {
    TestRun plain(cases::mlp(8, 3), "single"), run(cases::mlp(8, 3), "single");
    for (size_t s = 0; s < run.strategy().saved.size(); ++s)
      if (run.training().saved[s].producer.valid() &&
          is_float(run.training().graph[run.training().saved[s].tensor].type.dtype))
        run.strategy().saved[s] = action;
    plain.begin();
    run.begin();
    double exact = 0, lossy = 0;
    StepOutcome last;
    for (int i = 0; i < 30; ++i) {
      exact = plain.step().loss;
      last = run.step();
      lossy = last.loss;
    }
    EXPECT_NEAR(lossy, exact, 0.25) << action_name(action);
    expect_peaks(run, last, std::string(action_name(action)));
  }
}

TEST(Executor, NothingLeaks) {
  TestRun run(cases::transformer(2, 2, true), "offload-all:host-update=on");
  run.begin();
  run.step();
  run.step();
  const std::vector<int64_t> early = run.executor().live_bytes();
  for (int i = 2; i < 200; ++i) run.step();
  EXPECT_EQ(run.executor().live_bytes(), early);
}

TEST(Executor, AnErrorOfAThreadEndsTheStepWithItsName) {
  TestRun run(cases::mlp(8, 2), "offload-all");
  run.begin();
  run.step();
  StepRequest request;
  request.load = [](TensorId, int32_t, std::span<std::byte> out) {
    std::memset(out.data(), 0x7f, out.size());  // labels far out of range
  };
  try {
    run.executor().run(request);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    EXPECT_THAT(error.message(), testing::HasSubstr("forward"));
    EXPECT_THAT(error.message(), testing::HasSubstr("out of range"));
  }
  EXPECT_THROW(run.executor().run(request), Error);
}

}  // namespace
}  // namespace windlass
