#include "windlass/cost/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

using testing::HasSubstr;

std::string message_of(const std::string& text) {
  try {
    runner_from_json(text, "my.json");
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Runner, PresetsCanBeReadAndWritten) {
  std::vector<std::string> names;
  for (const RunnerPreset& preset : runner_presets()) {
    SCOPED_TRACE(preset.name);
    const Runner runner = find_runner(std::string(preset.name));
    EXPECT_EQ(runner.name, preset.name);
    EXPECT_FALSE(runner.description.empty());
    EXPECT_EQ(runner_from_json(runner_to_json(runner).dump(), "again"), runner);
    names.emplace_back(preset.name);
  }
  EXPECT_THAT(names, testing::IsSupersetOf(
                         {"windlass", "pytorch", "pytorch-amp", "megatron", "deepspeed"}));
}

TEST(Runner, WindlassChangesNothing) {
  const Runner runner = find_runner("windlass");
  EXPECT_TRUE(is_windlass(runner));
  EXPECT_FALSE(is_windlass(find_runner("pytorch")));
  const Machine machine = load_machine("4x3090");
  EXPECT_EQ(machine_under(runner, machine).devices[0].limit, machine.devices[0].limit);
  EXPECT_FALSE(analytic_options(runner).runner.has_value());
  EXPECT_EQ(analytic_options(runner).update_passes, 1);
}

// 16 GiB - 1343 MiB of context, and 1 GiB for communicators where there are several devices,
// divided by 1.1.
TEST(Runner, TensorsHaveWhatIsLeft) {
  const Runner runner = find_runner("pytorch");
  const auto left = [&](const std::string& name) {
    return machine_under(runner, load_machine(name)).devices[0].limit.value;
  };
  const double gib = 1024.0 * 1024 * 1024;
  const double context = 1343.0 / 1024;
  EXPECT_NEAR(static_cast<double>(left("1xv100-16g")), (16 - context) * gib / 1.1, 2);
  EXPECT_NEAR(static_cast<double>(left("4xv100-16g")), (15 - context) * gib / 1.1, 2);
  const Machine machine = machine_under(runner, load_machine("4xv100-16g"));
  EXPECT_NEAR(
      static_cast<double>(footprint(runner, machine, DeviceId(0), machine.devices[0].limit).value),
      16 * gib, 4);
  // A limit that the user has set lower is one for the allocator.
  MachineOptions options;
  options.memory = Bytes(int64_t{2} << 30);
  EXPECT_NEAR(
      static_cast<double>(
          machine_under(runner, load_machine("1xv100-16g", options)).devices[0].limit.value),
      2 * gib / 1.1, 2);
}

TEST(Runner, FrameworksLeaveConvolutionsToTf32) {
  for (const RunnerPreset& preset : runner_presets()) {
    const Runner runner = find_runner(std::string(preset.name));
    const Tf32 expected = is_windlass(runner) ? Tf32::Off : Tf32::Convolutions;
    EXPECT_EQ(analytic_options(runner).tf32, expected) << preset.name;
  }
}

TEST(Runner, AddsToWhatTheUserSays) {
  TrainingOptions options;
  set_training(find_runner("megatron"), options);
  EXPECT_EQ(options.gradient_dtype, DType::F32);
  EXPECT_TRUE(options.keeps_gradients);
  EXPECT_TRUE(options.ties_have_state);
  EXPECT_FALSE(options.overlaps_reduction);
  options = {};
  options.gradient_dtype = DType::BF16;
  set_training(find_runner("megatron"), options);
  EXPECT_EQ(options.gradient_dtype, DType::BF16);
}

TEST(Runner, MessagesSayWhatIsWrong) {
  EXPECT_THAT(message_of(R"({"name": "x", "host": {"forward_op": "3us"}})"),
              HasSubstr("\"host.forward_op\" is missing"));
  EXPECT_THAT(message_of(R"({"name": "x", "host": {"convolution_op": "80us"},
                             "sources": {"host.convolution_op": "-"}})"),
              HasSubstr("\"forward_op\", which is missing"));
  EXPECT_THAT(message_of(R"({"name": "x", "hots": {}})"), HasSubstr("hots"));
  EXPECT_THAT(message_of(R"({"name": "windlass", "memory": {"fragmentation": 2},
                             "sources": {"memory.fragmentation": "-"}})"),
              HasSubstr("another name"));
  EXPECT_THAT(message_of(R"({"name": "x", "numbers": {"autocast": "int8"},
                             "sources": {"numbers.autocast": "-"}})"),
              HasSubstr("expected fp32, bf16 or fp16"));
  EXPECT_THAT(message_of(R"({"name": "x", "numbers": {"tf32": "on"},
                             "sources": {"numbers.tf32": "-"}})"),
              HasSubstr("expected off, convolutions, all"));
  EXPECT_THROW(find_runner("pytorhc"), Error);
}

}  // namespace
}  // namespace windlass
