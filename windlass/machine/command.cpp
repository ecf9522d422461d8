#include "windlass/machine/command.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace windlass {
namespace {

constexpr size_t kMaxOutput = size_t{1} << 20;

class FileDescriptor {
 public:
  explicit FileDescriptor(int file) : file_(file) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return file_; }
  void reset() {
    if (file_ >= 0) close(file_);
    file_ = -1;
  }

 private:
  int file_;
};

// Starts the program in a process group of its own, so that it can be ended with all it started.
std::optional<pid_t> start(const std::vector<std::string>& command, int output) {
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&files) != 0) return std::nullopt;
  if (posix_spawnattr_init(&attributes) != 0) {
    posix_spawn_file_actions_destroy(&files);
    return std::nullopt;
  }
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = -1;
  const int failed =
      posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failed == 0 ? std::optional(child) : std::nullopt;
}

// Reads to the end. False if that does not come in time or takes too many bytes.
bool read_all(int file, Seconds patience, std::string& text) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience.value);
  while (true) {
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd ready = {file, POLLIN, 0};
    const int found = poll(&ready, 1, std::max(1, static_cast<int>(std::min(left, 60.0) * 1000)));
    if (found < 0 && errno != EINTR) return false;
    if (found <= 0) continue;
    char buffer[4096];
    const ssize_t count = read(file, buffer, sizeof(buffer));
    if (count == 0) return true;
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kMaxOutput) return false;
  }
}

}  // namespace

std::optional<std::string> output_of(const std::vector<std::string>& command, Seconds patience) {
  if (command.empty()) return std::nullopt;
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  FileDescriptor in(ends[0]), out(ends[1]);
  const auto child = start(command, out.get());
  out.reset();
  if (!child) return std::nullopt;
  std::string text;
  const bool complete = read_all(in.get(), patience, text);
  // After its last word it may take its time to end, but not forever.
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; complete && ended == 0 && i < 5000; ++i) {
    ended = waitpid(*child, &status, WNOHANG);
    if (ended == 0) usleep(1000);
  }
  if (ended == 0) {
    kill(-*child, SIGKILL);
    while (waitpid(*child, &status, 0) < 0 && errno == EINTR) continue;
  }
  if (!complete || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return text;
}

}  // namespace windlass
