// `windlass train` on one device, as a user runs it.

#include <cstdlib>

#include "tests/small_runs.h"
#include <fmt/format.h>

namespace windlass {
namespace {

using namespace small_runs;
using testing::HasSubstr;

TEST(TrainSlow, TellsProgramsEachStepAndTheRun) {
  const ProgramResult result = train({"--steps", "5", "--memory", "2MiB"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::vector<json> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 6u);
  const json& run = lines.back();
  EXPECT_EQ(run["steps"], 5);
  for (const char* side : {"predicted", "measured"}) {
    EXPECT_GT(run[side]["step_time_s"], 0);
    EXPECT_EQ(run[side]["devices"][0]["limit_bytes"], 2 * 1024 * 1024);
  }
  const int64_t predicted = device_peak(run["predicted"]);
  EXPECT_LE(predicted, 2 * 1024 * 1024);
  EXPECT_LE(device_peak(run["measured"]), predicted);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_GT(lines[i]["loss"], 0);
    EXPECT_GT(lines[i]["step_time_s"], 0);
    EXPECT_GT(device_peak(lines[i]), 0);
    EXPECT_LE(device_peak(lines[i]), predicted);
  }
}

TEST(TrainSlow, TellsPeopleTheSame) {
  const ProgramResult result =
      run_windlass(Arguments{"train", kModel, "--data", kText, "--steps", "20"} + kShape);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"4 samples a step", "harbour.txt", "drawn as PyTorch does",
                           "predicted:", "step     20", "step time", "peak of cpu0"})
    EXPECT_THAT(result.out, HasSubstr(part));
}

// A uniform guess among 256 tokens costs log 256 = 5.55.
TEST(TrainSlow, TheLossFalls) {
  const std::vector<double> losses =
      trained_losses(train_arguments({"--steps", "120", "--lr", "3e-3"}));
  ASSERT_EQ(losses.size(), 120u);
  EXPECT_NEAR(losses[0], 5.55, 0.3);
  EXPECT_LT(mean(losses, 100, 120), 3.5);
}

TEST(TrainSlow, LearnsDigitsFromFlatImages) {
  const Arguments digits = {"train",   "mlp:hidden=32,layers=2",
                            "--batch", "16",
                            "--data",  kDigits,
                            "--steps", "100",
                            "--lr",    "1e-2",
                            "--json",  "--eval-every",
                            "100",     "--strategy",
                            "single"};
  const ProgramResult result = run_windlass(digits);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> losses = losses_of(result.out);
  ASSERT_EQ(losses.size(), 100u);
  EXPECT_NEAR(losses[0], 2.3, 0.5);  // log 10
  EXPECT_LT(mean(losses, 80, 100), 1);
  EXPECT_LT(lines_of(result.out)[99]["eval_loss"], 1);
}

// Where things are kept changes what a step costs, never what it computes.
TEST(TrainSlow, EveryStrategyComputesTheSame) {
  const std::vector<double> expected = trained_losses(train_arguments({"--steps", "6"}));
  ASSERT_EQ(expected.size(), 6u);
  for (const char* strategy : {"recompute-all", "offload-all", "single:host-update=on",
                               "single:host-weights=on,host-update=on"}) {
    const ProgramResult result = run_windlass(train_arguments({"--steps", "6"}, strategy));
    ASSERT_EQ(result.exit_code, 0) << strategy << result.err;
    EXPECT_EQ(losses_of(result.out), expected) << strategy;
    const json run = lines_of(result.out).back();
    EXPECT_LE(device_peak(run["measured"]), device_peak(run["predicted"])) << strategy;
    EXPECT_LE(run["measured"]["host"]["peak_bytes"].get<int64_t>(),
              run["predicted"]["host"]["peak_bytes"].get<int64_t>())
        << strategy;
  }
}

// Nor does the search, in a third of the memory. It may cut the batch, whose sums are then rounded
// elsewhere, and whose dropout would be another.
TEST(TrainSlow, PlansByItselfInsideTheLimit) {
  const Arguments run =
      Arguments{"train", kModel + ",dropout=0", "--data", kText, "--steps", "6", "--json"} + kShape;
  const std::vector<double> expected = trained_losses(run + Arguments{"--strategy", "single"});
  const ProgramResult searched = run_windlass(run + Arguments{"--memory", "450KiB"});
  ASSERT_EQ(searched.exit_code, 0) << searched.err;
  const json last = lines_of(searched.out).back();
  EXPECT_LE(device_peak(last["measured"]), 450 * 1024);
  EXPECT_LE(device_peak(last["measured"]), device_peak(last["predicted"]));
  const std::vector<double> losses = losses_of(searched.out);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4) << i;
}

// The norm is waited for wherever weights are updated.
TEST(TrainSlow, ClippingOnTheHost) {
  const Arguments run = {"--steps", "3", "--clip", "0.1"};
  const ProgramResult device = run_windlass(train_arguments(run, "single"));
  const ProgramResult host = run_windlass(train_arguments(run, "single:host-update=on"));
  ASSERT_EQ(device.exit_code, 0) << device.err;
  ASSERT_EQ(host.exit_code, 0) << host.err;
  EXPECT_GT(lines_of(host.out)[0]["gradient_norm"].get<double>(), 0.1);
  EXPECT_EQ(losses_of(host.out), losses_of(device.out));
}

// A plan says whether gradients are clipped, and all verbs go by it.
TEST(TrainSlow, ClippingIsPartOfThePlan) {
  const ScratchFolder scratch;
  const std::string clipped = scratch / "clipped.json", plain = scratch / "plain.json";
  const Arguments make = Arguments{"plan", kModel, "--on", "local", "--memory", "1GiB"} + kShape;
  ASSERT_EQ(run_windlass(make + Arguments{"--clip", "0.1", "-o", clipped}).exit_code, 0);
  ASSERT_EQ(run_windlass(make + Arguments{"-o", plain}).exit_code, 0);
  EXPECT_EQ(run_windlass({"check", clipped}).exit_code, 0);
  EXPECT_EQ(run_windlass({"simulate", clipped}).exit_code, 0);
  const Arguments run = {"--data", kText, "--steps", "2", "--json"};
  const ProgramResult trained = run_windlass(Arguments{"train", clipped} + run);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(lines_of(trained.out)[0].contains("gradient_norm"));
  EXPECT_FALSE(
      lines_of(run_windlass(Arguments{"train", plain} + run).out)[0].contains("gradient_norm"));
  const ProgramResult refused = run_windlass(Arguments{"train", plain, "--clip", "1"} + run);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--clip"));
}

TEST(TrainSlow, ClippingBoundsTheStep) {
  const ProgramResult plain = train({"--steps", "4", "--optimizer", "sgd", "--lr", "1"});
  const ProgramResult loose =
      train({"--steps", "4", "--optimizer", "sgd", "--lr", "1", "--clip", "1e9"});
  const ProgramResult tight =
      train({"--steps", "4", "--optimizer", "sgd", "--lr", "1", "--clip", "1e-6"});
  for (const ProgramResult* result : {&plain, &loose, &tight})
    ASSERT_EQ(result->exit_code, 0) << result->err;
  EXPECT_FALSE(lines_of(plain.out)[0].contains("gradient_norm"));
  // The norm is that of the gradients as they were.
  const double norm = lines_of(tight.out)[0]["gradient_norm"];
  EXPECT_GT(norm, 1e-3);
  EXPECT_EQ(norm, lines_of(loose.out)[0]["gradient_norm"].get<double>());
  EXPECT_EQ(losses_of(plain.out), losses_of(loose.out));
  EXPECT_NE(losses_of(plain.out), losses_of(tight.out));
}

TEST(TrainSlow, TheLearningRateFollowsItsSchedule) {
  const ProgramResult result = train({"--steps", "12", "--schedule", "cosine", "--warm-up", "4",
                                      "--lr", "0.01", "--min-lr", "0.001"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<double> rates;
  for (const json& line : lines_of(result.out))
    if (line.contains("learning_rate")) rates.push_back(line["learning_rate"]);
  ASSERT_EQ(rates.size(), 12u);
  EXPECT_LT(rates[0], 0.01);
  for (size_t i = 1; i < 4; ++i) EXPECT_GT(rates[i], rates[i - 1]);
  EXPECT_NEAR(*std::ranges::max_element(rates), 0.01, 1e-9);
  for (size_t i = 5; i < 12; ++i) EXPECT_LT(rates[i], rates[i - 1]);
  EXPECT_GE(rates.back(), 0.001 - 1e-12);
  EXPECT_LT(rates.back(), 0.003);
}

// Lengths and numbers of events as TensorBoard would read them; windlass/run/event_file_test.cpp
// has the bytes.
std::vector<std::map<std::string, float>> events_in(const std::string& folder) {
  std::vector<std::map<std::string, float>> steps;
  for (const std::string& name : files_in(folder)) {
    const std::string text = read(folder + "/" + name);
    for (size_t at = 0; at < text.size();) {
      uint64_t size = 0;
      std::memcpy(&size, text.data() + at, sizeof(size));
      const std::string event = text.substr(at + 12, size);
      at += 16 + size;
      steps.emplace_back();
      // A tag is 0a, its length, its letters; the number behind it is 15 and four bytes.
      for (const char* tag : {"loss/train", "loss/evaluation", "memory/peak_bytes"})
        if (const size_t found = event.find(tag); found != std::string::npos)
          std::memcpy(&steps.back()[tag], event.data() + found + std::strlen(tag) + 1, 4);
    }
  }
  return steps;
}

TEST(TrainSlow, WritesEventsAndLinesOfJson) {
  const ScratchFolder scratch;
  const std::string log = scratch / "log.jsonl", board = scratch / "board";
  const ProgramResult result = train({"--steps", "4", "--eval-every", "2", "--eval-batches", "1",
                                      "--log", log, "--tensorboard", board});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> lines = lines_of(result.out);
  const std::vector<json> logged = lines_of(read(log));
  auto events = events_in(board);
  ASSERT_EQ(logged.size(), 4u);
  ASSERT_EQ(events.size(), 5u);  // the first one says which version it is
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(logged[i]["step"], i + 1);
    EXPECT_EQ(logged[i]["loss"], lines[i]["loss"]);
    EXPECT_EQ(logged[i].contains("eval_loss"), i % 2 == 1);
    EXPECT_EQ(events[i + 1].at("loss/train"), static_cast<float>(lines[i]["loss"].get<double>()));
    EXPECT_EQ(events[i + 1].contains("loss/evaluation"), i % 2 == 1);
    EXPECT_EQ(events[i + 1].at("memory/peak_bytes"), static_cast<float>(device_peak(lines[i])));
  }
}

TEST(TrainSlow, EvaluatesAndLogs) {
  const ScratchFolder scratch;
  const std::string log = scratch / "log.csv";
  const ProgramResult result =
      train({"--steps", "6", "--eval-every", "3", "--eval-batches", "2", "--log", log});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> lines = lines_of(result.out);
  std::istringstream csv(read(log));
  std::string row;
  std::getline(csv, row);
  EXPECT_EQ(row, "step,loss,learning_rate,step_time_s,samples_per_s,peak_bytes,eval_loss");
  for (size_t i = 0; i < 6; ++i) {
    const json& line = lines[i];
    ASSERT_EQ(line.contains("eval_loss"), i % 3 == 2);
    ASSERT_TRUE(std::getline(csv, row));
    std::vector<std::string> cells;
    std::istringstream stream(row + ",");
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    ASSERT_EQ(cells.size(), 7u) << row;
    EXPECT_EQ(std::stoul(cells[0]), i + 1);
    EXPECT_EQ(std::stod(cells[1]), line["loss"].get<double>());
    EXPECT_EQ(std::stod(cells[2]), line["learning_rate"].get<double>());
    EXPECT_EQ(std::stoll(cells[5]), device_peak(line));
    if (line.contains("eval_loss")) {
      EXPECT_EQ(std::stod(cells[6]), line["eval_loss"].get<double>());
      EXPECT_NEAR(line["eval_loss"], 5.4, 0.4);
    } else {
      EXPECT_EQ(cells[6], "");
    }
  }
  EXPECT_FALSE(std::getline(csv, row));
}

// Evaluation leaves the last tenth of the text to itself, and changes nothing else.
TEST(TrainSlow, EvaluationChangesNothing) {
  const std::vector<double> often =
      trained_losses(train_arguments({"--steps", "5", "--eval-every", "1", "--eval-batches", "1"}));
  const std::vector<double> once =
      trained_losses(train_arguments({"--steps", "5", "--eval-every", "5"}));
  EXPECT_EQ(often, once);
}

TEST(TrainSlow, TracesPredictionAndMeasurement) {
  const ScratchFolder scratch;
  const std::string path = scratch / "trace.json";
  const ProgramResult result = train({"--steps", "3", "--trace", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json trace = json::parse(read(path), nullptr, false);
  ASSERT_TRUE(trace.is_object() || trace.is_array());
  const json& events = trace.is_array() ? trace : trace["traceEvents"];
  std::string processes;
  for (const json& event : events)
    if (event["name"] == "process_name")
      processes += event["args"]["name"].get<std::string>() + "\n";
  EXPECT_THAT(processes, HasSubstr("predicted"));
  EXPECT_THAT(processes, HasSubstr("measured"));
}

TEST(TrainSlow, SavedWeightsAreRead) {
  const ScratchFolder scratch;
  const std::string weights = scratch / "weights.safetensors";
  const ProgramResult first = train({"--steps", "30", "--lr", "3e-3", "--save", weights});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const ProgramResult second = train({"--steps", "1", "--weights", weights});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_LT(losses_of(second.out)[0], losses_of(first.out)[0] - 0.5);
  // Weights that were read are those that were written.
  const std::string copy = scratch / "copy.safetensors";
  const ProgramResult unchanged = train(
      {"--steps", "1", "--optimizer", "sgd", "--lr", "0", "--weights", weights, "--save", copy});
  ASSERT_EQ(unchanged.exit_code, 0) << unchanged.err;
  EXPECT_EQ(read(copy), read(weights));
}

}  // namespace
}  // namespace windlass
