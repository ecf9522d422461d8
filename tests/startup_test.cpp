// What the program loads, and when: libtorch, which takes longer than most commands, only to run
// kernels.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gtest/gtest.h>

#include "windlass/base/test_places.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

const std::string kTiny = "gpt2:layers=1,hidden=32,heads=2,vocab=64,dropout=0";
const char* const kLibrary = "libwindlass_runtime.so";

// What the program does, and in `err` also the files that the loader opens.
ProgramResult run_loudly(const Arguments& arguments) {
  setenv("LD_DEBUG", "files", 1);
  const ProgramResult result = run_windlass(arguments);
  unsetenv("LD_DEBUG");
  return result;
}

bool loads_torch(const ProgramResult& result) {
  EXPECT_NE(result.err.find("libc.so"), std::string::npos) << "the loader says nothing";
  return result.err.find("libtorch") != std::string::npos ||
         result.err.find(kLibrary) != std::string::npos;
}

TEST(Startup, OnlyKernelsNeedLibtorch) {
  const ScratchFolder folder;
  const std::string plan = folder / "plan.json", local = folder / "local.json";
  const Arguments planned = {"plan", kTiny, "--seq", "8", "--batch", "4"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), planned.begin(), planned.end());
    return more;
  };
  const std::vector<Arguments> plain = {
      {"--version"},
      {"--help"},
      {"inspect", "gpt2"},
      {"machine", "list"},
      {"machine", "show", "4x3090"},
      with({"--on", "4x3090", "-o", plan}),
      {"check", plan},
      {"explain", plan},
      {"simulate", plan},
      {"simulate", kTiny, "--seq", "8", "--on", "4x3090", "--strategy", "zero:stage=3"},
      {"compare", kTiny, "--seq", "8", "--batch", "4", "--on", "4x3090", "--time-limit", "1"},
      {"train", "no-such-model"}};
  for (const Arguments& arguments : plain)
    EXPECT_FALSE(loads_torch(run_loudly(arguments))) << arguments[0] << " " << arguments.back();

  // The prices of a plan's kernels come with it.
  EXPECT_TRUE(loads_torch(run_loudly(with({"--on", "local", "--devices", "1", "-o", local}))));
  EXPECT_FALSE(loads_torch(run_loudly({"check", local})));
  EXPECT_FALSE(loads_torch(run_loudly({"simulate", local})));
  EXPECT_TRUE(loads_torch(run_loudly({"train", local, "--steps", "1"})));
}

// The program by itself plans; for kernels it says what is missing.
TEST(Startup, SaysWhatIsWrongWithTheRuntime) {
  const ScratchFolder folder;
  const std::string program = folder / "windlass";
  fs::copy_file(program_path(), program);
  const Arguments train = {"train", kTiny, "--seq", "8", "--batch", "4", "--steps", "1"};
  const ProgramOptions copy = {.program = program};
  EXPECT_EQ(run_windlass({"inspect", kTiny}, copy).exit_code, 0);

  const ProgramResult missing = run_windlass(train, copy);
  EXPECT_EQ(missing.exit_code, 3) << missing.err;
  EXPECT_NE(missing.err.find(std::string(kLibrary) + ": not found"), std::string::npos)
      << missing.err;
  EXPECT_NE(missing.err.find("make build"), std::string::npos) << missing.err;

  const std::string library = folder / kLibrary;
  std::ofstream(library) << "no library";
  const ProgramResult broken = run_windlass(train, copy);
  EXPECT_EQ(broken.exit_code, 3) << broken.err;
  EXPECT_NE(broken.err.find(library + ": cannot be opened"), std::string::npos) << broken.err;

  fs::remove(library);
  fs::copy_file(fs::path(program_path()).parent_path() / kLibrary, library);
  const ProgramResult whole = run_windlass(train, copy);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
}

TEST(Startup, RunsInAnyFolder) {
  const ProgramResult result =
      run_windlass({"train", kTiny, "--seq", "8", "--batch", "4", "--steps", "1"}, {.folder = "/"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace windlass
