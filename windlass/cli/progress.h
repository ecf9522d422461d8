// One line on the terminal that says how far something is; nothing where there is no terminal.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace windlass {

class Progress {
 public:
  explicit Progress(std::string_view what);
  ~Progress();  // the line is gone afterwards
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool shown() const { return shown_; }
  // Replaces the line, a few times a second at most.
  void show(const std::string& text);
  // "[=====>    ]": `part` from 0 to 1.
  static std::string bar(double part, size_t width = 24);

 private:
  bool shown_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace windlass
