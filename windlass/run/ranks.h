// Ranks: the processes of a run, as one of them sees the others. What crosses from process to
// process passes here; libtorch's own distributed layer carries it (runtime/ranks_c10d.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace windlass {

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
  // Seconds after which a rank that shows no sign of life counts as lost.
  double time_out = 30;

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

  // What every rank says, by rank, to all. All must call it, in the same order.
  std::vector<std::string> tell_all(const std::string& mine);

  // The run has failed here: exchanges that are under way, here and elsewhere, end with an error
  // that has this message. The first one counts.
  virtual void fail(const std::string& message) noexcept = 0;
  // Whether all are processes of one host, and share its cores.
  virtual bool one_host() const { return true; }
  // Seconds by a clock that all ranks share, about.
  virtual double now() const = 0;

 protected:
  Ranks(int32_t rank, int32_t size) : rank_(rank), size_(size) {}

 private:
  const int32_t rank_, size_;
};

// Tags from here on are not those of tasks.
inline constexpr uint32_t kControlTag = 1U << 30;
inline constexpr uint32_t kRestTag = kControlTag + 2;

}  // namespace windlass
