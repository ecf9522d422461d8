#include "windlass/cli/probe_ranks.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/version.h"
#include "windlass/cli/rank_processes.h"
#include "windlass/machine/cluster.h"
#include "windlass/machine/local.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"
#include "windlass/run/rank_links.h"

namespace windlass {
namespace {

// A pair that has less than this share of what both ranks have with others is told of.
constexpr double kSlowPair = 0.5;

// Where a rank runs. Ranks of one computer that have networks of their own (containers) count as on
// computers of their own.
struct RankSeat {
  std::string host, boot, network;
  bool operator==(const RankSeat&) const = default;
};

RankSeat own_seat() {
  std::array<char, 256> name = {};
  RankSeat seat;
  seat.host = gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "a host";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> seat.boot;
  std::error_code ignored;
  seat.network = std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
  return seat;
}

// What every rank says, by rank.
std::vector<nlohmann::json> tell_json(Ranks& ranks, const nlohmann::json& mine) {
  std::vector<nlohmann::json> told;
  for (const std::string& text :
       ranks.tell_all(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)))
    told.push_back(nlohmann::json::parse(text));
  return told;
}

struct Computer {
  RankSeat seat;
  std::vector<int32_t> ranks;  // ascending
};

// In the order of their ranks.
std::vector<Computer> find_computers(Ranks& ranks) {
  const RankSeat mine = own_seat();
  const std::vector<nlohmann::json> told =
      tell_json(ranks, nlohmann::json::array({mine.host, mine.boot, mine.network}));
  std::vector<Computer> computers;
  for (int32_t rank = 0; rank < ranks.size(); ++rank) {
    const nlohmann::json& said = told[static_cast<size_t>(rank)];
    const RankSeat seat = {said.at(0), said.at(1), said.at(2)};
    auto known = std::ranges::find(computers, seat, &Computer::seat);
    if (known == computers.end()) known = computers.insert(computers.end(), {seat, {}});
    if (!known->ranks.empty() && known->ranks.back() != rank - 1)
      fail(ErrorKind::Runtime,
           "ranks {} and {} are on {}, and others between them are not: number the processes of a "
           "host one behind the other",
           known->ranks.back(), rank, seat.host);
    known->ranks.push_back(rank);
  }
  return computers;
}

// As one process finds this host.
ProbeResult probe_computer(const MachineFlags& flags, size_t processes) {
  MachineOptions options = flags.machine_options();
  const bool as_devices = options.devices || options.memory || options.link_bandwidth;
  if (!as_devices) {
    ProbeResult found = probe_host();
    if (!of_cpu_hosts(found.machine)) return found;
  }
  options.hosts = std::nullopt;
  if (!options.devices) options.devices = static_cast<int64_t>(processes);
  return {load_machine(kLocalName, options), {}};
}

// The machine that each computer's first rank has found, at all ranks.
std::vector<ProbeResult> probe_computers(Ranks& ranks, const std::vector<Computer>& computers,
                                         const MachineFlags& flags) {
  nlohmann::json mine = nullptr;
  for (const Computer& computer : computers)
    if (computer.ranks.front() == ranks.rank()) {
      const ProbeResult found = probe_computer(flags, computer.ranks.size());
      mine = {{"machine", machine_to_json(found.machine)}, {"notes", found.notes}};
    }
  const std::vector<nlohmann::json> told = tell_json(ranks, mine);
  std::vector<ProbeResult> found;
  for (const Computer& computer : computers) {
    const nlohmann::json& said = told[static_cast<size_t>(computer.ranks.front())];
    found.push_back({machine_from_json(said.at("machine").get<std::string>(),
                                       fmt::format("rank {}", computer.ranks.front())),
                     said.at("notes")});
    for (std::string& note : found.back().notes) note = computer.seat.host + ": " + note;
  }
  return found;
}

std::string source_of(const RankLinks& links, size_t hosts) {
  return fmt::format(
      "measured between {} processes over c10d with Gloo: medians of {} pairs, and of all at once",
      hosts, links.pairs.size());
}

void note_slow_pairs(const RankLinks& links, const std::vector<Computer>& computers,
                     std::vector<std::string>& notes) {
  const auto name = [&](int32_t rank) {
    for (const Computer& computer : computers)
      if (std::ranges::find(computer.ranks, rank) != computer.ranks.end())
        return fmt::format("rank {} ({})", rank, computer.seat.host);
    return fmt::format("rank {}", rank);
  };
  for (const PairLink& pair : links.pairs) {
    const BytesPerSecond usual = std::min(links.bandwidth_of(pair.a), links.bandwidth_of(pair.b));
    if (pair.bandwidth < usual * kSlowPair)
      notes.push_back(fmt::format(
          "{} and {} have {} between them, both have {} with others: a "
          "machine file has one figure for each host, and takes the latter",
          name(pair.a), name(pair.b), format_bandwidth(pair.bandwidth), format_bandwidth(usual)));
  }
}

// The cores of all ranks of this computer, as long as the object is there: mpirun gives each its
// own.
class AllCores {
 public:
  explicit AllCores(Ranks& ranks) {
    CPU_ZERO(&own_);
    known_ = sched_getaffinity(0, sizeof(own_), &own_) == 0;
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (known_ && CPU_ISSET(core, &own_)) cores.push_back(core);
    cpu_set_t all = own_;
    for (const nlohmann::json& told : tell_json(ranks, cores))
      for (const nlohmann::json& core : told) CPU_SET(core.get<size_t>(), &all);
    if (known_) sched_setaffinity(0, sizeof(all), &all);
  }
  ~AllCores() {
    if (known_) sched_setaffinity(0, sizeof(own_), &own_);
  }
  AllCores(const AllCores&) = delete;
  AllCores& operator=(const AllCores&) = delete;

 private:
  cpu_set_t own_;
  bool known_ = false;
};

// Processes of this computer as hosts of their own.
ProbeResult probe_trial(Ranks& ranks, const MachineFlags& flags, double time_out) {
  std::vector<int32_t> members;
  for (int32_t rank = 0; rank < ranks.size(); ++rank) members.push_back(rank);
  const RankLinks links = measure_rank_links(ranks, members, time_out);
  const AllCores cores(ranks);
  nlohmann::json mine = nullptr;
  if (ranks.rank() == 0) {
    LoopbackFigures figures = {links.bandwidth_of(0), links.latency_of(0)};
    for (int32_t rank : members) {
      figures.bandwidth = std::min(figures.bandwidth, links.bandwidth_of(rank));
      figures.latency = std::max(figures.latency, links.latency_of(rank));
    }
    figures.latency = figures.latency / 2;  // a message passes the connections of both hosts
    const MachineOptions options = flags.machine_options();
    Machine machine = local_machine({.devices = options.devices.value_or(1),
                                     .hosts = ranks.size(),
                                     .memory = options.memory,
                                     .link_bandwidth = options.link_bandwidth,
                                     .loopback = figures});
    machine.description += "; network: " + source_of(links, members.size());
    mine = machine_to_json(machine);
  }
  return {machine_from_json(tell_json(ranks, mine)[0].get<std::string>(), kLocalName), {}};
}

}  // namespace

ProbeResult probe_ranks(Ranks& ranks, const MachineFlags& flags, double time_out) {
  compare_ranks(
      ranks,
      {{"version of windlass", std::string(kVersion)},
       {"memory, number of devices or bandwidth of links",
        fmt::format("{} {} {}", flags.memory, flags.devices.value_or(0), flags.link_bandwidth)}});
  if (flags.hosts.value_or(ranks.size()) != ranks.size())
    fail_input("--hosts {}: {} processes were started", *flags.hosts, ranks.size());
  const std::vector<Computer> computers = find_computers(ranks);
  if (computers.size() == 1) {
    if (!flags.hosts && !flags.devices) {
      // One host, with as many processes as cards.
      std::vector<ProbeResult> found = probe_computers(ranks, computers, flags);
      if (!of_cpu_hosts(found[0].machine)) return found[0];
    }
    return probe_trial(ranks, flags, time_out);
  }

  std::vector<ProbeResult> found = probe_computers(ranks, computers, flags);
  std::vector<int32_t> members;
  for (const Computer& computer : computers) members.push_back(computer.ranks.front());
  const RankLinks links = measure_rank_links(ranks, members, time_out);
  ProbeResult result;
  std::vector<ClusterHost> hosts;
  for (size_t i = 0; i < computers.size(); ++i) {
    hosts.push_back({computers[i].seat.host, found[i].machine, links.bandwidth_of(members[i]),
                     links.latency_of(members[i])});
    result.notes.insert(result.notes.end(), found[i].notes.begin(), found[i].notes.end());
    for (size_t j = 0; j < i; ++j)
      if (computers[i].seat.boot == computers[j].seat.boot)
        result.notes.push_back(
            fmt::format("ranks {} and {} share a computer, but not its network: its cores and "
                        "memory may count for both",
                        members[j], members[i]));
  }
  note_slow_pairs(links, computers, result.notes);
  result.machine = cluster_machine(hosts, source_of(links, hosts.size()));
  return result;
}

}  // namespace windlass
