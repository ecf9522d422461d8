// A small model that is planned for and trained by the program, and what it prints. For tests.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_places.h"

namespace windlass::small_runs {

namespace fs = std::filesystem;
using nlohmann::json;
using Arguments = std::vector<std::string>;

inline const std::string kText = source_folder() + "/examples/data/harbour.txt";
inline const std::string kDigits = source_folder() + "/examples/data/digits";
inline const std::string kModel = "gpt2:layers=2,hidden=32,heads=2,vocab=256";
inline const Arguments kShape = {"--seq", "16", "--batch", "4"};
inline const Arguments kOneDevice = {"--on", "local", "--devices", "1"};

inline Arguments operator+(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

inline ProgramResult plan(const Arguments& more) {
  return run_windlass(Arguments{"plan", kModel} + kShape + kOneDevice + more);
}

inline json plan_json(const Arguments& more, int exit_code = 0) {
  const ProgramResult result = plan(more + Arguments{"--json"});
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return json::parse(result.out, nullptr, false);
}

// Trains the small model on the text; all but the strategy can be given again by another one.
inline Arguments train_arguments(const Arguments& more, const std::string& strategy = "single") {
  return Arguments{"train", kModel} + kShape + kOneDevice +
         Arguments{"--data", kText, "--strategy", strategy, "--json"} + more;
}
inline ProgramResult train(const Arguments& more, const ProgramOptions& options = {}) {
  return run_windlass(train_arguments(more), options);
}

inline std::vector<json> lines_of(const std::string& out) {
  std::vector<json> lines;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(json::parse(line, nullptr, false));
  return lines;
}

// Of the steps that were printed.
inline std::vector<double> losses_of(const std::string& out) {
  std::vector<double> losses;
  for (const json& line : lines_of(out))
    if (line.contains("loss")) losses.push_back(line["loss"]);
  return losses;
}

inline std::vector<double> trained_losses(const Arguments& arguments) {
  const ProgramResult result = run_windlass(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return losses_of(result.out);
}

inline int64_t device_peak(const json& line) { return line["devices"][0]["peak_bytes"]; }

inline double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

// Fails with the code and a message that has all the parts; prints nothing about a bug.
inline void expect_failure(const ProgramResult& result, int exit_code, const Arguments& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  for (const std::string& part : parts) EXPECT_THAT(result.err, testing::HasSubstr(part));
  EXPECT_EQ(result.err.find("internal error"), std::string::npos) << result.err;
}

}  // namespace windlass::small_runs
