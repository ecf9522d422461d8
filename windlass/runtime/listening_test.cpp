#include "windlass/runtime/listening.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "windlass/base/error.h"

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
  int descriptor() const { return number_; }
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

// A connection that was accepted, with both of its ends.
class Connection {
 public:
  Connection(const char* address, const Listener& listener)
      : near_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(listener.port()));
    inet_pton(AF_INET, address, &to.sin_addr);
    EXPECT_EQ(connect(near_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    far_ = accept(listener.descriptor(), nullptr, nullptr);
    EXPECT_GE(far_, 0);
  }
  ~Connection() {
    close(near_);
    close(far_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  bool ended() const {
    pollfd waits = {near_, POLLIN, 0};
    return poll(&waits, 1, 50) == 1;
  }

 private:
  const int near_;
  int far_ = -1;
};

// All of 127.0.0.0/8 leads to this host.
TEST(Listening, OnlyTheNamedAddressIsReached) {
  for (int family : {AF_INET, AF_INET6}) {
    const Listener listener(family);
    if (!listener.made()) continue;  // no IPv6 here
    EXPECT_TRUE(reaches("127.0.0.1", listener.port()));
    EXPECT_TRUE(reaches("127.0.0.2", listener.port()));
    accept_only_at(listener.port(), {"127.0.0.1", "127.0.0.9"});
    EXPECT_TRUE(reaches("127.0.0.1", listener.port()));
    EXPECT_TRUE(reaches("127.0.0.9", listener.port()));
    EXPECT_FALSE(reaches("127.0.0.2", listener.port()));
    // Another listener is not touched.
    const Listener other(AF_INET);
    EXPECT_TRUE(reaches("127.0.0.2", other.port()));
  }
}

TEST(Listening, SaysWhereItCannot) {
  const auto problem = [](int port, const std::string& address) -> std::string {
    try {
      accept_only_at(port, {address});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Runtime);
      return error.message();
    }
    return {};
  };
  const Listener listener(AF_INET);
  EXPECT_TRUE(problem(listener.port(), "no.such.name.invalid")
                  .starts_with("no.such.name.invalid: this host knows no address of that name ("));
  int port = 0;
  {
    const Listener gone(AF_INET);
    port = gone.port();
  }
  EXPECT_EQ(problem(port, "127.0.0.1"),
            "this process does not listen on port " + std::to_string(port));
}

// Who has come before the port was kept to an address is not listened to any longer.
TEST(Listening, WhoCameBeforeIsEnded) {
  for (int family : {AF_INET, AF_INET6}) {
    const Listener listener(family);
    if (!listener.made()) continue;
    const Connection right("127.0.0.1", listener), wrong("127.0.0.2", listener);
    end_connections_elsewhere(listener.port(), {"127.0.0.1"});
    EXPECT_FALSE(right.ended());
    EXPECT_TRUE(wrong.ended());
  }
}

}  // namespace
}  // namespace windlass
