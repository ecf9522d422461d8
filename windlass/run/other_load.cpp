#include "windlass/run/other_load.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sched.h>
#include <sstream>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

namespace windlass {
namespace {

// Ticks are counted whole: of fewer, one more or less is too large a part.
constexpr int64_t kFewTicks = 20;

std::set<int> own_processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::set<int> processors;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &mask)) processors.insert(i);
  return processors;
}

}  // namespace

std::optional<ProcessorTicks> parse_processor_ticks(std::string_view text,
                                                    const std::set<int>& processors) {
  // user nice system idle iowait irq softirq steal; what guests take is in `user` already.
  constexpr size_t kKinds = 8, kIdle = 3, kWaiting = 4;
  constexpr int64_t kMost = int64_t{1} << 48;
  constexpr std::string_view kName = "cpu";
  std::istringstream lines{std::string(text)};
  ProcessorTicks ticks;
  bool any = false;
  for (std::string line; std::getline(lines, line) && line.starts_with(kName);) {
    std::istringstream stream{line.substr(kName.size())};
    // The first line has no number: it is all of them.
    if (line.size() == kName.size() || line[kName.size()] == ' ') continue;
    int number = 0;
    if (!(stream >> number)) return std::nullopt;
    if (!processors.contains(number)) continue;
    any = true;
    for (size_t kind = 0; kind < kKinds; ++kind) {
      int64_t count = 0;
      if (!(stream >> count) || count < 0 || count > kMost) return std::nullopt;
      ticks.all += count;
      if (kind != kIdle && kind != kWaiting) ticks.busy += count;
    }
  }
  return any ? std::optional(ticks) : std::nullopt;
}

std::optional<OtherLoad::Moment> OtherLoad::now() {
  std::ifstream file("/proc/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::optional<ProcessorTicks> host = parse_processor_ticks(text, own_processors());
  timespec own{};
  if (!host || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) return std::nullopt;
  return Moment{*host, std::chrono::seconds(own.tv_sec) + std::chrono::nanoseconds(own.tv_nsec)};
}

void OtherLoad::begin() { begun_ = now(); }

void OtherLoad::end() {
  if (!begun_) return;
  if (const std::optional<Moment> ended = now()) {
    host_.all += ended->host.all - begun_->host.all;
    host_.busy += ended->host.busy - begun_->host.busy;
    own_ += ended->own - begun_->own;
  }
  begun_.reset();
}

double OtherLoad::share() const {
  const auto ticks_a_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (host_.all < kFewTicks || ticks_a_second <= 0) return 0;
  const double own = std::chrono::duration<double>(own_).count() * ticks_a_second;
  return std::clamp((static_cast<double>(host_.busy) - own) / static_cast<double>(host_.all), 0.0,
                    1.0);
}

std::string OtherLoad::text() const {
  return fmt::format("other programs took {:.0f} % of the processors", 100 * share());
}

}  // namespace windlass
