// Every op kind in a network of its own, run under every memory action, against the interpreter.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/reference/op_networks.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

using reference::Approach;
using testing_runs::TestRun;

const std::vector<std::string> kPlans = {
    "single",
    "recompute-all",
    "offload-all",
    "single:host-update=on",
    "single:recompute=full,offload=on,host-weights=on,host-update=on,bucket=4KiB",
};

void expect_near(const std::vector<std::byte>& found, const Array& expected,
                 const std::string& name) {
  ASSERT_EQ(found.size(), expected.values.size() * sizeof(float)) << name;
  double most = 1;
  for (double value : expected.values) most = std::max(most, std::abs(value));
  for (size_t i = 0; i < expected.values.size(); ++i) {
    float value = 0;
    std::memcpy(&value, found.data() + i * sizeof(float), sizeof(float));
    // As in the tests of kernels; what follows the op squares its error.
    ASSERT_NEAR(static_cast<double>(value), expected.values[i], 5e-5 * most)
        << name << ", element " << i;
  }
}

void run_case(const reference::OpCase& c, const reference::OpNetworkOptions& options) {
  const reference::OpNetwork network = network_around(c, options);
  if (parameter_count(network.graph) == 0) return;
  std::optional<std::map<std::string, std::vector<std::byte>>> first;
  for (const std::string& action : kPlans) {
    SCOPED_TRACE(action);
    TestRun run(network.graph, action, {.optimizer = OptimizerKind::Sgd});
    run.values = {network.values.begin(), network.values.end()};
    run.begin();
    const auto expected = run.expected_gradients();
    const auto found = run.gradients();
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, gradient] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      expect_near(found.at(name), gradient, name);
      if (testing::Test::HasFatalFailure()) return;
    }
    if (!first) first = found;
    ASSERT_TRUE(found == *first) << "not the bits of " << kPlans[0];
  }
}

// The `part`-th of five tests: where they are hurried, they share the cases among them.
void run_all(size_t part, const reference::OpNetworkOptions& options) {
  size_t number = 0;
  for (const reference::OpCase& c : reference::op_cases(7)) {
    if (hurried() && number++ % 5 != part) continue;
    SCOPED_TRACE(c.name);
    try {
      run_case(c, options);
    } catch (const Error& error) {
      FAIL() << error.what();
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(EveryOp, TrainsWeights) {
  run_all(0, {.approach = Approach::Weight, .beside = true, .single = true});
}
TEST(EveryOp, TrainsWeightsThroughViews) {
  run_all(1, {.approach = Approach::View, .beside = false, .single = true});
}
TEST(EveryOp, TrainsWeightsThroughViewsThatOthersRead) {
  run_all(2, {.approach = Approach::View, .beside = true, .single = true});
}
TEST(EveryOp, TrainsThroughViewsOfActivations) {
  run_all(3, {.approach = Approach::Computed, .beside = false, .single = true});
}
TEST(EveryOp, TrainsThroughViewsOfActivationsThatOthersRead) {
  run_all(4, {.approach = Approach::Computed, .beside = true, .single = true});
}

}  // namespace
}  // namespace windlass
