#include "windlass/cli/train_ranks.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/base/mapped_file.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/rank_processes.h"

namespace windlass {

namespace fs = std::filesystem;

bool starts_ranks(const TrainFlags& flags) {
  // One that is left alone has a place, too.
  const bool placed = std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
  return flags.machine.hosts.value_or(1) > 1 && !own_place() && !(placed && flags.least_hosts > 0);
}

ExitCode start_ranks(const TrainFlags& flags) {
  RankStarter starter;
  std::vector<std::string> command = own_command();
  int64_t hosts = *flags.machine.hosts;
  for (int64_t attempt = 0;; ++attempt) {
    const RankStarter::End end = starter.run(command, hosts, flags.time_out);
    if (end.code != ExitCode::RunFailed || attempt >= flags.restarts) return end.code;
    std::string fewer;
    if (flags.least_hosts > 0 && end.lost > 0 && hosts > flags.least_hosts) {
      hosts = std::max(flags.least_hosts, hosts - end.lost);
      fewer = fmt::format(" with {} host{},", hosts, hosts == 1 ? "" : "s");
    }
    fmt::print(stderr, "windlass: start {} of {},{} from the last checkpoint\n", attempt + 2,
               flags.restarts + 1, fewer);
    if (attempt == 0 && flags.resume.empty()) {
      command.push_back("--resume");
      command.push_back(flags.checkpoints);
    }
  }
}

namespace {

// Of a file the name: its content is compared as the model, and ranks may reach it by other paths.
std::string asked_model(const TrainFlags& flags) {
  ModelRequest model = flags.model.model();
  std::error_code ignored;
  if (is_plan_file(model.source))
    model.source.clear();
  else if (fs::exists(model.source, ignored))
    model.source = (fs::path(model.source) / ".").lexically_normal().parent_path().filename();
  return format_request(model);
}

std::string asked_plan(const TrainFlags& flags) {
  const MachineFlags& machine = flags.machine;
  return fmt::format("{} {} {} {} {} {} {} {}", flags.strategy, machine.machine, machine.memory,
                     machine.link_bandwidth, machine.devices.value_or(0), machine.hosts.value_or(0),
                     machine.host_reserve, flags.time_limit);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> settings_of(const TrainFlags& flags) {
  const std::string& source = flags.model.request.source;
  std::string plan = "none";
  if (is_plan_file(source)) {
    const MappedFile file(source);
    plan = format_fingerprint(hash_bytes(file.bytes()));
  }
  return {{"version of windlass", std::string(kVersion)},
          {"plan", plan},
          {"model, or flag that goes with it (--batch, --optimizer, ...)", asked_model(flags)},
          {"strategy or machine (--strategy, --on, --devices, --memory, ...)", asked_plan(flags)},
          {"number of steps, of steps between checkpoints, or of evaluations",
           fmt::format("{} {} {} {}", flags.steps, flags.checkpoint_every, flags.evaluate_every,
                       flags.evaluate_batches)},
          {"checkpoint folder or file to save to",
           fmt::format("{} {} {}", !flags.checkpoints.empty(), !flags.resume.empty(),
                       !flags.save.empty())},
          {"seed", fmt::format("{} {}", flags.seed, flags.no_shuffle)},
          {"way to add up (--fast-sums)", fmt::format("{}", flags.fast_sums)},
          {"learning rate or optimizer setting",
           fmt::format("{} {} {} {} {} {} {} {} {}", flags.learning_rate, flags.minimum_rate,
                       flags.schedule, flags.warm_up, flags.weight_decay, flags.momentum,
                       flags.beta1, flags.beta2, flags.epsilon)}};
}

void take_hosts_left(TrainFlags& flags, const Ranks* ranks) {
  if (flags.least_hosts == 0) return;
  if (is_plan_file(flags.model.request.source))
    fail_input("--least-hosts: {} is a plan for its number of hosts: name the model instead",
               flags.model.request.source);
  const int64_t left = ranks == nullptr ? 1 : ranks->size();
  const int64_t hosts = *flags.machine.hosts;
  if (left > hosts || left < std::min(flags.least_hosts, hosts))
    fail_input("--least-hosts: {} processes were started, expected {} to {}", left,
               std::min(flags.least_hosts, hosts), hosts);
  flags.machine.hosts = left;
}

void check_shared_folder(Ranks& ranks, const std::string& folder) {
  std::string marker;
  int descriptor = -1;
  if (ranks.rank() == 0) {
    marker = (fs::path(folder) / ".seen-by-all-XXXXXX").string();
    descriptor = mkstemp(marker.data());
    if (descriptor < 0)
      fail(ErrorKind::Runtime, "{}: cannot be written: {}", folder, std::strerror(errno));
    close(descriptor);
  }
  // By its name alone: ranks may reach the folder by other paths.
  const std::string name = fs::path(ranks.tell_all(marker)[0]).filename().string();
  // Some network file systems show files of others after a while only.
  constexpr int kLooks = 50;
  bool seen = false;
  std::error_code ignored;
  for (int look = 0; look < kLooks && !seen; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    seen = fs::exists(fs::path(folder) / name, ignored);
  }
  const std::vector<std::string> told = ranks.tell_all(seen ? "seen" : "not seen");
  if (ranks.rank() == 0) fs::remove(marker, ignored);
  for (size_t rank = 0; rank < told.size(); ++rank)
    if (told[rank] != "seen")
      fail(ErrorKind::Runtime,
           "{}: rank {} does not see there what rank 0 writes: each rank writes its part of a "
           "checkpoint, so the folder must be one that all share",
           folder, rank);
}

}  // namespace windlass
