#include "windlass/runtime/connections.h"

#include <filesystem>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <netinet/in.h>

namespace windlass {
namespace {

// Both ends of a TCP connection of this process with itself.
class OwnConnection {
 public:
  OwnConnection() : near(socket(AF_INET, SOCK_STREAM, 0)) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* place = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener, place, length), 0);
    EXPECT_EQ(getsockname(listener, place, &length), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    EXPECT_EQ(connect(near, place, length), 0);
    far = accept(listener, nullptr, nullptr);
    close(listener);
  }
  ~OwnConnection() {
    close(near);
    close(far);
  }
  OwnConnection(const OwnConnection&) = delete;
  OwnConnection& operator=(const OwnConnection&) = delete;

  const int near;
  int far = -1;
};

bool is_kept_alive(int descriptor) {
  int yes = 0;
  socklen_t size = sizeof(yes);
  EXPECT_EQ(getsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, &size), 0);
  return yes != 0;
}

void wait_on(int loop, int descriptor) {
  epoll_event event = {};
  event.events = EPOLLIN;
  EXPECT_EQ(epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &event), 0);
}

// Of a library that serves its connections by a loop those are changed, and no others.
TEST(Connections, ThoseOfOthersStayAsTheyAre) {
  if (!std::filesystem::exists("/proc/self/fdinfo")) GTEST_SKIP() << "no /proc here";
  const OwnConnection own, served, served_by_another;
  const int other_loop = epoll_create1(0);
  const std::set<int> before = event_loops();
  EXPECT_TRUE(before.contains(other_loop));
  const int loop = epoll_create1(0);
  std::set<int> loops = event_loops();
  for (int known : before) loops.erase(known);
  EXPECT_EQ(loops, std::set<int>{loop});
  wait_on(loop, served.near);
  wait_on(other_loop, served_by_another.near);
  int pipes[2] = {-1, -1};
  ASSERT_EQ(pipe(pipes), 0);
  wait_on(loop, pipes[0]);
  EXPECT_EQ(end_dead_connections(loops, 5), 1);
  EXPECT_TRUE(is_kept_alive(served.near));
  EXPECT_FALSE(is_kept_alive(served.far));
  EXPECT_FALSE(is_kept_alive(served_by_another.near));
  EXPECT_FALSE(is_kept_alive(own.near));
  for (int descriptor : {loop, other_loop, pipes[0], pipes[1]}) close(descriptor);
}

}  // namespace
}  // namespace windlass
