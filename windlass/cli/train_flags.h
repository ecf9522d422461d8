// The flags of `windlass train`.
#pragma once

#include <cstdint>
#include <string>

#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"
#include "windlass/cli/pricing.h"
#include "windlass/run/training.h"

namespace windlass {

struct TrainFlags {
  ModelFlags model;
  MachineFlags machine;
  PriceCacheFlags prices;
  std::string strategy;
  double time_limit = 60;
  int threads = 0;

  int64_t steps = 100;
  std::string data = "synthetic";
  int token_bytes = 2;
  std::string mean = "0", deviation = "1";
  bool no_shuffle = false;
  uint64_t seed = 0;
  std::string weights;

  double learning_rate = 1e-3, minimum_rate = 0;
  std::string schedule = "constant";
  int64_t warm_up = 0;
  double weight_decay = 0, momentum = 0.9, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;

  WatchOptions watch;

  double time_out = kRankTimeOut;  // of other ranks
  int64_t restarts = 0;
  int64_t least_hosts = 0;  // that go on after a failure; 0: as many as before
  int32_t rehearse = 0;     // processes; 0: trains
  std::string bind;
  bool fast_sums = false;

  int64_t overlap_steps = 1;
  int64_t evaluate_every = 0, evaluate_batches = 10;
  std::string checkpoints;
  int64_t checkpoint_every = 0;
  std::string resume;
  std::string save, log, tensorboard, trace;
  bool json = false, paranoid = false;

  void add_to(CLI::App& verb);

  // Throws Error{Input} naming the flag.
  TrainerOptions trainer_options(int kernel_threads) const;

 private:
  void add_run_flags(CLI::App& verb);
  void add_watch_flags(CLI::App& verb);
  void add_rank_flags(CLI::App& verb);
  void add_output_flags(CLI::App& verb);
};

}  // namespace windlass
