// A process of this program that answers one request: it runs in a folder of its own that goes with
// it, says what it has to say on its output, and ends when nobody listens any more.
#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace windlass {

// What to start: files are written into the folder that the process runs in.
struct ChildCommand {
  std::vector<std::string> arguments;                           // after the program's name
  std::vector<std::pair<std::string, std::string>> files = {};  // name, text
  std::string preface = {};  // for the listener, before what the process says
};

class Child {
 public:
  // Throws Error{Runtime} where the system has no more processes, files or room.
  Child(const std::string& program, const ChildCommand& command);
  ~Child();  // ended, waited for, and its folder removed
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  enum class Said { Something, Nothing, End };
  // What was said, up to a bounded size, into `text`; waits for it so long.
  Said read(std::string& text, std::chrono::milliseconds patience);
  // May be called from any thread.
  void kill() const;

 private:
  std::string folder_;
  int output_ = -1;
  pid_t process_ = -1;
};

}  // namespace windlass
