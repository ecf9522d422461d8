#include "windlass/cli/progress.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

namespace windlass {

Progress::Progress(std::string_view what) : shown_(isatty(STDERR_FILENO) != 0) {
  if (shown_) fmt::print(stderr, "{} ...", what);
}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::show(const std::string& text) {
  if (!shown_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
}

std::string Progress::bar(double part, size_t width) {
  const auto full = static_cast<size_t>(std::clamp(part, 0.0, 1.0) * static_cast<double>(width));
  std::string text = "[" + std::string(full, '=');
  if (full < width) text += '>' + std::string(width - full - 1, ' ');
  return text + ']';
}

}  // namespace windlass
