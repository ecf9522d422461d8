#include "windlass/runtime/connections.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sys/socket.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

namespace windlass {
namespace {

// Both families have the port at the same place.
int port_in(const sockaddr_in6& address) {
  const bool known = address.sin6_family == AF_INET || address.sin6_family == AF_INET6;
  return known ? ntohs(address.sin6_port) : -1;
}

bool is_connection(int descriptor, int but) {
  sockaddr_in6 here = {}, there = {};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  int type = 0;
  socklen_t size = sizeof(type);
  return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
         getsockname(descriptor, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         getpeername(descriptor, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         port_in(there) >= 0 && port_in(there) != but && port_in(here) != but;
}

}  // namespace

void end_dead_connections(double seconds, int but) {
  // Silence of a half, then a few questions within the other half; the system counts in seconds.
  constexpr int kQuestions = 3;
  const int idle = std::max(1, static_cast<int>(std::lround(seconds / 2)));
  const int between = std::max(1, static_cast<int>(std::lround(seconds / 2 / kQuestions)));
  const int yes = 1, questions = kQuestions;
  const auto unanswered = static_cast<unsigned int>(std::clamp(seconds * 1e3, 1e3, 1e9));
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (!is_connection(descriptor, but)) continue;
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &questions, sizeof(questions));
    setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof(unanswered));
  }
}

}  // namespace windlass
