// Published tables of large transformer training, and the same figures by windlass's analytic
// model: configuration in, predicted figure out, beside the published one.
//
// The rows are GPTs on A100-80GB nodes of 8 with 8 x 200 Gb/s between nodes, as those systems ran:
// fp16, attention not fused, dropout 0.1, Adam with fp32 master weights and fp32 gradients,
// vocabulary 51200, sequences of 2048. One set of constants serves all rows. Rows of other
// networks, cards and frameworks say all of it themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/units.h"

namespace windlass {

// A table of the program: validation/<name>.json, built in.
struct ValidationText {
  std::string_view name;
  std::string_view text;
};
std::vector<ValidationText> validation_texts();

// The table that is about searched strategies rather than large transformers: who has a search
// reads it.
inline constexpr std::string_view kSearchTable = "search-speedup";

// What a table is about.
enum class ValidatedFigure : uint8_t {
  StepTime,     // s
  FlopsRate,    // TFLOP/s of each GPU, by the formula of Narayanan et al.
  StateMemory,  // GiB of weights, gradients and optimizer state, average over the GPUs
  KeptMemory,   // GiB kept between the passes for the transformer layers, on the worst GPU
  KeptShare,    // % of the same without sequence parallelism and recomputation
  LayerMemory,  // MiB that one more layer keeps
  PassTime,     // ms of a forward and a backward pass, without the update; of a FrameworkStep
  WholeTime,    // ms of the whole of a FrameworkStep
  WholeMemory,  // MiB of the fullest card in a FrameworkStep
};

// What a figure of a card's memory counts.
enum class CountedMemory : uint8_t {
  Card,       // all that nvidia-smi shows
  Reserved,   // what the allocator took: no context, no communicators
  Allocated,  // what tensors and workspaces took of that
};

// A step as a framework takes it.
struct FrameworkStep {
  std::string model, machine, runner, strategy, dtype;
  int64_t batch = 1;
  std::optional<int64_t> sequence = {};  // none: samples are no sequences
  std::string less_model;                // if it is of a few layers: the network without them
  int64_t layers = 1;                    // so many
  std::string optimizer = "adam";
  bool fused_attention = true;  // or in its parts, whatever the runner would do
  CountedMemory counted = CountedMemory::Card;
};

struct ValidationRow {
  std::string label;
  int64_t layers = 0, hidden = 0, heads = 0;
  int64_t gpus = 0, tp = 1, pp = 1, interleave = 1, micro = 1, batch = 1;
  std::string recompute;  // as in a strategy
  bool sequence_parallel = false;
  std::optional<FrameworkStep> framework = {};  // instead of all that
  double published = 0;
  double predicted = 0;  // by run_validation()

  double error() const { return predicted / published - 1; }
};

struct ValidationTable {
  std::string name, title, source, note, unit;
  ValidatedFigure figure = ValidatedFigure::StepTime;
  double bar_mean = 0;  // of absolute relative errors; 0: no bar
  double bar_max = 0;
  std::vector<ValidationRow> rows;

  double mean_error() const;
  double max_error() const;
  bool passed() const;
};

// Reads the format of validation/. Throws Error{Input} beginning with `name`.
ValidationTable read_validation(std::string_view name, std::string_view text);

// Fills in the predictions. Rows that ask for the same step share its simulation; `threads` work
// on different ones side by side, which changes nothing but the time. `done` is called after each
// simulation with how many are done and how many there are, from one thread at a time.
void run_validation(std::vector<ValidationTable>& tables, size_t threads = 1,
                    const std::function<void(size_t, size_t)>& done = {});

}  // namespace windlass
