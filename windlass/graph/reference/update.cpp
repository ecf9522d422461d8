#include "windlass/graph/reference/update.h"

#include <cmath>

#include "windlass/base/error.h"
#include "windlass/graph/differentiate.h"

namespace windlass {

void reference_update(OptimizerKind kind, const UpdateHyperparameters& hyperparameters,
                      int64_t step, std::vector<double>& weight,
                      const std::vector<double>& gradient,
                      std::vector<std::vector<double>>& states) {
  const UpdateHyperparameters& p = hyperparameters;
  ensure(step >= 1, "optimizer steps count from 1");
  ensure(weight.size() == gradient.size(), "weight and gradient differ in size");
  ensure(static_cast<int>(states.size()) == optimizer_state_count(kind),
         "wrong number of optimizer states");
  for (const std::vector<double>& state : states)
    ensure(state.size() == weight.size(), "weight and optimizer state differ in size");
  const auto n = static_cast<double>(step);
  for (size_t i = 0; i < weight.size(); ++i) {
    double& w = weight[i];
    const double decayed = gradient[i] + p.weight_decay * w;
    switch (kind) {
      case OptimizerKind::Sgd: w -= p.learning_rate * decayed; break;
      case OptimizerKind::Momentum:
        states[0][i] = p.momentum * states[0][i] + decayed;
        w -= p.learning_rate * states[0][i];
        break;
      case OptimizerKind::Adam:
      case OptimizerKind::AdamW: {
        const bool decoupled = kind == OptimizerKind::AdamW;
        const double g = decoupled ? gradient[i] : decayed;
        if (decoupled) w -= p.learning_rate * p.weight_decay * w;
        double& mean = states[0][i];
        double& square = states[1][i];
        mean = p.beta1 * mean + (1 - p.beta1) * g;
        square = p.beta2 * square + (1 - p.beta2) * g * g;
        const double unbiased_mean = mean / (1 - std::pow(p.beta1, n));
        const double unbiased_square = square / (1 - std::pow(p.beta2, n));
        w -= p.learning_rate * unbiased_mean / (std::sqrt(unbiased_square) + p.epsilon);
        break;
      }
    }
  }
}

}  // namespace windlass
