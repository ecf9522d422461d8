#include "windlass/serve/bounded_stream.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>

namespace windlass {

BoundedStream::BoundedStream(socket_t socket, const ConnectionLimits& limits)
    : socket_(socket), limits_(limits), begin_(Clock::now()) {}

bool BoundedStream::ready(short events, Clock::time_point end) const {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd asked = {.fd = socket_, .events = events, .revents = 0};
    const int found = poll(&asked, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;
  }
}

bool BoundedStream::is_readable() const { return from_ < to_ || wait_readable(); }
bool BoundedStream::wait_readable() const { return ready(POLLIN, begin_ + limits_.request); }
bool BoundedStream::wait_writable() const {
  // A client that went away is readable, with nothing to read.
  char byte = 0;
  if (recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return false;
  return ready(POLLOUT, begin_ + limits_.answer);
}
bool BoundedStream::is_writable() const { return wait_writable(); }

bool BoundedStream::within_bounds(const char* bytes, size_t count) {
  constexpr std::string_view kRange = "range:";
  bytes_ += count;
  for (size_t i = 0; i < count && !head_ended_; ++i) {
    if (bytes[i] == '\n') {
      head_ended_ = line_.empty();
      line_.clear();
    } else if (bytes[i] != '\r' && line_.size() < kRange.size()) {
      line_ += static_cast<char>(std::tolower(static_cast<unsigned char>(bytes[i])));
      if (line_ == kRange) return false;
    }
  }
  return bytes_ <= (head_ended_ ? limits_.all_bytes : limits_.head_bytes);
}

ssize_t BoundedStream::read(char* to, size_t size) {
  if (from_ == to_) {
    if (!ready(POLLIN, begin_ + limits_.request)) return -1;
    const ssize_t count = recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count <= 0) return count;
    from_ = 0;
    to_ = static_cast<size_t>(count);
    if (!within_bounds(buffer_.data(), to_)) return -1;
  }
  const size_t count = std::min(size, to_ - from_);
  std::memcpy(to, buffer_.data() + from_, count);
  from_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t BoundedStream::write(const char* from, size_t size) {
  const auto end = begin_ + limits_.answer;
  size_t sent = 0;
  while (sent < size) {
    if (!ready(POLLOUT, end)) return -1;
    const ssize_t count = send(socket_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0)
      sent += static_cast<size_t>(count);
    else if (errno != EAGAIN && errno != EINTR)
      return -1;
  }
  return static_cast<ssize_t>(size);
}

void BoundedStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}
void BoundedStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}
socket_t BoundedStream::socket() const { return socket_; }
time_t BoundedStream::duration() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_).count();
}

}  // namespace windlass
