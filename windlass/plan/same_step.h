// Comparing steps of the slow executor, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass {

// To 1e-9 of the largest element.
inline void expect_near(const Array& found, const Array& expected, const std::string& what) {
  ASSERT_EQ(found.values.size(), expected.values.size()) << what;
  double scale = 1e-3;
  for (double value : expected.values) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < found.values.size(); ++i)
    ASSERT_NEAR(found.values[i], expected.values[i], 1e-9 * scale) << what << ", element " << i;
}

// Of the batch.
inline double mean_loss(const StepEnd& end) {
  double sum = 0;
  for (double loss : end.losses) sum += loss;
  return sum / static_cast<double>(end.losses.size());
}

// `run` makes a StepEnd; losses, gradients, weights and optimizer state are those of `expected`,
// which may be of the batch that micro-batches make.
template <class Run>
void expect_same_end(const TrainingGraph& training, Run&& run, const StepEnd& expected) {
  StepEnd found;
  try {
    found = run();
  } catch (const Error& error) {
    FAIL() << error.message();
  }
  if (expected.losses.size() == 1) found.losses = {mean_loss(found)};
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t m = 0; m < found.losses.size(); ++m)
    ASSERT_NEAR(found.losses[m], expected.losses[m], 1e-9 * std::abs(expected.losses[m]));
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (size_t u = 0; u < expected.weights.size(); ++u) {
    const std::string& name = training.graph[training.graph.ops[first_update + u].inputs[0]].name;
    expect_near(found.gradients[u], expected.gradients[u], "gradient of " + name);
    expect_near(found.weights[u], expected.weights[u], "weight " + name);
    ASSERT_EQ(found.states[u].size(), expected.states[u].size());
    for (size_t k = 0; k < found.states[u].size(); ++k)
      expect_near(found.states[u][k], expected.states[u][k], "state of " + name);
  }
}

}  // namespace windlass
