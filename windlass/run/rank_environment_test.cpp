#include "windlass/run/rank_environment.h"

#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

std::optional<RankPlace> place_in(const std::map<std::string, std::string>& variables) {
  return rank_from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string complaint(const std::map<std::string, std::string>& variables) {
  try {
    place_in(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return {};
}

TEST(RankEnvironment, NobodySaysAnything) {
  EXPECT_FALSE(place_in({}));
  EXPECT_FALSE(place_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  // A batch script is not one of its steps.
  EXPECT_FALSE(place_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST(RankEnvironment, Torchrun) {
  const auto place = place_in({{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node7"},
                               {"MASTER_PORT", "2222"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->ranks, 4);
  EXPECT_EQ(place->address, "node7");
  EXPECT_EQ(place->port, 2222);
  EXPECT_TRUE(place->met);
  EXPECT_EQ(place->attempt, "2");
  EXPECT_EQ(place->bind, "");
}

TEST(RankEnvironment, MpirunAndSlurm) {
  const auto mpi = place_in({{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->address, "127.0.0.1");
  EXPECT_EQ(mpi->bind, "127.0.0.1");
  EXPECT_EQ(mpi->port, 29500);
  const auto slurm = place_in({{"SLURM_PROCID", "5"},
                               {"SLURM_STEP_NUM_TASKS", "8"},
                               {"SLURM_STEP_NODELIST", "n[03-06,9],login"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->address, "n03");
  EXPECT_EQ(slurm->rank, 5);
  // Batch scripts often set WORLD_SIZE for all of their tasks.
  const auto both = place_in({{"SLURM_PROCID", "1"},
                              {"SLURM_STEP_NUM_TASKS", "2"},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "n1"}});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->rank, 1);
  EXPECT_EQ(first_host("a1,b2"), "a1");
  EXPECT_EQ(first_host("rack[2-4]-n[7,9]"), "rack2-n7");
  EXPECT_EQ(first_host("n["), "n");
}

TEST(RankEnvironment, WhatIsMissingOrWrongIsNamed) {
  EXPECT_EQ(complaint({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "MASTER_ADDR: is not set: name the host of rank 0, where all meet");
  EXPECT_EQ(complaint({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK: \"2\" is not a number from 0 to 1");
  EXPECT_EQ(complaint({{"RANK", "0"}, {"WORLD_SIZE", "many"}}),
            "WORLD_SIZE: \"many\" is not a number from 1 to 65536");
  EXPECT_EQ(
      complaint(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "70000"}}),
      "MASTER_PORT: \"70000\" is not a number from 1 to 65535");
  EXPECT_EQ(complaint({{"OMPI_COMM_WORLD_RANK", "0"}}), "OMPI_COMM_WORLD_SIZE: is not set");
  EXPECT_EQ(complaint({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_RANK: is not set");
  EXPECT_EQ(complaint({{"RANK", "0"}}),
            "RANK is set, but WORLD_SIZE is not: set both (of several processes) or none (of one)");
  EXPECT_EQ(complaint({{"WORLD_SIZE", "2"}}),
            "WORLD_SIZE is set, but RANK is not: set both (of several processes) or none (of one)");
  for (const char* odd : {"-1", "", " 1", "1 ", "0x1", "1.0", "+1", "99999999999999999999"})
    EXPECT_EQ(complaint({{"RANK", odd}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}}),
              fmt::format("RANK: \"{}\" is not a number from 0 to 1", odd));
  EXPECT_EQ(complaint({{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
            "WORLD_SIZE: \"0\" is not a number from 1 to 65536");
  EXPECT_EQ(complaint({{"SLURM_PROCID", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}}),
            "SLURM_PROCID: \"4\" is not a number from 0 to 3");
  EXPECT_EQ(complaint({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}),
            "MASTER_ADDR: is not set: name the host of rank 0, where all meet");
}

}  // namespace
}  // namespace windlass
