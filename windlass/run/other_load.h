// How much of this host's processors other programs take while something is measured or trained
// here: kernels then take longer than on a quiet host, and predictions say so.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace windlass {

// Time of all processors since the host began, as the first line of /proc/stat has it: in its own
// ticks, waiting for files and devices counted as idle.
struct ProcessorTicks {
  int64_t all = 0, busy = 0;
  bool operator==(const ProcessorTicks&) const = default;
};
// None if that is not such a text.
std::optional<ProcessorTicks> parse_processor_ticks(std::string_view text);

// Adds up stretches of time, each between begin() and end().
class OtherLoad {
 public:
  // More than this is worth a word: steps are noticeably slower.
  static constexpr double kNoticed = 0.1;

  void begin();
  void end();
  // The part of all processors that other programs took, at most 1. 0 if the system does not tell,
  // or if too little time has passed to tell.
  double share() const;
  bool noticed() const { return share() >= kNoticed; }
  // "other programs took 40 % of this host's processors".
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
