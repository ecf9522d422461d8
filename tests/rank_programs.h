// Several processes of windlass that train together, as torchrun starts them, and small runs.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "tests/run_program.h"
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "windlass/base/test_places.h"

namespace windlass::rank_runs {

using Words = std::vector<std::string>;

inline const std::string kRankText = source_folder() + "/examples/data/harbour.txt";
inline const std::string kTiny = "gpt2:layers=2,hidden=32,heads=2,vocab=256";

inline Words joined(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline Words training(const std::string& what, const Words& more) {
  return joined({"train", what, "--data", kRankText, "--lr", "3e-3"}, more);
}

inline Words tiny(const std::string& strategy, const Words& more) {
  return training(kTiny, joined({"--seq", "16", "--batch", "8", "--on", "local", "--memory",
                                 "64MiB", "--strategy", strategy},
                                more));
}

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void run_well(const Words& arguments) {
  const ProgramResult result = run_windlass(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
}

// A small run by a strategy, or, without one, by a plan of packs of layers that it makes in the
// folder; kernels have one thread wherever they run, so that all sums have the same order.
class SmallRun {
 public:
  SmallRun(const std::string& folder, int ranks, std::string strategy)
      : plan_(folder + "/plan.json"),
        ranks_(std::to_string(ranks)),
        strategy_(std::move(strategy)) {
    if (strategy_.empty())
      run_well({"plan", kTiny, "--seq", "16", "--batch", "8", "--on", "local", "--devices", ranks_,
                "--memory", "64MiB", "--search", "harmony", "-o", plan_});
  }
  // A process for each.
  Words ranks(const Words& more) const { return words("--hosts", more); }
  // All in one process.
  Words alone(const Words& more) const { return words("--devices", more); }

 private:
  Words words(const std::string& way, const Words& more) const {
    const Words count = strategy_.empty() && way == "--devices" ? Words{} : Words{way, ranks_};
    const Words all = joined(joined(count, {"--threads", "1"}), more);
    return strategy_.empty() ? training(plan_, all) : tiny(strategy_, all);
  }
  const std::string plan_, ranks_, strategy_;
};

// The processes that another one has started; none if the system does not say.
inline std::vector<int> children_of(int process) {
  const std::string number = std::to_string(process);
  std::ifstream list("/proc/" + number + "/task/" + number + "/children");
  std::vector<int> children;
  for (int child = 0; list >> child;) children.push_back(child);
  return children;
}
// The first of them, or 0.
inline int first_child(int process) {
  const std::vector<int> children = children_of(process);
  return children.empty() ? 0 : children[0];
}

// Nobody listens there at the moment.
inline int free_port() {
  const int number = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(number, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(number, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(number);
  return ntohs(address.sin_port);
}

// Ranks as torchrun starts them.
class RankPrograms {
 public:
  explicit RankPrograms(int count, std::string address = "127.0.0.1")
      : count_(count), port_(free_port()), address_(std::move(address)) {}

  // `instead`: variables that are set otherwise than torchrun does.
  void start(int rank, const Words& arguments, ProgramOptions options = {},
             const std::map<std::string, std::string>& instead = {}) {
    options.environment["RANK"] = std::to_string(rank);
    options.environment["WORLD_SIZE"] = std::to_string(count_);
    options.environment["MASTER_ADDR"] = address_;
    options.environment["MASTER_PORT"] = std::to_string(port_);
    for (const auto& [name, value] : instead) options.environment[name] = value;
    programs_[rank] = std::make_unique<RunningProgram>(arguments, options);
  }
  void start_all(const Words& arguments) {
    for (int rank = 0; rank < count_; ++rank) start(rank, arguments);
  }
  RunningProgram& operator[](int rank) { return *programs_.at(rank); }

 private:
  const int count_, port_;
  const std::string address_;
  std::map<int, std::unique_ptr<RunningProgram>> programs_;
};

}  // namespace windlass::rank_runs
