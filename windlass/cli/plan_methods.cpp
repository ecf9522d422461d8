#include "windlass/cli/plan_methods.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/cli/interrupt.h"
#include "windlass/graph/batch.h"
#include "windlass/plan/degrees.h"
#include "windlass/search/advice/memory_methods.h"

namespace windlass {
namespace {

// Strategies to add methods to, in the order they are tried.
std::vector<std::string> bases_of(const Subject& subject) {
  if (subject.machine.devices.size() == 1)
    return {methods_base(subject.machine), "single:host-update=on"};
  const Degrees degrees = degrees_of(subject.training, find_batch(subject.model.graph),
                                     subject.strategy, subject.facts.samples);
  return {degrees.zero == 0 || degrees.packs ? methods_base(subject.machine)
                                             : fmt::format("zero:stage={}", degrees.zero),
          "zero:stage=3", "zero:stage=3,host-update=on"};
}

}  // namespace

PlanMethods methods_beside(const Subject& subject, Pricing& pricing, Progress& progress) {
  if (pricing.reprice())
    return {.report = {},
            .why_not =
                "prices are of kernels measured here, and other batches have other kernels; "
                "\"windlass advise\" measures them"};
  const Machine& machine = subject.machine;
  const Runner& runner = subject.request.runner;
  MethodsProblem problem = {
      .batch = {.network =
                    [&](int64_t samples) {
                      ModelRequest sized = subject.request;
                      sized.batch = samples;
                      return load_model(sized).graph;
                    },
                .machine = machine,
                .training = subject.request.training,
                .cost = pricing.cost()},
      .copies_in_turn = !runner.overlaps_copies,
      .progress = [&](const std::string& what) { progress.show("methods: " + what); }};
  for (const std::string& name : memory_methods())
    if (name != "mixture") problem.methods.push_back(name);
  problem.search.stop = [] { return InterruptScope::interrupted(); };
  MethodsReport report = {.model = subject.facts.model,
                          .machine = machine.name,
                          .provenance = pricing.provenance(),
                          .runner = runner.name,
                          .base = {},
                          .devices = static_cast<int64_t>(machine.devices.size()),
                          .limit = machine.devices[0].limit,
                          .card = machine.devices[0].limit,
                          .methods = {}};
  for (const Device& device : machine.devices) report.limit = std::min(report.limit, device.limit);
  report.card = report.limit;
  try {
    for (const std::string& base : bases_of(subject)) {
      report.base = problem.base = base;
      report.methods = advise_methods(simulate_methods(problem), report.limit, report.card);
      if (std::ranges::any_of(report.methods, [](const MethodAdvice& advice) {
            return advice.curve.best() != nullptr;
          }))
        break;
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    return {.report = {}, .why_not = error.message()};
  }
  return {.report = std::move(report), .why_not = {}};
}

}  // namespace windlass
