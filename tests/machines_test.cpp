// The verb `machine`, and machines as files.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "tests/run_program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class MachineFiles : public testing::Test {
 protected:
  MachineFiles() { fs::create_directories(folder_); }
  ~MachineFiles() override { fs::remove_all(folder_); }

  std::string write(const std::string& text) const {
    std::ofstream(folder_ / "machine.json") << text;
    return folder_ / "machine.json";
  }
  // What the file's machine takes for a step.
  static ProgramResult simulate(const std::string& machine) {
    return run_windlass({"simulate", "mlp", "--batch", "8", "--on", machine, "--strategy",
                         "data-parallel", "--json"});
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("windlass-machines-" + std::to_string(getpid()));
};

TEST_F(MachineFiles, WhatIsShownIsAMachineFile) {
  for (const MachinePreset& preset : machine_presets()) {
    SCOPED_TRACE(preset.name);
    const ProgramResult shown =
        run_windlass({"machine", "show", std::string(preset.name), "--memory", "2GiB", "--json"});
    ASSERT_EQ(shown.exit_code, 0) << shown.err;
    const std::string path = write(shown.out);
    const ProgramResult again = run_windlass({"machine", "show", path, "--json"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(again.out, shown.out);
  }
}

TEST_F(MachineFiles, WhatIsEditedCounts) {
  const ProgramResult shown = run_windlass({"machine", "show", "1x3090", "--json"});
  auto file = nlohmann::json::parse(shown.out);
  const double before = nlohmann::json::parse(simulate("1x3090").out)["step_time_s"].get<double>();
  EXPECT_EQ(nlohmann::json::parse(simulate(write(file.dump())).out)["step_time_s"], before);
  for (auto& [name, type] : file["device_types"].items())
    for (auto& [precision, rate] : type["peak"].items()) rate = rate.get<double>() / 100;
  EXPECT_GT(nlohmann::json::parse(simulate(write(file.dump())).out)["step_time_s"].get<double>(),
            before);
}

TEST_F(MachineFiles, AbsurdFiguresAreRefused) {
  const auto file =
      nlohmann::json::parse(run_windlass({"machine", "show", "4x3090", "--json"}).out);
  const auto expect_refused = [&](const std::string& place, double value) {
    SCOPED_TRACE(place);
    auto changed = file;
    changed[nlohmann::json::json_pointer(place)] = value;
    const ProgramResult result = simulate(write(changed.dump()));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("out of range"));
  };
  expect_refused("/nodes/0/links/0/latency", 1e300);
  expect_refused("/nodes/0/links/0/bandwidth", 1e-300);
  expect_refused("/nodes/0/host/memory_bandwidth", 1e300);
  expect_refused("/device_types/rtx-3090/peak/fp32", 1e-3);
  expect_refused("/device_types/rtx-3090/launch_overhead", 1e20);
}

// Only what can be trained is said to be.
TEST_F(MachineFiles, PlansForOtherMachinesAreNotSaidToTrainHere) {
  const std::string plan = folder_ / "plan.json";
  const ProgramResult other =
      run_windlass({"plan", "mlp", "--batch", "8", "--on", "1x3090", "-o", plan});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.out, testing::Not(HasSubstr("windlass train")));
  const ProgramResult here =
      run_windlass({"plan", "mlp:hidden=16,layers=2", "--batch", "8", "--on", "local", "-o", plan});
  ASSERT_EQ(here.exit_code, 0) << here.err;
  EXPECT_THAT(here.out, HasSubstr("windlass train"));
}

}  // namespace
}  // namespace windlass
