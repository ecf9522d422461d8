// Ranks over libtorch's c10d: messages by ProcessGroupGloo, signs of life by its store.
//
// A peer that dies closes its connections, which ends what waits for it. One that is stopped, or
// cut off, does not: so each rank counts up a number in the store a few times a second, and one
// whose number stands still for the time-out is lost. How long a kernel takes is nobody's concern.
// The store itself may be kept by a rank that has stopped: a second thread looks whether the first
// one, which asks the store, comes back.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "windlass/base/error.h"
#include "windlass/runtime/join_ranks.h"

namespace windlass {
namespace {

using Milliseconds = std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

// Waiting for a message ends by a message, or because a rank is lost.
constexpr Milliseconds kForEver = std::chrono::hours(24 * 365);
// Programs may take their time to start, whatever the time-out.
constexpr double kMeetSeconds = 30;
// How long a connection that has broken waits for the reason.
constexpr double kReasonSeconds = 2;

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
Milliseconds milliseconds(double s) { return Milliseconds(static_cast<int64_t>(s * 1e3)); }

// Newer libtorch asks for libuv unless it is told not to, which not every build has (Debian 13's).
template <class Options>
void without_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

class C10dRanks final : public Ranks, public std::enable_shared_from_this<C10dRanks> {
 public:
  explicit C10dRanks(const RankPlace& place) : Ranks(place.rank, place.ranks), place_(place) {
    meet();
    const auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(patience()));
    options->threads = 1;
    try {
      options->devices = {device()};
      group_ =
          c10::make_intrusive<c10d::ProcessGroupGloo>(store_, place.rank, place.ranks, options);
    } catch (const std::exception& error) {
      fail_run("the ranks cannot connect: {}", reason_line(error.what()));
    }
    last_beats_.resize(static_cast<size_t>(place.ranks));
  }

  void begin() {
    // A thread that waits for an answer that does not come keeps what it works with.
    beats_ = std::thread([self = shared_from_this()] { self->beat(); });
    guard_ = std::thread([this] { guard(); });
  }

  // Those who fail say so first.
  void end() {
    {
      std::unique_lock lock(mutex_);
      if (failure_)
        changed_.wait_for(lock, milliseconds(kReasonSeconds), [&] { return published_ || heard_; });
      closing_ = true;
    }
    changed_.notify_all();
    guard_.join();
    if (store_hangs_) return beats_.detach();
    beats_.join();
    say_goodbye();
  }

  void set_offset(double offset) { offset_ = offset; }

  void exchange(uint32_t tag, std::span<const Transfer> sends,
                std::span<const Transfer> receives) override {
    // Tensors must outlive the works, which look at them when they end.
    std::list<Pending> pending;
    int32_t peer = -1;
    const auto post = [&](const Transfer& transfer, bool sending) {
      peer = transfer.peer;
      if (transfer.bytes.empty()) return;
      std::vector<at::Tensor> tensors = {
          at::from_blob(transfer.bytes.data(), {static_cast<int64_t>(transfer.bytes.size())},
                        at::TensorOptions(at::kByte))};
      const auto label = static_cast<int>(tag);
      const auto work = sending ? group_->send(tensors, transfer.peer, label)
                                : group_->recv(tensors, transfer.peer, label);
      pending.push_back({work, transfer.peer});
      const std::lock_guard lock(mutex_);
      if (failure_) throw_failure();
      under_way_.push_back(&pending.back());
    };
    try {
      try {
        for (const Transfer& transfer : receives) post(transfer, false);
        for (const Transfer& transfer : sends) post(transfer, true);
        for (const Pending& work : pending) {
          peer = work.peer;
          if (!work.work->wait(kForEver)) throw std::runtime_error("given up");
        }
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        broken(peer, reason_line(error.what()));
      }
      const std::lock_guard lock(mutex_);
      if (failure_) throw_failure();
    } catch (...) {
      forget(pending);
      throw;
    }
    forget(pending);
  }

  void fail(const std::string& message) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = fmt::format("rank {} has failed: {}", rank(), message);
      unpublished_ = true;
      abort_all();
    } catch (...) {  // no memory: others notice by time
    }
    changed_.notify_all();
  }

  bool one_host() const override {
    return !place_.file.empty() || place_.bind == "localhost" || place_.bind.starts_with("127.");
  }

  double now() const override {
    return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count() + offset_;
  }

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    int32_t peer = -1;
  };

  template <typename... Args>
  [[noreturn]] static void fail_run(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(ErrorKind::Runtime, fmt::format(format, std::forward<Args>(args)...));
  }
  // With the lock held.
  [[noreturn]] void throw_failure() const { throw Error(ErrorKind::Runtime, *failure_); }

  void forget(const std::list<Pending>& pending) {
    const std::lock_guard lock(mutex_);
    std::erase_if(under_way_, [&](const Pending* one) {
      return std::ranges::any_of(pending, [&](const Pending& other) { return &other == one; });
    });
  }
  // With the lock held: who waits, waits no longer.
  void abort_all() {
    for (const Pending* one : under_way_) one->work->abort();
  }

  // A connection is gone. The peer may have said why.
  [[noreturn]] void broken(int32_t peer, const std::string& how) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, milliseconds(kReasonSeconds), [&] { return failure_.has_value(); });
    if (!failure_) {
      failure_ = fmt::format("rank {} is gone ({})", peer, how);
      unpublished_ = true;
      abort_all();
    }
    throw_failure();
  }
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = message;
    unpublished_ = true;
    abort_all();
    changed_.notify_all();
  }

  std::shared_ptr<::gloo::transport::Device> device() const {
    using Gloo = c10d::ProcessGroupGloo;
    return place_.bind.empty() ? Gloo::createDefaultDevice()
                               : Gloo::createDeviceForHostname(place_.bind);
  }

  // All come to the store; who does not is named.
  void meet() {
    // The store writes to ranks that are gone.
    std::signal(SIGPIPE, SIG_IGN);
    const auto limit = milliseconds(patience());
    const bool keeps = rank() == 0 && !place_.met;
    const std::string where =
        place_.file.empty() ? fmt::format("{}:{}", place_.address, place_.port) : place_.file;
    try {
      if (place_.file.empty()) {
        c10d::TCPStoreOptions options;
        options.port = static_cast<uint16_t>(place_.port);
        options.isServer = keeps;
        options.waitWorkers = false;
        options.timeout = limit;
        without_libuv(options);
        meeting_ = c10::make_intrusive<c10d::TCPStore>(place_.address, options);
      } else {
        meeting_ = c10::make_intrusive<c10d::FileStore>(place_.file, place_.ranks);
      }
      meeting_->setTimeout(limit);
    } catch (const std::exception& error) {
      if (keeps) fail_run("{}: cannot be listened on: {}", where, reason_line(error.what()));
      fail_run("rank 0 was not met at {} within {} s: {}", where, patience(),
               reason_line(error.what()));
    }
    store_ = c10::make_intrusive<c10d::PrefixStore>("windlass/" + place_.attempt, meeting_);
    const auto until = SteadyClock::now() + limit;
    try {
      store_->set(beat_key(rank()), to_bytes("0"));
      for (int32_t peer = 0; peer < size(); ++peer)
        while (!store_->check({beat_key(peer)})) {
          if (SteadyClock::now() > until) fail_missing();
          std::this_thread::sleep_for(Milliseconds(20));
        }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail_run("{}: the meeting ended: {}", where, reason_line(error.what()));
    }
  }
  [[noreturn]] void fail_missing() {
    std::string missing;
    int count = 0;
    for (int32_t peer = 0; peer < size(); ++peer)
      if (!store_->check({beat_key(peer)})) {
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
        ++count;
      }
    fail_run("rank{} {} of {} {} not come within {} s", count == 1 ? "" : "s", missing, size(),
             count == 1 ? "has" : "have", patience());
  }
  static std::string beat_key(int32_t rank) { return fmt::format("beat/{}", rank); }
  double patience() const { return std::max(place_.time_out, kMeetSeconds); }
  double interval() const { return std::clamp(place_.time_out / 20, 0.05, 0.5); }

  // Counts up, and looks at the others.
  void beat() {
    auto looked = SteadyClock::now();
    for (int64_t count = 1;; ++count) {
      std::string mine;
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, milliseconds(interval()), [&] { return closing_ || unpublished_; });
        if (closing_) return;
        if (std::exchange(unpublished_, false)) mine = *failure_;
      }
      try {
        store_->set(beat_key(rank()), to_bytes(std::to_string(count)));
        const bool known = store_->check({"failed"});
        if (!mine.empty() && !known) store_->set("failed", to_bytes(mine));
        if (mine.empty() && known) hear(to_text(store_->get("failed")));
        const auto when = SteadyClock::now();
        // A process that was stopped itself has not seen the others stand still.
        const double passed =
            std::min(std::chrono::duration<double>(when - looked).count(), 2 * interval());
        looked = when;
        for (int32_t peer = 0; peer < size(); ++peer)
          if (peer != rank()) look_at(peer, passed);
      } catch (const std::exception& error) {
        lose(fmt::format("rank 0, where all meet, is gone ({})", reason_line(error.what())));
        return;
      }
      ++rounds_;
      if (!mine.empty()) {
        const std::lock_guard lock(mutex_);
        published_ = true;
        changed_.notify_all();
      }
    }
  }

  void hear(const std::string& message) {
    const std::lock_guard lock(mutex_);
    heard_ = true;
    if (failure_) return;
    failure_ = message;
    abort_all();
    changed_.notify_all();
  }

  void look_at(int32_t peer, double passed) {
    Beat& last = last_beats_[static_cast<size_t>(peer)];
    const std::string found = to_text(store_->get(beat_key(peer)));
    if (found != last.text) {
      last = {found, 0};
      return;
    }
    if (found == kGoodbye) return;
    last.silent += passed;
    if (last.silent > place_.time_out)
      lose(fmt::format("rank {} is lost: no sign of life for {} s", peer, place_.time_out));
  }

  // The store may be what does not answer.
  void guard() {
    int64_t seen = -1;
    double silent = 0;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, milliseconds(interval()), [&] { return closing_; })) return;
      }
      const int64_t rounds = rounds_;
      silent = rounds == seen ? silent + interval() : 0;
      seen = rounds;
      if (silent <= place_.time_out) continue;
      store_hangs_ = true;
      lose(fmt::format("rank 0, where all meet, is lost: no answer for {} s", place_.time_out));
    }
  }

  // Whoever keeps the store leaves last.
  void say_goodbye() {
    const bool keeps = rank() == 0 && !place_.met && place_.file.empty();
    const auto until =
        SteadyClock::now() + milliseconds(failure_ ? 4 * interval() : place_.time_out);
    try {
      store_->set(beat_key(rank()), to_bytes(kGoodbye));
      for (int32_t peer = 1; keeps && peer < size(); ++peer)
        while (to_text(store_->get(beat_key(peer))) != kGoodbye && SteadyClock::now() < until)
          std::this_thread::sleep_for(Milliseconds(5));
    } catch (const std::exception&) {  // they are gone: so be it
    }
  }

  struct Beat {
    std::string text;
    double silent = 0;  // seconds
  };
  static constexpr const char* kGoodbye = "goodbye";

  const RankPlace place_;
  Store meeting_, store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  double offset_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Pending*> under_way_;
  std::optional<std::string> failure_;
  bool unpublished_ = false, published_ = false, heard_ = false, closing_ = false;
  std::vector<Beat> last_beats_;  // of the thread that beats
  std::atomic<int64_t> rounds_ = 0;
  std::atomic<bool> store_hangs_ = false;
  std::thread beats_, guard_;
};

// Ends its threads when it goes; what they still need stays.
class JoinedRanks final : public Ranks {
 public:
  explicit JoinedRanks(const RankPlace& place)
      : Ranks(place.rank, place.ranks), ranks_(std::make_shared<C10dRanks>(place)) {
    ranks_->begin();
  }
  ~JoinedRanks() override { ranks_->end(); }

  void set_clock() { ranks_->set_offset(clock_offset(*ranks_)); }
  void exchange(uint32_t tag, std::span<const Transfer> sends,
                std::span<const Transfer> receives) override {
    ranks_->exchange(tag, sends, receives);
  }
  void fail(const std::string& message) noexcept override { ranks_->fail(message); }
  bool one_host() const override { return ranks_->one_host(); }
  double now() const override { return ranks_->now(); }

 private:
  const std::shared_ptr<C10dRanks> ranks_;
};

}  // namespace

std::unique_ptr<Ranks> join_ranks(const RankPlace& place) {
  auto ranks = std::make_unique<JoinedRanks>(place);
  ranks->set_clock();
  return ranks;
}

}  // namespace windlass
