#include "windlass/machine/loopback.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using LoopbackClock = std::chrono::steady_clock;

constexpr size_t kBlock = size_t{4} << 20;
constexpr int kBlocks = 8, kTrips = 100;

[[noreturn]] void no_loopback() {
  fail(ErrorKind::Runtime, "the loopback network of this host cannot be measured: {}",
       std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int number) : number_(number) {
    if (number < 0) no_loopback();
  }
  ~Socket() { close(number_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int number() const { return number_; }

  bool send_all(const std::byte* data, size_t size) const {
    for (size_t done = 0; done < size;) {
      const ssize_t sent = send(number_, data + done, size - done, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      done += static_cast<size_t>(sent);
    }
    return true;
  }
  bool receive_all(std::byte* data, size_t size) const {
    for (size_t done = 0; done < size;) {
      const ssize_t got = recv(number_, data + done, size - done, 0);
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }
  void without_delay() const {
    const int yes = 1;
    setsockopt(number_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  }

 private:
  const int number_;
};

double loopback_seconds(LoopbackClock::time_point begin) {
  return std::chrono::duration<double>(LoopbackClock::now() - begin).count();
}

}  // namespace

LoopbackFigures measure_loopback() {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.number(), generic, length) != 0 || listen(listener.number(), 1) != 0 ||
      getsockname(listener.number(), generic, &length) != 0)
    no_loopback();
  const Socket here(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(here.number(), generic, length) != 0) no_loopback();
  const Socket there(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
  here.without_delay();
  there.without_delay();

  std::vector<std::byte> sent(kBlock, std::byte{1}), echoed(kBlock);
  // Short messages come back at once; of long ones, what is short at the end.
  std::thread echo([&] {
    std::array<std::byte, 8> word;
    for (int i = 0; i < kTrips; ++i)
      if (!there.receive_all(word.data(), word.size()) || !there.send_all(word.data(), word.size()))
        return;
    for (int i = 0; i < kBlocks; ++i)
      if (!there.receive_all(echoed.data(), kBlock) || !there.send_all(word.data(), word.size()))
        return;
  });
  std::vector<double> trips, blocks;
  std::array<std::byte, 8> word = {};
  bool well = true;
  for (int i = 0; i < kTrips && well; ++i) {
    const auto begin = LoopbackClock::now();
    well = here.send_all(word.data(), word.size()) && here.receive_all(word.data(), word.size());
    trips.push_back(loopback_seconds(begin));
  }
  for (int i = 0; i < kBlocks && well; ++i) {
    const auto begin = LoopbackClock::now();
    well = here.send_all(sent.data(), kBlock) && here.receive_all(word.data(), word.size());
    blocks.push_back(loopback_seconds(begin));
  }
  if (!well) shutdown(here.number(), SHUT_RDWR);
  echo.join();
  if (!well) no_loopback();
  const auto median = [](std::vector<double>& list) {
    std::ranges::nth_element(list, list.begin() + static_cast<ptrdiff_t>(list.size() / 2));
    return list[list.size() / 2];
  };
  const double trip = std::max(1e-7, median(trips));
  const double block = std::max(1e-6, median(blocks) - trip / 2);
  return {BytesPerSecond(static_cast<double>(kBlock) / block), Seconds(trip / 2)};
}

}  // namespace windlass
