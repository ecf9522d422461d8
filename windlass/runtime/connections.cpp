#include "windlass/runtime/connections.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/socket.h>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace windlass {
namespace {

bool is_connection(int descriptor) {
  sockaddr_storage there = {};
  socklen_t length = sizeof(there), size = sizeof(int);
  int type = 0;
  return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
         getpeername(descriptor, reinterpret_cast<sockaddr*>(&there), &length) == 0 &&
         (there.ss_family == AF_INET || there.ss_family == AF_INET6);
}

// What a loop waits on, as the system lists it: "tfd:  12 events: ...".
std::set<int> waited_on(int loop) {
  std::set<int> found;
  std::ifstream list(fmt::format("/proc/self/fdinfo/{}", loop));
  for (std::string word; list >> word;)
    if (int descriptor = -1; word == "tfd:" && list >> descriptor) found.insert(descriptor);
  return found;
}

}  // namespace

std::set<int> event_loops() {
  std::set<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored))
    if (std::filesystem::read_symlink(entry.path(), ignored) == "anon_inode:[eventpoll]")
      found.insert(std::atoi(entry.path().filename().c_str()));
  return found;
}

int end_dead_connections(const std::set<int>& loops, double seconds) {
  // Silence of a half, then a few questions within the other half; the system counts in seconds.
  constexpr int kQuestions = 3;
  const int idle = std::max(1, static_cast<int>(std::lround(seconds / 2)));
  const int between = std::max(1, static_cast<int>(std::lround(seconds / 2 / kQuestions)));
  const int yes = 1, questions = kQuestions;
  const auto unanswered = static_cast<unsigned int>(std::clamp(seconds * 1e3, 1e3, 1e9));
  int count = 0;
  for (int loop : loops)
    for (int descriptor : waited_on(loop)) {
      if (!is_connection(descriptor)) continue;
      ++count;
      setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
      setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
      setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
      setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &questions, sizeof(questions));
      setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof(unanswered));
    }
  return count;
}

}  // namespace windlass
