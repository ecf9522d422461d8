#include "windlass/cli/interrupt.h"

#include <atomic>

namespace windlass {
namespace {

std::atomic<int> noted = 0;
extern "C" void note_signal(int signal) { noted = signal; }

}  // namespace

InterruptScope::InterruptScope() {
  noted = 0;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

bool InterruptScope::interrupted() { return noted != 0; }

}  // namespace windlass
