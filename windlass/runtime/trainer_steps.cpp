// How a run goes on: step by step, or row by row of steps that overlap.
#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/runtime/not_finite.h"
#include "windlass/runtime/trainer_state.h"

namespace windlass {

StepRequest Trainer::State::request_at(int64_t step, SamplerPosition from) {
  StepRequest request;
  request.step = step;
  request.hyperparameters = options.hyperparameters;
  request.hyperparameters.learning_rate = options.rate.at(step);
  request.load = [this, samples = samples_at(from)](TensorId tensor, int32_t micro_batch,
                                                    std::span<std::byte> out) {
    const Range range = samples_in(std::max(0, micro_batch));
    const std::span<const int64_t> mine = std::span(samples).subspan(
        static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    filler->fill(tensor, training.of(micro_batch).graph[tensor].type, mine, out);
  };
  if (executor.needs_counts()) request.mean_counts = mean_counts(data_parts, request.load);
  return request;
}

Executor& Trainer::State::executor_for(int32_t steps) {
  for (; steps < executor.row_steps(); --steps) {
    const auto [entry, fresh] = shorter.try_emplace(steps);
    ShorterRow& made = entry->second;
    if (fresh) made.row = make_row(planned, steps);
    if (made.row.result.status != SimStatus::Done) continue;
    if (!made.executor)
      made.executor = std::make_unique<Executor>(training, made.row, machine,
                                                 executor_options(options, batch), &executor);
    return *made.executor;
  }
  return executor;
}

void Trainer::State::choose_row() {
  const int64_t samples = std::max<int64_t>(1, batch.samples);
  requests.clear();
  follows.clear();
  next = 0;
  SamplerPosition from = position.data;
  for (int32_t k = 0; k < executor.row_steps(); ++k) {
    const int64_t step = position.step + k + 1;
    requests.push_back(request_at(step, from));
    from = sampler->after(from, samples);
    follows.push_back(from);
    if (counts_follow) break;
    if (options.overlap.barrier_after && options.overlap.barrier_after(step)) break;
  }
  running = &executor_for(static_cast<int32_t>(requests.size()));
  requests.resize(static_cast<size_t>(running->row_steps()));
}

void Trainer::State::explain_loss(const StepRequest& request, const Executor& failed) {
  std::optional<NotFinite> found;
  for (int32_t m = 0; !found && m < data_parts; ++m) {
    const auto load = [&](TensorId tensor, std::span<std::byte> out) {
      request.load(tensor, m, out);
    };
    found = find_not_finite(training.of(m), executor, load, request.mean_counts);
  }
  fail(ErrorKind::Runtime, "step {}: the loss is {}: {} (noticed by {})", request.step,
       std::isnan(failed.last_loss()) ? "nan" : "infinite",
       found ? describe(training.graph, *found, request.step)
             : "lower the learning rate, clip gradients, or go on from the last checkpoint",
       failed.failed_task());
}

TrainerStep Trainer::step() {
  State& state = *state_;
  const bool begins = state.running == nullptr;
  if (begins) state.choose_row();
  Executor& at = *state.running;
  TrainerStep done;
  done.step = state.requests[state.next].step;
  done.learning_rate = state.requests[state.next].hyperparameters.learning_rate;
  try {
    if (begins) at.begin(state.requests);
    done.outcome = at.wait();
  } catch (const Error& error) {
    state.running = nullptr;
    const StepRequest& failed = state.requests[at.failed_step()];
    // Where a loss comes from takes all weights, and the others are no longer there to bring them.
    // All are there: the loss of a step waits for all updates of the one before that it reads.
    if (std::isfinite(at.last_loss()) || state.options.executor.ranks != nullptr)
      throw error.within(fmt::format("step {}", failed.step));
    state.explain_loss(failed, at);
  }
  state.position.step = done.step;
  state.position.data = state.follows[state.next];
  if (++state.next == state.requests.size()) state.running = nullptr;
  return done;
}

int64_t Trainer::steps_done() const { return state_->position.step; }
bool Trainer::in_row() const { return state_->running != nullptr; }

}  // namespace windlass
