#include "windlass/run/ranks.h"

#include <cstring>

#include "windlass/base/error.h"
#include "windlass/run/runtime.h"

namespace windlass {

std::vector<std::string> Ranks::tell_all(const std::string& mine) {
  constexpr uint64_t kMost = uint64_t{1} << 34;
  const auto count = static_cast<size_t>(size());
  std::vector<std::string> told(count);
  std::vector<uint64_t> sizes(count, mine.size());
  uint64_t own = mine.size();
  std::vector<Transfer> sends, receives;
  const auto others = [&](auto&& visit) {
    for (int32_t r = 0; r < size(); ++r)
      if (r != rank()) visit(r, static_cast<size_t>(r));
  };
  others([&](int32_t peer, size_t i) {
    sends.push_back({peer, std::as_writable_bytes(std::span(&own, 1))});
    receives.push_back({peer, std::as_writable_bytes(std::span(&sizes[i], 1))});
  });
  exchange(kControlTag, sends, receives);
  sends.clear();
  receives.clear();
  std::string copy = mine;
  others([&](int32_t peer, size_t i) {
    if (sizes[i] > kMost) fail_input("rank {}: says {} bytes at once", peer, sizes[i]);
    told[i].resize(sizes[i]);
    sends.push_back({peer, std::as_writable_bytes(std::span(copy))});
    receives.push_back({peer, std::as_writable_bytes(std::span(told[i]))});
  });
  exchange(kControlTag + 1, sends, receives);
  told[static_cast<size_t>(rank())] = mine;
  return told;
}

void Ranks::be_at(const std::string& what) {
  const std::lock_guard lock(at_mutex_);
  at_ = what;
}
std::string Ranks::at() const {
  const std::lock_guard lock(at_mutex_);
  return at_;
}

std::unique_ptr<Ranks> Runtime::join(const RankPlace&) {
  fail_unsupported("this runtime knows no other processes");
}

RehearsalReport Runtime::rehearse(const TrainingGraph&, const SimulatedStep&, const Machine&,
                                  const std::vector<int32_t>&, int32_t) {
  fail_unsupported("this runtime does not rehearse");
}

}  // namespace windlass
