#include "windlass/runtime/listening.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <linux/filter.h>
#include <memory>
#include <netdb.h>
#include <optional>
#include <set>
#include <sys/socket.h>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using Address4 = uint32_t;                 // in the order of the host
using Address6 = std::array<uint32_t, 4>;  // likewise

struct HostAddresses {
  std::set<Address4> four;
  std::set<Address6> six;
};

void look_up(const std::string& name, HostAddresses& found) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int wrong = getaddrinfo(name.c_str(), nullptr, &hints, &list); wrong != 0)
    fail(ErrorKind::Runtime, "{}: this host knows no address of that name ({})", name,
         wrong == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(wrong));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) {
      sockaddr_in address = {};
      std::memcpy(&address, one->ai_addr, sizeof(address));
      found.four.insert(ntohl(address.sin_addr.s_addr));
    } else if (one->ai_family == AF_INET6) {
      sockaddr_in6 address = {};
      std::memcpy(&address, one->ai_addr, sizeof(address));
      Address6 words = {};
      std::memcpy(words.data(), &address.sin6_addr, sizeof(words));
      for (uint32_t& word : words) word = ntohl(word);
      found.six.insert(words);
    }
  }
}

// A filter of packets (man 7 socket, SO_ATTACH_FILTER): accepts those whose destination is one of
// the addresses.
std::vector<sock_filter> filter_for(const HostAddresses& addresses) {
  constexpr auto kNetwork = static_cast<uint32_t>(SKF_NET_OFF);
  constexpr uint32_t kTo4 = 16, kTo6 = 24;  // bytes before the destination in the headers
  constexpr uint32_t kAll = 0xffffffff;
  std::vector<sock_filter> four, six, all;
  const auto add = [](std::vector<sock_filter>& list, int code, uint32_t value, size_t yes = 0,
                      size_t no = 0) {
    list.push_back(
        {static_cast<uint16_t>(code), static_cast<uint8_t>(yes), static_cast<uint8_t>(no), value});
  };
  add(four, BPF_LD | BPF_W | BPF_ABS, kNetwork + kTo4);
  for (Address4 address : addresses.four) {
    add(four, BPF_JMP | BPF_JEQ | BPF_K, address, 0, 1);
    add(four, BPF_RET | BPF_K, kAll);
  }
  add(four, BPF_RET | BPF_K, 0);
  for (const Address6& address : addresses.six) {
    for (uint32_t i = 0; i < address.size(); ++i) {
      add(six, BPF_LD | BPF_W | BPF_ABS, kNetwork + kTo6 + 4 * i);
      add(six, BPF_JMP | BPF_JEQ | BPF_K, address[i], 0, 2 * (address.size() - i) - 1);
    }
    add(six, BPF_RET | BPF_K, kAll);
  }
  add(six, BPF_RET | BPF_K, 0);
  add(all, BPF_LD | BPF_B | BPF_ABS, kNetwork);
  add(all, BPF_ALU | BPF_RSH | BPF_K, 4);
  add(all, BPF_JMP | BPF_JEQ | BPF_K, 6, four.size(), 0);
  all.insert(all.end(), four.begin(), four.end());
  all.insert(all.end(), six.begin(), six.end());
  return all;
}

// Where a socket of this process is; none if it is no TCP socket at this port.
std::optional<sockaddr_in6> own_address(int descriptor, int port) {
  sockaddr_in6 address = {};
  socklen_t length = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return std::nullopt;
  // The port lies at the same place for both families.
  const bool known = address.sin6_family == AF_INET || address.sin6_family == AF_INET6;
  if (!known || ntohs(address.sin6_port) != port) return std::nullopt;
  return address;
}

bool listens(int descriptor) {
  int yes = 0;
  socklen_t size = sizeof(yes);
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes != 0;
}

bool contains(const HostAddresses& addresses, const sockaddr_in6& address) {
  if (address.sin6_family == AF_INET) {
    sockaddr_in four = {};
    std::memcpy(&four, &address, sizeof(four));
    return addresses.four.contains(ntohl(four.sin_addr.s_addr));
  }
  Address6 words = {};
  std::memcpy(words.data(), &address.sin6_addr, sizeof(words));
  for (uint32_t& word : words) word = ntohl(word);
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) return addresses.four.contains(words[3]);
  return addresses.six.contains(words);
}

HostAddresses addresses_of(const std::vector<std::string>& names) {
  HostAddresses found;
  for (const std::string& name : names) look_up(name, found);
  return found;
}

// Calls visit(descriptor, address) for the sockets of this process at a port.
template <class Visit>
void for_sockets_at(int port, Visit&& visit) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", failed)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (const auto address = own_address(descriptor, port)) visit(descriptor, *address);
  }
  if (failed) fail(ErrorKind::Runtime, "/proc/self/fd: {}", failed.message());
}

}  // namespace

void check_addresses(const std::vector<std::string>& names, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (const std::string& name : names) {
    const addrinfo hints = {};
    addrinfo* list = nullptr;
    while (getaddrinfo(name.c_str(), nullptr, &hints, &list) == EAI_AGAIN &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (list != nullptr) freeaddrinfo(list);
  }
  addresses_of(names);
}

void accept_only_at(int port, const std::vector<std::string>& addresses) {
  const HostAddresses found = addresses_of(addresses);
  constexpr size_t kMost = 64;  // jumps of filters are short
  if (found.four.size() > kMost || found.six.size() > kMost)
    fail(ErrorKind::Runtime, "{}: stands for more than {} addresses", addresses.back(), kMost);
  std::vector<sock_filter> filter = filter_for(found);
  const sock_fprog program = {static_cast<uint16_t>(filter.size()), filter.data()};
  bool any = false;
  for_sockets_at(port, [&](int descriptor, const sockaddr_in6&) {
    if (!listens(descriptor)) return;
    if (setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
      fail(ErrorKind::Runtime, "the system refuses a filter of packets: {}", std::strerror(errno));
    any = true;
  });
  if (!any) fail(ErrorKind::Runtime, "this process does not listen on port {}", port);
}

void end_connections_elsewhere(int port, const std::vector<std::string>& addresses) {
  const HostAddresses found = addresses_of(addresses);
  for_sockets_at(port, [&](int descriptor, const sockaddr_in6& address) {
    if (!listens(descriptor) && !contains(found, address)) shutdown(descriptor, SHUT_RDWR);
  });
}

}  // namespace windlass
