// A connection that ends by itself: a client has so many bytes and so much time for its request,
// and so much time to take the answer, however slowly it sends or reads.
#pragma once

#include <array>
#include <chrono>
#include <httplib.h>
#include <string>

namespace windlass {

struct ConnectionLimits {
  size_t head_bytes = 32 << 10;  // request line and headers
  size_t all_bytes = 3 << 20;    // with the body
  std::chrono::seconds request{10};
  std::chrono::seconds answer{120};  // from the first byte of the request to the last of the answer
};

// What the library asks of a stream has grown with its versions: no member says `override`, so that
// those which a version does not know are merely unused.
class BoundedStream final : public httplib::Stream {
 public:
  BoundedStream(socket_t socket, const ConnectionLimits& limits);

  bool is_readable() const;
  bool is_writable() const;
  bool wait_readable() const;
  bool wait_writable() const;
  ssize_t read(char* to, size_t size);
  ssize_t write(const char* from, size_t size);
  void get_remote_ip_and_port(std::string& ip, int& port) const;
  void get_local_ip_and_port(std::string& ip, int& port) const;
  socket_t socket() const;
  time_t duration() const;

 private:
  using Clock = std::chrono::steady_clock;

  // Whether the socket is ready before `end`.
  bool ready(short events, Clock::time_point end) const;
  // Counts what was received. Beyond bytes, parts of a page cannot be asked for: the library reads
  // lists of ranges by a recursion as deep as they are long.
  bool within_bounds(const char* bytes, size_t count);

  socket_t socket_;
  ConnectionLimits limits_;
  Clock::time_point begin_;
  std::array<char, 4096> buffer_{};
  size_t from_ = 0, to_ = 0;  // of what was received and not read yet
  size_t bytes_ = 0;
  bool head_ended_ = false;
  std::string line_;  // beginning of the line of the head that is being read, in small letters
};

}  // namespace windlass
