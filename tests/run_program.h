// Running the built program as a user would.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {

struct ProgramResult {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
  double cpu_seconds = 0;  // user and system time
  int64_t peak_bytes = 0;  // largest resident size
};

struct ProgramOptions {
  int64_t file_bytes = 0;    // writing beyond fails, as on a full disk; 0: no limit
  std::string program = {};  // another one than was built
  std::string folder = {};   // to run in
  std::string cache = {};    // where caches are; else that of all programs of a test process
  std::map<std::string, std::string> environment = {};  // beside that of the test
};

// Runs windlass with the arguments; no shell is involved.
ProgramResult run_windlass(const std::vector<std::string>& arguments,
                           const ProgramOptions& options = {});

// What it prints for programs; it must end well.
inline nlohmann::json windlass_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const ProgramResult result = run_windlass(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

// A program in the background. What still runs at the end is killed.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& arguments,
                          const ProgramOptions& options = {});
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void signal(int number);
  int pid() const;
  // Until the output so far has `lines` lines; false if the program ended with fewer.
  bool wait_for_lines(int64_t lines);
  ProgramResult wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace windlass
