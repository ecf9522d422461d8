// `windlass plan` and `windlass train` as a user runs them.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>
#include <unistd.h>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

const std::string kText = WINDLASS_SOURCE_DIR "/examples/data/harbour.txt";
const std::string kDigits = WINDLASS_SOURCE_DIR "/examples/data/digits";
const std::string kModel = "gpt2:layers=2,hidden=32,heads=2,vocab=256";
const Arguments kShape = {"--seq", "16", "--batch", "4"};
const Arguments kOneDevice = {"--on", "local", "--devices", "1"};

Arguments operator+(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

ProgramResult plan(const Arguments& more) {
  return run_windlass(Arguments{"plan", kModel} + kShape + kOneDevice + more);
}

json plan_json(const Arguments& more, int exit_code = 0) {
  const ProgramResult result = plan(more + Arguments{"--json"});
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return json::parse(result.out, nullptr, false);
}

// Trains the small model on the text; all but the strategy can be given again by another one.
Arguments train_arguments(const Arguments& more, const std::string& strategy = "single") {
  return Arguments{"train", kModel} + kShape + kOneDevice +
         Arguments{"--data", kText, "--strategy", strategy, "--json"} + more;
}
ProgramResult train(const Arguments& more, const ProgramOptions& options = {}) {
  return run_windlass(train_arguments(more), options);
}

std::vector<json> lines_of(const std::string& out) {
  std::vector<json> lines;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(json::parse(line, nullptr, false));
  return lines;
}

// Of the steps that were printed.
std::vector<double> losses_of(const std::string& out) {
  std::vector<double> losses;
  for (const json& line : lines_of(out))
    if (line.contains("loss")) losses.push_back(line["loss"]);
  return losses;
}

std::vector<double> trained_losses(const Arguments& arguments) {
  const ProgramResult result = run_windlass(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return losses_of(result.out);
}

int64_t device_peak(const json& line) { return line["devices"][0]["peak_bytes"]; }

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

// Fails with the code and a message that has all the parts; prints nothing about a bug.
void expect_failure(const ProgramResult& result, int exit_code, const Arguments& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_EQ(result.err.find("internal error"), std::string::npos) << result.err;
}

// plan

TEST(PlanSlow, JsonHasTheKeysProgramsRelyOn) {
  const json found = plan_json({"--memory", "500KiB"});
  ASSERT_TRUE(found.is_object());
  EXPECT_THAT((std::vector<std::string>{"optimal", "feasible"}),
              testing::Contains(found["termination"].get<std::string>()));
  const double step = found["step_time_s"];
  EXPECT_GT(step, 0);
  EXPECT_NEAR(found["samples_per_s"].get<double>(), 4 / step, 1e-6 * 4 / step);
  EXPECT_GE(found["lower_bound_s"], 0);
  EXPECT_LE(found["lower_bound_s"].get<double>(), step);
  EXPECT_NEAR(found["gap"].get<double>(), 1 - found["lower_bound_s"].get<double>() / step, 1e-9);
  ASSERT_EQ(found["devices"].size(), 1u);
  EXPECT_EQ(found["devices"][0]["limit_bytes"], 500 * 1024);
  EXPECT_GT(found["devices"][0]["peak_bytes"], 0);
  EXPECT_LE(found["devices"][0]["peak_bytes"], 500 * 1024);
  // So little memory needs the host's, and a link to it.
  EXPECT_GT(found["host"]["peak_bytes"], 0);
  ASSERT_FALSE(found["links"].empty());
  EXPECT_GT(found["links"][0]["bytes"], 0);
  EXPECT_GE(found["search"]["seconds"], 0);
  EXPECT_GT(found["search"]["proposals"], 0);
}

TEST(PlanSlow, TellsPeopleTheSame) {
  const ProgramResult result = plan({"--memory", "500KiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"strategies tried", "saved for the backward pass", "where the time goes",
                           "memory at its peak"})
    EXPECT_THAT(result.out, HasSubstr(part));
}

// What is called the least limit is one, to the byte.
TEST(PlanSlow, SaysTheLeastLimitExactly) {
  const json refused = plan_json({"--memory", "100KiB"}, 2);
  ASSERT_TRUE(refused.is_object());
  EXPECT_EQ(refused["termination"], "infeasible");
  EXPECT_EQ(refused["limit_bytes"], 100 * 1024);
  EXPECT_THAT(refused["reason"].get<std::string>(), HasSubstr("missing"));
  const int64_t least = refused["minimum_limit_bytes"];
  EXPECT_GT(least, 100 * 1024);
  const json fits = plan_json({"--memory", std::to_string(least)});
  EXPECT_LE(device_peak(fits), least);
  const json tight = plan_json({"--memory", std::to_string(least - 1)}, 2);
  EXPECT_EQ(tight["minimum_limit_bytes"], least);

  const ProgramResult text = plan({"--memory", "100KiB"});
  EXPECT_EQ(text.exit_code, 2);
  for (const std::string& part : {std::string("no plan fits 100 KiB"),
                                  fmt::format("({} bytes)", least), std::string("what helps")})
    EXPECT_THAT(text.out, HasSubstr(part));
}

// Kernels are measured again for each plan, so times are not compared: with enough memory nothing
// is moved or computed twice, and with less everything that fits less is still inside the limit.
TEST(PlanSlow, MoreMemoryIsUsedToDoLess) {
  const json all = plan_json({});
  EXPECT_EQ(all["termination"], "feasible");
  const int64_t enough = device_peak(all);
  const json same = plan_json({"--memory", std::to_string(enough)});
  for (const json* found : {&all, &same}) {
    EXPECT_EQ((*found)["decisions"]["weights_on_host"], 0);
    EXPECT_EQ((*found)["decisions"]["updated_on_host"], 0);
    EXPECT_EQ((*found)["decisions"]["saved"].size(), 1u);
    EXPECT_TRUE((*found)["decisions"]["saved"].contains("keep"));
    EXPECT_EQ((*found)["breakdown"]["recompute_s"], 0);
    EXPECT_EQ((*found)["breakdown"]["swap_s"], 0);
  }
  for (const int64_t limit : {enough - 1, enough * 3 / 4, enough / 2, enough / 3}) {
    const json found = plan_json({"--memory", std::to_string(limit)});
    EXPECT_LE(device_peak(found), limit);
    const json& decisions = found["decisions"];
    EXPECT_TRUE(decisions["updated_on_host"] > 0 || decisions["saved"].size() > 1 ||
                decisions["micro_batches"] > 1)
        << limit;
  }
}

TEST(PlanSlow, WritesPlansThatAreCheckedAndTrained) {
  const ScratchFolder scratch;
  const std::string path = scratch / "plan.json";
  const json found = plan_json({"--memory", "600KiB", "-o", path});
  EXPECT_EQ(found["plan"], path);
  const ProgramResult checked = run_windlass({"check", path});
  EXPECT_EQ(checked.exit_code, 0) << checked.err << checked.out;
  const ProgramResult trained =
      run_windlass({"train", path, "--data", kText, "--steps", "3", "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::vector<json> lines = lines_of(trained.out);
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(device_peak(lines[i]), device_peak(found));
  // The strategy that cuts the batch alike; dropout depends on the cut.
  const int64_t samples = 4 / found["decisions"]["micro_batches"].get<int64_t>();
  EXPECT_EQ(
      losses_of(trained.out),
      trained_losses(train_arguments({"--steps", "3"}, fmt::format("single:micro={}", samples))));
  // A tighter limit than the plan was made for is refused before anything runs.
  expect_failure(run_windlass({"train", path, "--data", kText, "--memory", "100KiB"}), 2,
                 {"does not fit", "100 KiB"});
}

TEST(PlanSlow, TrainingElsewhereIsRefusedWithAHint) {
  const Arguments model = Arguments{"plan", kModel} + kShape;
  expect_failure(run_windlass(model), 1, {"--on"});
  expect_failure(run_windlass(model + Arguments{"--on", "4x3090", "--search", "one-device"}), 1,
                 {"4x3090 has 4 devices", "--devices 1"});
  const Arguments trained = Arguments{"train", kModel, "--data", kText} + kShape;
  expect_failure(run_windlass(trained + Arguments{"--on", "4x3090"}), 1,
                 {"4x3090: training runs on the devices of this host", "--on local --devices N"});
}

// train

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

// checkpoints

class CheckpointsSlow : public testing::Test {
 protected:
  // The weights after 12 steps without interruption.
  std::string straight() {
    const std::string path = scratch_ / "straight.safetensors";
    const ProgramResult result = train(kRun + Arguments{"--save", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read(path);
  }
  // The same run, in pieces.
  Arguments pieces() const {
    return kRun + Arguments{"--checkpoints",
                            folder_,
                            "--checkpoint-every",
                            "1",
                            "--resume",
                            folder_,
                            "--save",
                            pieced_,
                            "--log",
                            log_path_};
  }

  inline static const Arguments kRun = {"--steps", "12",         "--lr",   "3e-3",      "--clip",
                                        "1",       "--schedule", "cosine", "--warm-up", "3"};
  ScratchFolder scratch_;
  const std::string folder_ = scratch_ / "run";
  const std::string pieced_ = scratch_ / "pieced.safetensors";
  const std::string log_path_ = scratch_ / "log.csv";
};

TEST_F(CheckpointsSlow, RunsThatWereKilledEndTheSame) {
  const std::string expected = straight();
  std::mt19937 random(7);
  bool done = false;
  // Killed at once, then after a few steps and a little more: also while a checkpoint is written.
  for (int attempt = 0; attempt < 40 && !done; ++attempt) {
    RunningProgram running(train_arguments(pieces()));
    if (attempt > 0) {
      const auto lines = static_cast<int64_t>(1 + random() % 3);
      running.wait_for_lines(lines);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    }
    running.signal(SIGKILL);
    const ProgramResult result = running.wait();
    ASSERT_TRUE(result.exit_code == -1 || result.exit_code == 0) << result.err;
    done = result.exit_code == 0;
    EXPECT_TRUE(attempt > 0 || !done);
  }
  const ProgramResult last = run_windlass(train_arguments(pieces()));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(read(pieced_), expected);
  // Each step stands in the log once.
  std::istringstream log(read(log_path_));
  std::string row;
  std::getline(log, row);
  for (int step = 1; step <= 12; ++step) {
    ASSERT_TRUE(std::getline(log, row));
    EXPECT_EQ(std::stoi(row), step);
  }
  EXPECT_FALSE(std::getline(log, row));
}

// What a kill in the middle of writing leaves is neither read nor kept.
TEST_F(CheckpointsSlow, UnfinishedFilesAreNotCheckpoints) {
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_}).exit_code, 0);
  const std::string whole = read(folder_ + "/checkpoint-00000002.safetensors");
  write(folder_ + "/checkpoint-00000003.safetensors.a1B2c3", whole.substr(0, whole.size() / 2));
  write(folder_ + "/notes.txt", "mine");
  const ProgramResult result =
      train({"--steps", "4", "--checkpoints", folder_, "--resume", folder_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_of(result.out)[0]["step"], 3);
  EXPECT_THAT(files_in(folder_),
              testing::ElementsAre("checkpoint-00000002.safetensors",
                                   "checkpoint-00000004.safetensors", "notes.txt"));
}

TEST_F(CheckpointsSlow, InterruptsFinishTheStepAndSave) {
  for (const int number : {SIGINT, SIGTERM}) {
    fs::remove_all(folder_);
    const Arguments run = {"--steps", "100000", "--checkpoints", folder_};
    RunningProgram running(train_arguments(run));
    ASSERT_TRUE(running.wait_for_lines(3));
    running.signal(number);
    const ProgramResult result = running.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped after step"));
    const std::vector<json> lines = lines_of(result.out);
    ASSERT_GE(lines.size(), 4u);
    const int64_t done = lines[lines.size() - 2]["step"];
    EXPECT_EQ(lines.back()["steps"], done);
    EXPECT_THAT(files_in(folder_),
                testing::ElementsAre(fmt::format("checkpoint-{:08}.safetensors", done)));
    const ProgramResult more = train({"--steps", std::to_string(done + 2), "--resume", folder_});
    ASSERT_EQ(more.exit_code, 0) << more.err;
    const ProgramResult all = train({"--steps", std::to_string(done + 2)});
    ASSERT_EQ(all.exit_code, 0) << all.err;
    const std::vector<double> expected = losses_of(all.out), found = losses_of(more.out);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found, std::vector<double>(expected.end() - 2, expected.end()));
  }
}

TEST_F(CheckpointsSlow, ARunThatIsDoneSaysSo) {
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_}).exit_code, 0);
  const ProgramResult result = train({"--steps", "2", "--resume", folder_, "--save", pieced_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["steps"], 2);
  EXPECT_TRUE(fs::exists(pieced_));
}

// A checkpoint is of the model and the optimizer, not of the way they were laid out.
TEST_F(CheckpointsSlow, AnotherStrategyGoesOn) {
  const std::vector<double> expected = trained_losses(train_arguments({"--steps", "4"}));
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_}).exit_code, 0);
  const std::vector<double> found = trained_losses(train_arguments(
      {"--steps", "4", "--resume", folder_}, "single:host-weights=on,host-update=on"));
  EXPECT_EQ(found, std::vector<double>(expected.begin() + 2, expected.end()));
}

// But the batch is cut as before: rounding depends on it.
TEST_F(CheckpointsSlow, ASearchKeepsTheCutOfTheBatch) {
  const std::string cut = "single:micro=1";
  const std::vector<double> all = trained_losses(train_arguments({"--steps", "4"}, cut));
  const std::vector<double> expected(all.begin() + 2, all.end());
  ASSERT_EQ(trained_losses(train_arguments({"--steps", "2", "--checkpoints", folder_}, cut)).size(),
            2u);
  const Arguments run =
      Arguments{"train", kModel, "--data", kText, "--steps", "4", "--json", "--resume", folder_} +
      kShape;
  EXPECT_EQ(trained_losses(run), expected);
  EXPECT_EQ(trained_losses(run + Arguments{"--memory", "600KiB"}), expected);
  // Who names another one is told.
  const ProgramResult other = train({"--steps", "4", "--resume", folder_});
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("with 4 micro-batches"));
  EXPECT_THAT(other.err, HasSubstr("not bit for bit"));
}

TEST_F(CheckpointsSlow, AFullDiskLeavesThePreviousOne) {
  const Arguments run = {"--checkpoints", folder_, "--checkpoint-every", "1", "--resume", folder_};
  ASSERT_EQ(train(Arguments{"--steps", "2"} + run).exit_code, 0);
  const std::vector<std::string> before = files_in(folder_);
  const std::string newest = folder_ + "/checkpoint-00000002.safetensors";
  const std::string kept = read(newest);
  // Checkpoints take 800 kB.
  expect_failure(train(Arguments{"--steps", "12"} + run, {.file_bytes = 400'000}), 3,
                 {"checkpoint-00000003.safetensors", "File too large"});
  EXPECT_EQ(files_in(folder_), before);
  EXPECT_EQ(read(newest), kept);
  const ProgramResult after = train(Arguments{"--steps", "4"} + run);
  EXPECT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(lines_of(after.out)[0]["step"], 3);
}

TEST_F(CheckpointsSlow, DivergenceLeavesTheLastOne) {
  const Arguments run = {"--checkpoints", folder_, "--checkpoint-every", "1", "--resume", folder_};
  ASSERT_EQ(train(Arguments{"--steps", "2"} + run).exit_code, 0);
  const ProgramResult diverged = train(Arguments{"--steps", "9", "--lr", "1e30"} + run);
  expect_failure(diverged, 3, {"the loss is", "nan", "learning rate", "last checkpoint"});
  EXPECT_TRUE(fs::exists(folder_ + "/checkpoint-00000002.safetensors"));
  const ProgramResult after =
      train({"--steps", "4", "--resume", folder_ + "/checkpoint-00000002.safetensors"});
  EXPECT_EQ(losses_of(after.out), [] {
    const std::vector<double> all = trained_losses(train_arguments({"--steps", "4"}));
    return std::vector<double>(all.begin() + 2, all.end());
  }());
}

TEST_F(CheckpointsSlow, OthersAndDamagedOnesAreRefused) {
  const std::string weights = scratch_ / "weights.safetensors";
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_, "--save", weights}).exit_code, 0);
  const std::string newest = folder_ + "/checkpoint-00000002.safetensors";
  const std::string whole = read(newest);
  const Arguments resume = {"--steps", "4", "--resume", folder_};

  const Arguments other = Arguments{"train",      "gpt2:layers=1,hidden=32,heads=2,vocab=256",
                                    "--strategy", "single",
                                    "--data",     kText} +
                          kShape;
  expect_failure(run_windlass(other + resume), 1, {newest, "another model"});
  expect_failure(train(resume + Arguments{"--optimizer", "momentum"}), 1,
                 {newest, "optimizer adam", "momentum"});
  expect_failure(train(resume + Arguments{"--seed", "5"}), 1, {newest, "--seed 0", "5"});
  expect_failure(train({"--resume", weights}), 1, {weights, "--weights"});
  expect_failure(train({"--resume", folder_ + "/none.safetensors"}), 1,
                 {folder_ + "/none.safetensors", "No such file"});

  const std::string damaged = scratch_ / "damaged.safetensors";
  const Arguments from_damaged = {"--steps", "4", "--resume", damaged};
  for (const size_t place : {whole.size() - 100, whole.size() / 2}) {
    std::string flipped = whole;
    flipped[place] = static_cast<char>(flipped[place] ^ 0x10);
    write(damaged, flipped);
    expect_failure(train(from_damaged), 1, {damaged, "check sum differs", "older checkpoint"});
  }
  for (const size_t size : {whole.size() - 1, size_t{5000}, size_t{4}}) {
    write(damaged, whole.substr(0, size));
    expect_failure(train(from_damaged), 1, {damaged});
  }
  // Whatever a byte of the header says then, it is refused or harmless, but no bug.
  std::mt19937 random(3);
  for (int i = 0; i < 3; ++i) {
    std::string flipped = whole;
    flipped[random() % 2000] ^= static_cast<char>(1 << random() % 7);
    write(damaged, flipped);
    const ProgramResult result = train(from_damaged);
    EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 1) << result.err;
  }
}

TEST_F(CheckpointsSlow, ADamagedNewestOneIsPassedOver) {
  const Arguments run = {"--checkpoints", folder_, "--checkpoint-every", "1", "--resume", folder_};
  ASSERT_EQ(train(run + Arguments{"--steps", "2"}).exit_code, 0);
  const std::string first = folder_ + "/checkpoint-00000001.safetensors";
  const std::string newest = folder_ + "/checkpoint-00000002.safetensors";
  std::string bytes = read(newest);
  bytes[bytes.size() - 100] ^= 1;
  write(newest, bytes);
  const ProgramResult result = train(run + Arguments{"--steps", "4", "--save", pieced_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("passed over: " + newest), HasSubstr("check sum"),
                                HasSubstr("going on from " + first)));
  const std::string whole = scratch_ / "whole.safetensors";
  ASSERT_EQ(train({"--steps", "4", "--save", whole}).exit_code, 0);
  EXPECT_EQ(read(pieced_), read(whole));
}

// mistakes

TEST(TrainSlow, MistakesInDataAreNamed) {
  const ScratchFolder scratch;
  const Arguments model = Arguments{"train", kModel, "--strategy", "single"} + kShape;
  const std::string text = scratch / "short.txt";
  write(text, "sixteen letters.");  // 17 are needed: each has one that follows
  expect_failure(run_windlass(model + Arguments{"--data", text}), 1, {text, "16 tokens", "17"});
  const std::string missing = scratch / "missing.txt";
  expect_failure(run_windlass(model + Arguments{"--data", missing}), 1, {missing, "no such file"});
  expect_failure(run_windlass(model + Arguments{"--data", scratch / ""}), 1,
                 {scratch / "", "MNIST"});
  expect_failure(run_windlass(model + Arguments{"--data", kDigits}), 1, {kDigits, "images"});
  const Arguments narrow = Arguments{"train",      "gpt2:layers=1,hidden=32,heads=2,vocab=64",
                                     "--strategy", "single",
                                     "--data",     kText} +
                           kShape;
  expect_failure(run_windlass(narrow), 1, {kText, "token", "position", "vocabulary of 64"});
  // Labels, too.
  expect_failure(run_windlass({"train", "mlp:hidden=8,layers=2,classes=3", "--batch", "4", "--data",
                               kDigits, "--strategy", "single"}),
                 1, {"labels", "3 classes"});
}

TEST(TrainSlow, MistakesInWeightsAreNamed) {
  const ScratchFolder scratch;
  const std::string weights = scratch / "weights.safetensors";
  ASSERT_EQ(train({"--steps", "1", "--save", weights}).exit_code, 0);
  const auto with = [&](const std::string& model) {
    return run_windlass(
        Arguments{"train", model, "--strategy", "single", "--weights", weights, "--data", kText} +
        kShape);
  };
  expect_failure(with("gpt2:layers=2,hidden=64,heads=2,vocab=256"), 1,
                 {weights, "transformer.", "32", "64"});
  expect_failure(with("gpt2:layers=3,hidden=32,heads=2,vocab=256"), 1,
                 {weights, "has no tensor", "transformer.h.2."});
  expect_failure(train({"--weights", scratch / "none.safetensors"}), 1, {scratch / "none"});
}

TEST(TrainSlow, MistakesInPlansAreNamed) {
  const ScratchFolder scratch;
  const std::string path = scratch / "plan.json";
  plan_json({"-o", path});
  const Arguments run = {"train", path, "--data", kText, "--steps", "1"};
  expect_failure(run_windlass(run + Arguments{"--on", "4x3090"}), 1, {path, "another machine"});
  expect_failure(run_windlass(run + Arguments{"--strategy", "single"}), 1, {path, "--strategy"});
  // What the plan decides cannot be said again.
  expect_failure(run_windlass(run + Arguments{"--batch", "8"}), 1, {path, "--batch"});
  expect_failure(run_windlass(run + Arguments{"--optimizer", "adam"}), 1, {path, "--optimizer"});
  expect_failure(run_windlass(run + Arguments{"--no-fuse"}), 1, {path, "--no-fuse"});
  expect_failure(run_windlass({"simulate", path, "--seq", "8"}), 1, {path, "--seq"});

  std::string text = read(path);
  const size_t at = text.find("hidden=32");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 9, "hidden=64");
  write(path, text);
  expect_failure(run_windlass(run), 1, {path, "another model"});
}

// Before anything is trained.
TEST(TrainSlow, WhatCannotBeWrittenIsNamed) {
  const ScratchFolder scratch;
  const std::string file = scratch / "file";
  write(file, "in the way");
  for (const char* flag : {"--log", "--save", "--trace", "--checkpoints"}) {
    const std::string inside = file + "/inside";
    const ProgramResult result = train({"--steps", "2", flag, inside});
    expect_failure(result, 1, {inside});
    EXPECT_EQ(result.out, "") << flag;
  }
  for (const char* flag : {"--save", "--trace"}) {
    const ProgramResult result = train({"--steps", "2", flag, scratch / ""});
    expect_failure(result, 1, {"folder"});
    EXPECT_EQ(result.out, "") << flag;
  }
  expect_failure(train({"--steps", "2", "--log", "/dev/full"}), 3, {"/dev/full", "disk full"});
  // Nothing is left of looking.
  EXPECT_THAT(files_in(scratch / ""), testing::ElementsAre("file"));
}

TEST(TrainSlow, MistakesInFlagsAreNamed) {
  const struct {
    Arguments arguments;
    Arguments parts;
  } cases[] = {
      {{"--steps", "0"}, {"--steps"}},
      {{"--steps", "-3"}, {"--steps"}},
      {{"--steps", "many"}, {"--steps"}},
      {{"--schedule", "cosin"}, {"schedule \"cosin\"", "cosine"}},
      {{"--clip", "-1"}, {"--clip"}},
      {{"--warm-up", "-1"}, {"--warm-up"}},
      {{"--eval-every", "-1"}, {"--eval-every"}},
      {{"--eval-batches", "0"}, {"--eval-batches"}},
      {{"--checkpoint-every", "5"}, {"--checkpoint-every", "--checkpoints"}},
      {{"--mean", "0,x"}, {"--mean", "\"x\""}},
      {{"--threads", "0"}, {"--threads"}},
      {{"--time-limit", "-1"}, {"--time-limit"}},
  };
  for (const auto& [arguments, parts] : cases) expect_failure(train(arguments), 1, parts);
  expect_failure(run_windlass({"train", kModel, "--strategy", "singel", "--data", kText}), 1,
                 {"singel"});
}

TEST(TrainSlow, WhatDoesNotFitIsNotStarted) {
  const Arguments run = Arguments{"train", kModel, "--data", kText, "--memory", "100KiB"} + kShape;
  expect_failure(run_windlass(run), 2, {"no plan fits 100 KiB", "bytes"});
  expect_failure(run_windlass(run + Arguments{"--strategy", "single"}), 2,
                 {"does not fit", "limit of 100 KiB"});
}

}  // namespace
}  // namespace windlass
