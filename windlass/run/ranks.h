// Ranks: the processes of a run, as one of them sees the others. What crosses from process to
// process passes here; libtorch's own distributed layer carries it (runtime/ranks_c10d.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "windlass/base/error.h"

namespace windlass {

// Ranks that are lost are noticed, and all have ended, within half a minute.
inline constexpr double kRankTimeOut = 20;

// Where a process stands among those of a run, and how it meets them.
struct RankPlace {
  int32_t rank = 0;
  int32_t ranks = 1;
  // Where they meet: a file that all can reach (processes of one host), or else the address and
  // port that rank 0 listens on.
  std::string file = {};
  std::string address = {};
  int32_t port = 0;
  bool met = false;          // somebody else listens there already: torchrun's agent
  std::string bind = {};     // address of this process; empty: where the host's name leads
  std::string attempt = {};  // tells a start from those before it at the same place
  // Seconds after which a rank that shows no sign of life counts as lost. All have ended some
  // seconds later.
  double time_out = kRankTimeOut;
  // Seconds since this process began: all have to come within a time from then on, so that programs
  // that load slowly end in time, too.
  double age = 0;
  // Called if the run has failed, and this process is at something that does not look for it: for
  // some seconds it has not come to exchange anything, nor ended. Should end the process. Empty: it
  // goes on until then.
  std::function<void(const Error&)> stuck = {};

  bool alone() const { return ranks == 1; }
};

class Ranks {
 public:
  virtual ~Ranks() = default;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // Bytes for another rank, or from it.
  struct Transfer {
    int32_t peer = 0;
    std::span<std::byte> bytes;
  };
  // Sends and receives, all at the same time; returns when all of it is there. Both ends name the
  // same tag and size; between two ranks, transfers of one tag and direction follow each other.
  // Threads may do so at the same time with different tags. Throws Error{Runtime} naming the rank
  // that is lost or has failed.
  virtual void exchange(uint32_t tag, std::span<const Transfer> sends,
                        std::span<const Transfer> receives) = 0;

  // Ranks that add up by an algorithm of the library that carries messages, in an order of its own:
  // the same on all of them, but not the same as without it.
  class SumGroup {
   public:
    virtual ~SumGroup() = default;
    // Of each member an array of the same length: all get the sum. All must call it, in the same
    // order; throws as exchange() does.
    virtual void add_up(std::span<float> values) = 0;
  };
  // All members (ascending) must call it, in an order that is the same for all groups. Null: the
  // library has none. Must not outlive the ranks.
  virtual std::unique_ptr<SumGroup> make_sum_group(const std::vector<int32_t>&) { return nullptr; }

  // What every rank says, by rank, to all. All must call it, in the same order.
  std::vector<std::string> tell_all(const std::string& mine);

  // The run has failed here: exchanges that are under way, here and elsewhere, end with an error
  // that has this message. The first one counts.
  virtual void fail(const std::string& message) noexcept = 0;
  // What this rank is at, for what is said if it does not come back from there; empty: nothing that
  // has a name.
  void be_at(const std::string& what);
  std::string at() const;
  // Whether all are processes of one host, and share its cores.
  virtual bool one_host() const { return true; }
  // Seconds by a clock that all ranks share, but for clock_error().
  virtual double now() const = 0;
  // Sets the clock by that of rank 0. All must call it, as tell_all().
  virtual void align_clock() {}
  // What now() may be off from that of rank 0, in seconds. Grows from one align_clock() to the
  // next, as clocks of hosts do not run alike.
  virtual double clock_error() const { return 0; }

 protected:
  Ranks(int32_t rank, int32_t size) : rank_(rank), size_(size) {}

 private:
  const int32_t rank_, size_;
  mutable std::mutex at_mutex_;
  std::string at_;
};

// Tags from here on are not those of tasks.
inline constexpr uint32_t kControlTag = 1U << 30;
inline constexpr uint32_t kRestTag = kControlTag + 2;
inline constexpr uint32_t kLinkTag = kControlTag + 16;
inline constexpr uint32_t kSumTag = kControlTag + 1024;  // and as many more as there are groups

}  // namespace windlass
