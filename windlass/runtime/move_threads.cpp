#include "windlass/runtime/move_threads.h"

#include <algorithm>
#include <exception>

#include "windlass/graph/even_parts.h"

namespace windlass {

MoveThreads::MoveThreads(int64_t count) {
  for (int64_t i = 1; i < count; ++i) helpers_.emplace_back([this, i] { help(i); });
}

MoveThreads::~MoveThreads() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void MoveThreads::carry_out(const Request& request, int64_t part) {
  if (part >= request.parts) return;
  const Range range = part_of(request.size, request.parts, part);
  (*request.move)(range.begin, range.end);
}

void MoveThreads::divide(int64_t size, int64_t least,
                         const std::function<void(int64_t, int64_t)>& move) {
  const int64_t threads = static_cast<int64_t>(helpers_.size()) + 1;
  const int64_t parts = std::min(threads, size / std::max<int64_t>(1, least));
  const std::unique_lock busy(busy_, std::try_to_lock);
  if (parts < 2 || !busy.owns_lock()) return move(0, size);
  const Request request{&move, size, parts};
  {
    const std::lock_guard lock(mutex_);
    request_ = request;
    left_ = threads - 1;
    error_ = nullptr;
    ++round_;
  }
  changed_.notify_all();
  std::exception_ptr own;
  try {
    carry_out(request, 0);
  } catch (...) {
    own = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return left_ == 0; });
  if (own == nullptr) own = error_;
  if (own != nullptr) std::rethrow_exception(own);
}

void MoveThreads::help(int64_t part) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_) return;
    seen = round_;
    const Request request = request_;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      carry_out(request, part);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (error_ == nullptr) error_ = thrown;
    if (--left_ == 0) done_.notify_one();
  }
}

}  // namespace windlass
