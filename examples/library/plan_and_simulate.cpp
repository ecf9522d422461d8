// Plans a small GPT for four devices with 200 MiB each, and simulates what was found.

#include <cstdio>

#include <windlass/windlass.h>

int main() {
  using namespace windlass;
  try {
    const Model model =
        load_model("gpt2:layers=4,hidden=256,heads=4", {.batch = 8, .sequence = 128});
    Machine machine = load_machine("4x3090");
    for (Device& device : machine.devices) device.limit = Bytes(200 << 20);
    const auto cost = analytic_cost_model();
    const Problem problem = {.network = model.graph, .machine = machine, .cost = *cost};
    const SearchResult found = search_all(problem, {.time_limit = Seconds(2)});
    if (found.termination == Termination::Infeasible) {
      std::puts("nothing fits");
      return 2;
    }
    const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
    std::printf("%s: %s a step, %lld tasks\n", found.strategy.name.c_str(),
                format_seconds(step.step_time()).c_str(),
                static_cast<long long>(step.tasks.tasks.size()));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.message().c_str());
    return 1;
  }
}
