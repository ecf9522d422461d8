#include "windlass/runtime/listening.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace windlass {
namespace {

// Listens on all addresses, as c10d's store does: for both families, or for IPv4.
class Listener {
 public:
  explicit Listener(int family) : number_(socket(family, SOCK_STREAM, 0)) {
    sockaddr_in6 six = {};
    six.sin6_family = AF_INET6;
    sockaddr_in four = {};
    four.sin_family = AF_INET;
    const auto* address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&six)
                                             : reinterpret_cast<const sockaddr*>(&four);
    const int no = 0;
    if (family == AF_INET6) setsockopt(number_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    made_ = number_ >= 0 &&
            bind(number_, address, family == AF_INET6 ? sizeof(six) : sizeof(four)) == 0 &&
            listen(number_, 8) == 0;
    socklen_t length = sizeof(six);
    getsockname(number_, reinterpret_cast<sockaddr*>(&six), &length);
    port_ = ntohs(six.sin6_port);
  }
  ~Listener() { close(number_); }
  bool made() const { return made_; }
  int port() const { return port_; }

 private:
  const int number_;
  bool made_ = false;
  int port_ = 0;
};

// Whether somebody answers there. What is dropped is not answered, however long one waits.
bool reaches(const char* address, int port) {
  const int number = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  connect(number, reinterpret_cast<sockaddr*>(&to), sizeof(to));
  pollfd waits = {number, POLLOUT, 0};
  const bool ready = poll(&waits, 1, 500) == 1;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(number, SOL_SOCKET, SO_ERROR, &error, &size);
  close(number);
  return ready && error == 0;
}

// All of 127.0.0.0/8 leads to this host.
TEST(Listening, OnlyTheNamedAddressIsReached) {
  for (int family : {AF_INET, AF_INET6}) {
    const Listener listener(family);
    if (!listener.made()) continue;  // no IPv6 here
    EXPECT_TRUE(reaches("127.0.0.1", listener.port()));
    EXPECT_TRUE(reaches("127.0.0.2", listener.port()));
    ASSERT_TRUE(accept_only_at(listener.port(), {"127.0.0.1", "127.0.0.9"}));
    EXPECT_TRUE(reaches("127.0.0.1", listener.port()));
    EXPECT_TRUE(reaches("127.0.0.9", listener.port()));
    EXPECT_FALSE(reaches("127.0.0.2", listener.port()));
    // Another listener is not touched.
    const Listener other(AF_INET);
    EXPECT_TRUE(reaches("127.0.0.2", other.port()));
  }
}

TEST(Listening, SaysWhereItCannot) {
  const Listener listener(AF_INET);
  EXPECT_FALSE(accept_only_at(listener.port(), {"no.such.name.invalid"}));
  int port = 0;
  {
    const Listener gone(AF_INET);
    port = gone.port();
  }
  EXPECT_FALSE(accept_only_at(port, {"127.0.0.1"}));
}

}  // namespace
}  // namespace windlass
