#include "windlass/run/other_load.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

namespace windlass {
namespace {

// Ticks are counted whole: of fewer, one more or less is too large a part.
constexpr int64_t kFewTicks = 20;

}  // namespace

std::optional<ProcessorTicks> parse_processor_ticks(std::string_view text) {
  // user nice system idle iowait irq softirq steal; what guests take is in `user` already.
  constexpr size_t kKinds = 8, kIdle = 3, kWaiting = 4;
  constexpr int64_t kMost = int64_t{1} << 58;
  std::istringstream stream{std::string(text.substr(0, text.find('\n')))};
  std::string word;
  if (!(stream >> word) || word != "cpu") return std::nullopt;
  ProcessorTicks ticks;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    int64_t count = 0;
    if (!(stream >> count) || count < 0 || count > kMost) return std::nullopt;
    ticks.all += count;
    if (kind != kIdle && kind != kWaiting) ticks.busy += count;
  }
  return ticks;
}

std::optional<OtherLoad::Moment> OtherLoad::now() {
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::optional<ProcessorTicks> host = parse_processor_ticks(line);
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
  return fmt::format("other programs took {:.0f} % of this host's processors", 100 * share());
}

}  // namespace windlass
