// How much of this host's processors other programs take while something is measured or trained
// here: kernels then take longer than on a quiet host, and predictions say so.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace windlass {

// Time of processors since the host began, as /proc/stat has it: in its own ticks, waiting for
// files and devices counted as idle.
struct ProcessorTicks {
  int64_t all = 0, busy = 0;
  bool operator==(const ProcessorTicks&) const = default;
};
// Of those with these numbers. None if that is not such a text, or has none of them.
std::optional<ProcessorTicks> parse_processor_ticks(std::string_view text,
                                                    const std::set<int>& processors);

// Adds up stretches of time, each between begin() and end().
class OtherLoad {
 public:
  // More than this is worth a word: steps are noticeably slower.
  static constexpr double kNoticed = 0.1;

  void begin();
  void end();
  // The part that other programs took of all processors that this one may run on, at most 1. 0 if
  // the system does not tell, or if too little time has passed to tell.
  double share() const;
  bool noticed() const { return share() >= kNoticed; }
  // "other programs took 40 % of the processors".
  std::string text() const;

 private:
  struct Moment {
    ProcessorTicks host;
    std::chrono::nanoseconds own{};  // processor time of this process
  };
  static std::optional<Moment> now();

  std::optional<Moment> begun_;
  ProcessorTicks host_;
  std::chrono::nanoseconds own_{};
};

}  // namespace windlass
