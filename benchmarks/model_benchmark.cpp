// How long it takes to know a model: building, differentiating, finding structure, reading files.

#include <cstring>
#include <span>
#include <string>

#include <benchmark/benchmark.h>

#include "windlass/graph/blocks.h"
#include "windlass/graph/differentiate.h"
#include "windlass/model/model.h"
#include "windlass/model/onnx/wire.h"

namespace windlass {
namespace {

void build(benchmark::State& state, const std::string& name) {
  for (auto _ : state) benchmark::DoNotOptimize(load_model(name).graph.ops.size());
}

void differentiate_model(benchmark::State& state, const std::string& name) {
  const Graph graph = load_model(name).graph;
  size_t ops = 0;
  for (auto _ : state) ops = differentiate(graph).graph.ops.size();
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["ns/op"] =
      benchmark::Counter(static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate |
                                                       benchmark::Counter::kInvert);
}

void blocks(benchmark::State& state, const std::string& name) {
  const Graph graph = load_model(name).graph;
  for (auto _ : state) benchmark::DoNotOptimize(find_blocks(graph).size());
}

void varint(std::string& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
}
void message(std::string& out, int field, const std::string& body) {
  varint(out, static_cast<uint64_t>(field) << 3 | 2);
  varint(out, body.size());
  out += body;
}

// An ONNX file of `weights` initializers of 1 MiB each.
std::string synthetic_file(int weights) {
  const std::string values(1 << 20, '\0');
  std::string graph;
  for (int i = 0; i < weights; ++i) {
    std::string tensor;
    message(tensor, 8, "weight" + std::to_string(i));
    message(tensor, 9, values);
    message(graph, 5, tensor);
  }
  std::string model;
  message(model, 7, graph);
  return model;
}

void scan(benchmark::State& state) {
  const std::string file = synthetic_file(static_cast<int>(state.range(0)));
  for (auto _ : state)
    benchmark::DoNotOptimize(read_skeleton(std::as_bytes(std::span(file))).payloads.size());
  state.SetLabel(std::to_string(file.size() >> 20) + " MiB");
}

BENCHMARK_CAPTURE(build, resnet_50, "resnet-50")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, gpt2_xl, "gpt2-xl")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, llama3_405b, "llama3-405b")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(differentiate_model, resnet_50, "resnet-50")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(differentiate_model, gpt2_xl, "gpt2-xl")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(differentiate_model, llama3_405b, "llama3-405b")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(blocks, llama3_405b, "llama3-405b")->Unit(benchmark::kMillisecond);
BENCHMARK(scan)->Arg(10)->Arg(100)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace windlass

BENCHMARK_MAIN();
