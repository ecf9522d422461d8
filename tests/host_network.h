// Hosts that a network joins: a namespace for each, with an interface, an address and a loopback of
// its own, joined by a bridge in one more. They are made by the test, and removed.
#pragma once

#include <cstdlib>
#include <string>
#include <unistd.h>

#include "tests/rank_programs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace windlass::rank_runs {

inline constexpr const char* kIpProgram = "/usr/sbin/ip";

inline bool quietly(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

class HostNetwork {
 public:
  explicit HostNetwork(int hosts) : hosts_(hosts) {
    made_ = quietly(fmt::format("ip netns add {}", hub())) &&
            inside(hub(), "ip link add bridge type bridge") &&
            inside(hub(), "ip link set bridge up");
    for (int host = 0; made_ && host < hosts; ++host)
      made_ =
          quietly(fmt::format("ip netns add {}", space(host))) &&
          quietly(fmt::format("ip link add port{0} netns {1} type veth peer name wire netns {2}",
                              host, hub(), space(host))) &&
          inside(hub(), fmt::format("ip link set port{} master bridge up", host)) &&
          inside(space(host), fmt::format("ip address add {}/24 dev wire", address(host))) &&
          inside(space(host), "ip link set wire up") && inside(space(host), "ip link set lo up");
  }
  ~HostNetwork() {
    for (int host = 0; host < hosts_; ++host) quietly("ip netns del " + space(host));
    quietly("ip netns del " + hub());
  }
  HostNetwork(const HostNetwork&) = delete;
  HostNetwork& operator=(const HostNetwork&) = delete;

  bool made() const { return made_; }
  static std::string address(int host) { return fmt::format("10.77.0.{}", host + 1); }
  void cut(int host) { EXPECT_TRUE(inside(hub(), fmt::format("ip link set port{} down", host))); }
  // What two hosts send each other is lost without a word; both still reach the others. False if
  // this system cannot.
  bool part(int one, int other) {
    constexpr const char* kNobody = "02:00:00:00:00:99";
    const auto lead_astray = [&](int from, int to) {
      return inside(space(from), fmt::format("ip neigh replace {} lladdr {} dev wire nud permanent",
                                             address(to), kNobody));
    };
    return lead_astray(one, other) && lead_astray(other, one);
  }
  // In both directions; false if this system cannot.
  bool slow(int host, const std::string& rate) {
    const std::string limit = fmt::format("root tbf rate {} burst 4k latency 400ms", rate);
    return inside(hub(), fmt::format("tc qdisc add dev port{} {}", host, limit)) &&
           inside(space(host), fmt::format("tc qdisc add dev wire {}", limit));
  }

  // A rank on a host, which takes messages there.
  void start_at(RankPrograms& ranks, int rank, int host, const Words& arguments,
                ProgramOptions options = {}) const {
    options.program = kIpProgram;
    Words words = {"netns", "exec", space(host), program_path()};
    ranks.start(rank, joined(joined(words, arguments), {"--bind", address(host)}), options);
  }
  void start(RankPrograms& ranks, int rank, const Words& arguments,
             ProgramOptions options = {}) const {
    start_at(ranks, rank, rank, arguments, std::move(options));
  }
  void start_all(RankPrograms& ranks, const Words& arguments) const {
    for (int rank = 0; rank < hosts_; ++rank) start(ranks, rank, arguments);
  }

 private:
  std::string hub() const { return fmt::format("windlass{}-hub", getpid()); }
  std::string space(int host) const { return fmt::format("windlass{}-{}", getpid(), host); }
  static bool inside(const std::string& space, const std::string& command) {
    return quietly(fmt::format("ip netns exec {} {}", space, command));
  }

  const int hosts_;
  bool made_ = false;
};

#define SKIP_WITHOUT(network) \
  if (!(network).made()) GTEST_SKIP() << "network namespaces cannot be made here"

}  // namespace windlass::rank_runs
