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

bool is_connection(int descriptor) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  int type = 0;
  socklen_t size = sizeof(type);
  return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
         getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
         (peer.ss_family == AF_INET || peer.ss_family == AF_INET6);
}

}  // namespace

void end_dead_connections(double seconds) {
  // Silence of a half, then a few questions within the other half; the system counts in seconds.
  constexpr int kQuestions = 3;
  const int idle = std::max(1, static_cast<int>(std::lround(seconds / 2)));
  const int between = std::max(1, static_cast<int>(std::lround(seconds / 2 / kQuestions)));
  const int yes = 1, questions = kQuestions;
  const auto unanswered = static_cast<unsigned int>(std::clamp(seconds * 1e3, 1e3, 1e9));
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (!is_connection(descriptor)) continue;
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &questions, sizeof(questions));
    setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof(unanswered));
  }
}

}  // namespace windlass
