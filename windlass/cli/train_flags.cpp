#include "windlass/cli/train_flags.h"

#include <algorithm>
#include <stdexcept>

#include <CLI/CLI.hpp>

#include "windlass/base/error.h"
#include "windlass/cli/number_in.h"

namespace windlass {
namespace {

std::vector<double> numbers(const std::string& text, const char* flag) {
  std::vector<double> list;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    try {
      size_t used = 0;
      list.push_back(std::stod(part, &used));
      if (used != part.size()) throw std::invalid_argument(part);
    } catch (const std::exception&) {
      fail_input("{}: \"{}\" is not a number", flag, part);
    }
    at = comma + 1;
  }
  return list;
}

}  // namespace

TrainerOptions TrainFlags::trainer_options(int kernel_threads) const {
  TrainerOptions options;
  options.executor.threads = kernel_threads;
  options.executor.paranoid = paranoid;
  options.executor.watch = watch;
  options.executor.library_sums = fast_sums;
  options.hyperparameters.momentum = momentum;
  options.hyperparameters.beta1 = beta1;
  options.hyperparameters.beta2 = beta2;
  options.hyperparameters.epsilon = epsilon;
  options.hyperparameters.weight_decay = weight_decay;
  options.rate = {.peak = learning_rate,
                  .floor = minimum_rate,
                  .shape = rate_shape_from_name(schedule),
                  .warm_up = warm_up,
                  .steps = steps};
  options.seed = seed;
  options.shuffle = !no_shuffle;
  options.data = data;
  options.data_options.token_bytes = token_bytes;
  options.data_options.mean = numbers(mean, "--mean");
  options.data_options.deviation = numbers(deviation, "--std");
  options.data_options.seed = seed;
  if (evaluate_every > 0) options.data_options.part = DataPart::Train;
  options.weights = weights;
  return options;
}

void TrainFlags::add_to(CLI::App& verb) {
  model.add_to(verb);
  machine.add_to(verb, "machine, if there is no plan: \"local\"");
  verb.get_option("--hosts")->description(
      "processes to start on this host, each for a host of the plan or of \"local\", or for a "
      "device");
  verb.add_option("--strategy,--baseline", strategy, "a named strategy instead of a search")
      ->type_name("SPEC");
  verb.add_option("--time-limit", time_limit,
                  "seconds to search, beside measuring, if there is no plan")
      ->capture_default_str()
      ->check(number_in(0, 1e9));
  verb.add_option("--threads", threads, "threads that kernels use; default: all cores")
      ->check(positive_number());
  prices.add_to(verb);
  add_run_flags(verb);
  add_watch_flags(verb);
  add_output_flags(verb);
  add_rank_flags(verb);
}

void TrainFlags::add_rank_flags(CLI::App& verb) {
  verb.add_option("--time-out", time_out,
                  "seconds after which a process without a sign of life is lost, and the run ends")
      ->capture_default_str()
      ->check(number_in(0.2, 1e6));
  verb.add_option("--restarts", restarts,
                  "with --hosts: start the processes so many times again after a failure, from the "
                  "last checkpoint")
      ->capture_default_str()
      ->check(nonnegative_number())
      ->needs(verb.get_option("--checkpoints"));
  verb.add_option("--least-hosts", least_hosts,
                  "go on with fewer processes than --hosts, planned anew, but no fewer than these: "
                  "where some were lost, or torchrun starts fewer; of a model, not of a plan file")
      ->type_name("HOSTS")
      ->check(CLI::PositiveNumber)
      ->needs(verb.get_option("--hosts"));
  verb.add_option("--rehearse", rehearse,
                  "train nothing: walk over the programs of so many processes without kernels, and "
                  "see that messages meet and nobody waits for ever; on any machine")
      ->type_name("PROCESSES")
      ->check(positive_number());
  verb.add_flag(
      "--fast-sums", fast_sums,
      "of several processes: leave sums of whole processes to Gloo's own all-reduce, which "
      "adds up in an order of its own: weights agree with those of one process to "
      "rounding, not bit for bit");
  verb.add_option("--bind", bind, "address of this process, for messages of the others")
      ->type_name("ADDRESS");
}

void TrainFlags::add_run_flags(CLI::App& verb) {
  verb.add_option("--steps", steps, "steps of the whole run")
      ->capture_default_str()
      ->check(positive_number());
  constexpr int kLongestRow = 64;
  verb.add_option("--overlap-steps", overlap_steps,
                  "steps in a row, each of which begins before the last updates of the one before "
                  "are done; all have ended after so many, and before checkpoints and evaluations; "
                  "the same results; 1: each by itself")
      ->capture_default_str()
      ->check(CLI::Range(1, kLongestRow));
  verb.add_option("--data", data,
                  "text, tokens (.bin), MNIST or CIFAR-10 files, .safetensors with a tensor for "
                  "each input, or \"synthetic\"")
      ->capture_default_str();
  verb.add_option("--token-bytes", token_bytes, "of .bin files: 2 or 4")
      ->capture_default_str()
      ->check(CLI::IsMember({2, 4}));
  verb.add_option("--mean", mean, "of pixels, for all channels or for each: 0.5,0.5,0.5")
      ->capture_default_str();
  verb.add_option("--std", deviation, "of pixels")->capture_default_str();
  verb.add_flag("--no-shuffle", no_shuffle, "take samples in the order of the data");
  verb.add_option("--seed", seed, "of data order, initial weights, dropout")->capture_default_str();
  verb.add_option("--weights", weights, "safetensors file to start from")->type_name("FILE");
  verb.add_option("--lr", learning_rate, "learning rate")
      ->capture_default_str()
      ->check(number_in(0, 1e300));
  verb.add_option("--min-lr", minimum_rate, "where cosine and linear end")
      ->capture_default_str()
      ->check(number_in(0, 1e300));
  verb.add_option("--schedule", schedule, "constant, cosine or linear")->capture_default_str();
  verb.add_option("--warm-up", warm_up, "steps in which the learning rate rises")
      ->capture_default_str()
      ->check(nonnegative_number());
  verb.add_option("--weight-decay", weight_decay)
      ->capture_default_str()
      ->check(number_in(0, 1e300));
  verb.add_option("--momentum", momentum, "of optimizer momentum")
      ->capture_default_str()
      ->check(number_in(0, 1e300));
  // Of 1, moments would stay zero and be divided by it.
  constexpr double kMostBeta = 0.999999999;
  verb.add_option("--beta1", beta1)->capture_default_str()->check(number_in(0, kMostBeta));
  verb.add_option("--beta2", beta2)->capture_default_str()->check(number_in(0, kMostBeta));
  verb.add_option("--epsilon", epsilon)->capture_default_str()->check(number_in(0, 1e300));
}

void TrainFlags::add_watch_flags(CLI::App& verb) {
  verb.add_option("--late-factor", watch.late_factor,
                  "a task is reported when it takes longer than so many times its prediction")
      ->capture_default_str()
      ->check(number_in(1, 1e9));
  verb.add_option("--late-after", watch.late_after, "but not before so many seconds; 0: never")
      ->capture_default_str()
      ->check(number_in(0, 1e9));
  verb.add_option("--give-up-after", watch.give_up_after,
                  "seconds without any task that starts or ends until the run fails; 0: never")
      ->capture_default_str()
      ->check(number_in(0, 1e9));
}

void TrainFlags::add_output_flags(CLI::App& verb) {
  verb.add_option("--eval-every", evaluate_every, "steps between evaluations; 0: none")
      ->capture_default_str()
      ->check(nonnegative_number());
  verb.add_option("--eval-batches", evaluate_batches, "batches of an evaluation")
      ->capture_default_str()
      ->check(positive_number());
  CLI::Option* folder =
      verb.add_option("--checkpoints", checkpoints, "folder for checkpoints")->type_name("FOLDER");
  verb.add_option("--checkpoint-every", checkpoint_every,
                  "steps between checkpoints; 0: one at the end")
      ->needs(folder)
      ->capture_default_str()
      ->check(nonnegative_number());
  verb.add_option("--resume", resume,
                  "go on from a checkpoint, or from the newest one of a folder that is whole")
      ->type_name("PATH");
  verb.add_option("--save", save, "write the weights at the end")->type_name("FILE.safetensors");
  verb.add_option("--log", log,
                  "write a line a step, of JSON where the name ends in .json or .jsonl")
      ->type_name("FILE.csv|FILE.jsonl");
  verb.add_option("--tensorboard", tensorboard, "write events for TensorBoard into a folder")
      ->type_name("FOLDER");
  verb.add_option("--trace", trace, "write the predicted and the measured step for ui.perfetto.dev")
      ->type_name("FILE");
  verb.add_flag("--paranoid", paranoid,
                "memory that notices misuse: slower, the same results; for reports of bugs");
  verb.add_flag("--json", json, "print a JSON line a step, and a last one for the run");
}

}  // namespace windlass
