// The walk over ops.

#include <algorithm>

#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {

void StepBound::State::begin_walk() {
  for (const Phase phase : {kForward, kAgain}) {
    heads[phase].resize(training.graph.tensors.size(), -1);
    for (TensorId tensor : touched[phase]) heads[phase][tensor.index()] = -1;
    touched[phase].clear();
  }
  values.clear();
  terms_left = terms_of;
  tasks.clear();
  compute = 0;
}

const StepBound::State::Value* StepBound::State::find(Phase phase, TensorId tensor,
                                                      int32_t layout) const {
  for (int32_t i = heads[phase][tensor.index()]; i >= 0; i = values[static_cast<size_t>(i)].next)
    if (values[static_cast<size_t>(i)].layout == layout) return &values[static_cast<size_t>(i)];
  return nullptr;
}

const StepBound::State::Value& StepBound::State::put(Phase phase, TensorId tensor, int32_t layout,
                                                     int32_t buffer, int32_t task, int64_t bytes) {
  int32_t* link = &heads[phase][tensor.index()];
  if (*link < 0) touched[phase].add() = tensor;
  while (*link >= 0) link = &values[static_cast<size_t>(*link)].next;
  *link = static_cast<int32_t>(values.size());
  Value& value = values.add();
  value = {.layout = layout, .buffer = buffer, .next = -1, .task = task, .bytes = bytes};
  return value;
}

// A task on the lane beside.
int32_t StepBound::State::send(const LaneTasks::Flow& flow, int32_t after) {
  possible = possible && flow.possible;
  tasks.after(LaneTasks::kCommunicate, after);
  return tasks.add(LaneTasks::kCommunicate, flow);
}

// A task on the compute lane, after what it waits for.
int32_t StepBound::State::work(Nanoseconds duration) {
  for (int32_t task : waits) tasks.after(LaneTasks::kCompute, task);
  waits.clear();
  const int32_t task = tasks.add(LaneTasks::kCompute, duration);
  compute = tasks.end(LaneTasks::kCompute);
  return task;
}

// Those of an op: it begins, and ends after what its pieces exchange.
int32_t StepBound::State::work(Nanoseconds duration, const Coupled& coupled) {
  if (coupled.exchange == nullptr) return work(duration);
  wait_for(send(*coupled.exchange, work(coupled.begin)));
  return work(duration - coupled.begin - coupled.exchange->alone);
}

// As lowering does it: from the first value there is, in place where partial sums are combined.
// What the backward pass brings to another layout of the forward pass is kept apart.
const StepBound::State::Value& StepBound::State::value(Phase phase, TensorId tensor,
                                                       int32_t layout) {
  if (const Value* there = find(kForward, tensor, layout)) return *there;
  const int32_t head = heads[kForward][tensor.index()];
  // There from the start; in a window, in whichever layout.
  if (head < 0 || (in_window && values[static_cast<size_t>(head)].buffer < 0))
    return put(kForward, tensor, layout, -1, -1, 0);
  if (phase == kAgain) {
    if (const Value* there = find(kAgain, tensor, layout)) return *there;
    const int32_t later = heads[kAgain][tensor.index()];
    if (later >= 0) return move(kAgain, tensor, values[static_cast<size_t>(later)], layout);
  }
  return move(phase, tensor, values[static_cast<size_t>(head)], layout);
}

const StepBound::State::Value& StepBound::State::move(Phase phase, TensorId tensor, Value now,
                                                      int32_t layout) {
  for (const MoveTemplate& move : moves_of(tensor, now.layout, layout)) {
    Value next = now;
    next.layout = move.layout;
    next.task = send(*flow_of(move.traffic), now.task);
    if (move.in_place) {
      for (int32_t i = heads[phase][tensor.index()]; i >= 0;) {
        Value& held = values[static_cast<size_t>(i)];
        i = held.next;
        if (held.buffer != now.buffer || held.layout != now.layout) continue;
        const int32_t link = held.next;
        held = next;
        held.next = link;
      }
    } else {
      next.buffer = value_buffers++;
      next.bytes = allocated(move.elements * facts.element_size[tensor.index()]).value;
      moved_bytes += next.bytes;
    }
    now = next;
  }
  return put(phase, tensor, layout, now.buffer, now.task, now.bytes);
}

void StepBound::State::read(Phase phase, std::span<const Operand> reads) {
  for (const Operand& read : reads) wait_for(value(phase, read.tensor, read.layout).task);
}

void StepBound::State::forward(size_t op) {
  const Choice& own = *chosen[op];
  if (streams) read_weights(weights_of[op]);
  if (own.made->work < 0) {
    Value view;
    bool first = own.view_of_made;
    for (const Operand& read : own.forward_reads()) {
      const Value& there = value(kForward, read.tensor, read.layout);
      if (first) view = there;
      first = false;
    }
    // In a window it may be one of what comes from outside.
    if (view.buffer < 0 && !in_window) view.buffer = value_buffers++;
    put(kForward, own.results[0].tensor, own.results[0].layout, view.buffer, view.task, view.bytes);
    return;
  }
  read(kForward, own.forward_reads());
  const int32_t done = work(own.forward, own.coupled);
  for (const Made& result : own.forward_makes())
    put(kForward, result.tensor, result.layout, value_buffers++, done, result.bytes);
}

void StepBound::State::finish_term(const Made& term, int32_t done) {
  const auto u = static_cast<size_t>(term.update);
  if (--terms_left[u] != 0) return;
  if (plain) return add_gradient(term.update, done);
  if (tables.layout(term.layout).halo()) return;  // not reduced, but brought to the weight
  const int32_t digits = tables.partial_digits(term.layout);
  if (tables.members(digits) == 1) return;
  const auto& [scatter, gather] = reduce_price(digits);
  const Residency& residency = strategy->weights[u];
  // Shared-out gradients and weights are gathered later, if at all on this lane.
  const double price = residency.zero == 0 ? scatter + gather : scatter;
  const double bytes = static_cast<double>(term.elements * facts.updates[u].gradient_size);
  reduced = std::max(reduced, static_cast<double>(tasks.end(done))) + price * bytes;
}

void StepBound::State::backward(const Backward& op) {
  const Choice& own = *chosen[static_cast<size_t>(op.forward)];
  const OpTemplate& made = *own.made;
  if (made.backward_work < 0) {
    Value view;
    bool first = true;
    for (const Operand& read : own.gradient_reads()) {
      const Value& there = value(kForward, read.tensor, read.layout);
      if (first) view = there;
      first = false;
    }
    if (!op.output.valid()) return;
    put(kForward, op.output, made.input_gradients()[0].layout, view.buffer, view.task, view.bytes);
    return;
  }
  read(kForward, own.gradient_reads());
  if (keeps_all) read(kAgain, own.saved_reads());
  if (streams) read_weights(saved_weights_of[static_cast<size_t>(op.forward)]);
  const int32_t done = work(own.backward, own.backward_coupled);
  for (const Made& result : own.backward_makes()) {
    put(kForward, result.tensor, result.layout, value_buffers++, done, result.bytes);
    if (result.update >= 0) finish_term(result, done);
  }
}

void StepBound::State::accumulate(const Backward& op) {
  const TensorId inputs[] = {op.first, op.second};
  Value terms[2];
  int outside = 0;  // of the window, and perhaps in another layout
  for (size_t i = 0; i < 2; ++i) {
    const int32_t head = heads[kForward][inputs[i].index()];
    if (head >= 0) terms[i] = values[static_cast<size_t>(head)];
    if (head >= 0 && (!in_window || terms[i].buffer >= 0)) continue;
    if (!in_window) return;
    ++outside;
  }
  if (outside == 2) return;
  if (outside == 1) {  // of pieces that are as small as any
    const auto parts = static_cast<int64_t>(members.size());
    const int64_t elements = element_count(training.graph[op.output].type.shape);
    const int64_t least = elements / parts * facts.element_size[op.output.index()];
    for (const Value& term : terms)
      if (term.buffer >= 0) wait_for(term.task);
    if (least > 0) work(time_of_work(tables.sum_work(least)));
    return;
  }
  if (terms[0].layout != terms[1].layout) {
    const int32_t layout = tables.sum_layout(op.output, terms[0].layout);
    for (size_t i = 0; i < 2; ++i) terms[i] = value(kForward, inputs[i], layout);
  }
  for (const Value& term : terms) wait_for(term.task);
  const int64_t size = tables.allocated_bytes(op.output, terms[0].layout);
  const int32_t done = work(time_of_work(tables.sum_work(size)));
  moved_bytes += size;
  put(kForward, op.output, terms[0].layout, value_buffers++, done, size);
}

}  // namespace windlass
