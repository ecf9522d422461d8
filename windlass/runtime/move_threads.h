// Threads that share out large moves where nothing computes beside them: the cores of the devices
// that a move is between wait for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace windlass {

class MoveThreads {
 public:
  // `count`: the calling thread is one of them.
  explicit MoveThreads(int64_t count);
  ~MoveThreads();

  // Calls move(begin, end) for parts of [0, size), one for each thread at most, and returns when
  // all are done; an error of any part is thrown. Parts have at least `least` elements. One caller
  // at a time has the threads: another one moves all of its own by itself.
  void divide(int64_t size, int64_t least, const std::function<void(int64_t, int64_t)>& move);

 private:
  struct Request {
    const std::function<void(int64_t, int64_t)>* move = nullptr;
    int64_t size = 0, parts = 0;
  };
  static void carry_out(const Request& request, int64_t part);
  void help(int64_t part);

  std::mutex busy_;  // held by the caller that has the threads
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  Request request_;
  uint64_t round_ = 0;
  int64_t left_ = 0;  // helpers that have not answered this round
  std::exception_ptr error_;
  bool closing_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace windlass
