// Ctrl-C and SIGTERM: what is under way is brought to a good end. A second one ends at once.
#pragma once

#include <csignal>

namespace windlass {

class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Since the scope began.
  static bool interrupted();

 private:
  struct sigaction old_interrupt_ = {}, old_terminate_ = {};
};

}  // namespace windlass
