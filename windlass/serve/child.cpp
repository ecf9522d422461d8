#include "windlass/serve/child.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "windlass/base/error.h"

extern char** environ;

namespace windlass {
namespace {

[[noreturn]] void fail_child(const char* what, int error) {
  throw Error(ErrorKind::Runtime, fmt::format("{}: {}", what, std::strerror(error)));
}

std::string made_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "windlass-serve-XXXXXX").string();
  if (!mkdtemp(pattern.data())) fail_child("a folder for a search", errno);
  return pattern;
}

// A process that neither hears the terminal's Ctrl-C nor has other files open than its output.
pid_t spawned(const std::string& program, const ChildCommand& command, const std::string& folder,
              int output) {
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : command.arguments)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (int signal : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&usual, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t process = -1;
  const int failed =
      posix_spawn(&process, program.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) fail_child("a process for a search", failed);
  return process;
}

}  // namespace

Child::Child(const std::string& program, const ChildCommand& command) : folder_(made_folder()) {
  int ends[2] = {-1, -1};
  try {
    for (const auto& [name, text] : command.files) {
      std::ofstream file(std::filesystem::path(folder_) / name, std::ios::binary);
      file << text;
      file.close();
      if (!file) throw Error(ErrorKind::Runtime, "cannot write a file for a search");
    }
    if (pipe2(ends, O_CLOEXEC) != 0) fail_child("a pipe for a search", errno);
    process_ = spawned(program, command, folder_, ends[1]);
    output_ = ends[0];
    ::close(ends[1]);
  } catch (...) {
    for (int end : ends)
      if (end >= 0) ::close(end);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    throw;
  }
}

Child::~Child() {
  kill();
  ::close(output_);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Child::Said Child::read(std::string& text, std::chrono::milliseconds patience) {
  pollfd asked = {.fd = output_, .events = POLLIN, .revents = 0};
  if (poll(&asked, 1, static_cast<int>(patience.count())) <= 0) return Said::Nothing;
  constexpr size_t kMost = 64 << 10;
  text.resize(kMost);
  const ssize_t count = ::read(output_, text.data(), text.size());
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (count > 0) return Said::Something;
  return count < 0 && (errno == EINTR || errno == EAGAIN) ? Said::Nothing : Said::End;
}

void Child::kill() const { ::kill(process_, SIGKILL); }

}  // namespace windlass
