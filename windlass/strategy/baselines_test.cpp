#include "windlass/strategy/baselines.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

std::string message_of(const std::string& text, const char* machine = nullptr,
                       int64_t samples = 64) {
  try {
    BaselineSpec spec = parse_baseline(text);
    if (machine != nullptr) resolve(spec, load_machine(machine), samples);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "";
}

TEST(Baselines, ParametersCombine) {
  const BaselineSpec spec =
      parse_baseline("megatron:tp=2,pp=4,zero=1,recompute=full,sequence-parallel=on,micro=3");
  EXPECT_EQ(spec.tp, 2);
  EXPECT_EQ(spec.pp, 4);
  EXPECT_EQ(spec.zero, 1);
  EXPECT_EQ(spec.micro, 3);
  EXPECT_EQ(spec.recompute, RecomputePolicy::Full);
  EXPECT_TRUE(spec.sequence_parallel);
  EXPECT_TRUE(parse_baseline("data-parallel:balance=speed").balance);
  EXPECT_EQ(parse_baseline("zero:parts=3:1,stage=2").parts, (std::vector<int32_t>{3, 1}));
}

TEST(Baselines, ErrorsSayWhatIsKnown) {
  EXPECT_NE(message_of("megaton").find("there are"), std::string::npos);
  EXPECT_NE(message_of("megatron:tq=2").find("sequence-parallel"), std::string::npos);
  EXPECT_NE(message_of("megatron:tp").find("key=value"), std::string::npos);
  EXPECT_NE(message_of("megatron:tp=-1").find("whole number"), std::string::npos);
  EXPECT_NE(message_of("megatron:tp=9999999999999999999999").find("whole number"),
            std::string::npos);
  EXPECT_NE(message_of("zero:stage=4").find("0 to 3"), std::string::npos);
  EXPECT_NE(message_of("gpipe:recompute=maybe").find("selective"), std::string::npos);
  EXPECT_NE(message_of("single:compress=3").find("8, 4 or 2"), std::string::npos);
  EXPECT_NE(message_of("offload-all:compress=4").find("not both"), std::string::npos);
}

TEST(Baselines, DegreesFillTheMachine) {
  BaselineSpec spec = parse_baseline("megatron:tp=2,pp=2,micro=4");
  resolve(spec, load_machine("8xa100-80g"), 64);
  EXPECT_EQ(spec.dp, 2);             // 8 / (2 x 2)
  EXPECT_EQ(spec.micro_batches, 8);  // 64 / (2 x 4)
  BaselineSpec pipeline = parse_baseline("1f1b:micro=8");
  resolve(pipeline, load_machine("4x1080ti"), 64);
  EXPECT_EQ(pipeline.pp, 4);
  EXPECT_EQ(pipeline.dp, 1);
  EXPECT_EQ(pipeline.micro_batches, 8);
}

// Micro-batches of a batch that their number does not divide differ by one sample.
TEST(Baselines, UnequalMicroBatches) {
  BaselineSpec spec = parse_baseline("megatron:dp=2,tp=2,micro-batches=3");
  resolve(spec, load_machine("4x1080ti"), 10);
  EXPECT_EQ(spec.micro_batches, 3);
  EXPECT_EQ(spec.micro, 1);  // 4, 3 and 3 samples over 2 replicas
  EXPECT_NE(message_of("data-parallel:micro-batches=3", "4x1080ti", 10)
                .find("a micro-batch of 3 samples cannot be split over 4 replicas"),
            std::string::npos);
  EXPECT_NE(message_of("1f1b:stages=4,micro-batches=11", "4x1080ti", 10)
                .find("10 samples cannot be cut into 11"),
            std::string::npos);
  EXPECT_NE(message_of("harmony:mode=pp,micro-batches=3", "4x1080ti", 10).find("equal"),
            std::string::npos);
}

TEST(Baselines, PacksHaveFewParameters) {
  EXPECT_EQ(message_of("harmony:mode=pp,packs=8,micro=2", "4x1080ti"), "");
  for (const char* other :
       {"tp=2", "zero=1", "recompute=full", "offload=on", "compress=4", "host-update=on"})
    EXPECT_NE(message_of(std::string("harmony:mode=pp,") + other, "4x1080ti").find("nothing else"),
              std::string::npos)
        << other;
}

TEST(Baselines, WhatDoesNotDivideIsRefused) {
  EXPECT_NE(message_of("megatron:tp=16", "8xa100-80g").find("needs 16 devices"), std::string::npos);
  EXPECT_NE(message_of("data-parallel:micro=3", "8xa100-80g").find("not a multiple"),
            std::string::npos);
  EXPECT_NE(message_of("data-parallel", "8xa100-80g", 4).find("cannot be split over 8"),
            std::string::npos);
  EXPECT_NE(message_of("megatron:interleave=2", "8xa100-80g").find("needs a pipeline"),
            std::string::npos);
  EXPECT_NE(message_of("data-parallel:parts=2:1", "4x1080ti").find("there are 4"),
            std::string::npos);
  EXPECT_NE(message_of("data-parallel:balance=speed,parts=2:1:1:1", "4x1080ti").find("keep one"),
            std::string::npos);
  EXPECT_NE(message_of("data-parallel:parts=2::1").find("whole number"), std::string::npos);
  EXPECT_NE(message_of("data-parallel:balance=size").find("speed or none"), std::string::npos);
}

}  // namespace
}  // namespace windlass
