#include "windlass/cli/train_ranks.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/interrupt.h"
#include "windlass/run/checkpoint.h"
#include "windlass/run/rank_environment.h"
#include "windlass/run/runtime.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using RankClock = std::chrono::steady_clock;

// How long ranks may take to end beyond the time-out, when one has failed.
constexpr double kEndSeconds = 10;

std::optional<RankPlace> own_place() {
  return rank_from_environment([](const char* name) { return std::getenv(name); });
}

// A folder that is there as long as the object.
class MeetingFolder {
 public:
  MeetingFolder() {
    std::string pattern = (fs::temp_directory_path() / "windlass-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      fail(ErrorKind::Runtime, "{}: cannot be made: {}", pattern, std::strerror(errno));
    path_ = pattern;
  }
  ~MeetingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// Of one start: the processes, and how they ended.
class RankProcesses {
 public:
  RankProcesses(const std::vector<std::string>& command, int64_t count,
                const std::string& meeting) {
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string program = fs::read_symlink("/proc/self/exe").string();
    const pid_t parent = getpid();
    for (int64_t rank = 0; rank < count; ++rank) {
      const pid_t child = fork();
      if (child < 0) {
        end_all(SIGKILL);
        fail(ErrorKind::Runtime, "no process can be started: {}", std::strerror(errno));
      }
      if (child == 0) {
        // They end with whoever waits for them.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(static_cast<int>(ExitCode::RunFailed));
        setenv("RANK", std::to_string(rank).c_str(), 1);
        setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        setenv("WORLD_SIZE", std::to_string(count).c_str(), 1);
        setenv(kMeetingVariable, meeting.c_str(), 1);
        execv(program.c_str(), arguments.data());
        _exit(static_cast<int>(ExitCode::RunFailed));
      }
      running_[child] = rank;
    }
  }
  ~RankProcesses() { end_all(SIGKILL); }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Until all have ended. What is sent to this process goes to them.
  ExitCode wait(double time_out) {
    const InterruptScope signals;
    bool told = false;
    std::optional<RankClock::time_point> give_up;
    while (!running_.empty()) {
      int status = 0;
      const pid_t ended = waitpid(-1, &status, WNOHANG);
      if (ended > 0 && running_.contains(ended)) {
        note_end(running_[ended], status);
        running_.erase(ended);
        if (first_ != ExitCode::Done && !give_up)
          give_up = RankClock::now() +
                    std::chrono::milliseconds(static_cast<int64_t>(1e3 * (time_out + kEndSeconds)));
        continue;
      }
      if (InterruptScope::interrupted() && !told) {
        told = true;
        for (const auto& [child, rank] : running_) kill(child, SIGTERM);
      }
      if (give_up && RankClock::now() > *give_up) {
        for (const auto& [child, rank] : running_)
          fmt::print(stderr, "windlass: rank {} does not end, and is killed\n", rank);
        end_all(SIGKILL);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return first_;
  }

 private:
  void note_end(int64_t rank, int status) {
    if (WIFSIGNALED(status))
      fmt::print(stderr, "windlass: rank {} was ended by signal {} ({})\n", rank, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    // Those that only lost another say that the run failed: who has another reason is right.
    if (first_ != ExitCode::Done && first_ != ExitCode::RunFailed) return;
    const auto code =
        WIFSIGNALED(status) ? ExitCode::RunFailed : static_cast<ExitCode>(WEXITSTATUS(status));
    if (code != ExitCode::Done) first_ = code;
  }
  void end_all(int signal) {
    for (const auto& [child, rank] : running_) {
      kill(child, signal);
      waitpid(child, nullptr, 0);
    }
    running_.clear();
  }

  std::map<pid_t, int64_t> running_;  // and their ranks
  ExitCode first_ = ExitCode::Done;
};

}  // namespace

bool starts_ranks(const TrainFlags& flags) {
  return flags.machine.hosts.value_or(1) > 1 && !own_place();
}

ExitCode start_ranks(const TrainFlags& flags) {
  const MeetingFolder folder;
  std::vector<std::string> command = own_command();
  ExitCode code = ExitCode::Done;
  for (int64_t attempt = 0;; ++attempt) {
    const std::string meeting = (folder.path() / fmt::format("meeting-{}", attempt)).string();
    code = RankProcesses(command, *flags.machine.hosts, meeting).wait(flags.time_out);
    if (code != ExitCode::RunFailed || attempt >= flags.restarts) return code;
    fmt::print(stderr, "windlass: start {} of {}, from the last checkpoint\n", attempt + 2,
               flags.restarts + 1);
    if (attempt == 0 && flags.resume.empty()) {
      command.push_back("--resume");
      command.push_back(flags.checkpoints);
    }
  }
}

std::unique_ptr<Ranks> join_others(const TrainFlags& flags) {
  std::optional<RankPlace> place = own_place();
  if (!place) return nullptr;
  place->time_out = flags.time_out;
  if (!flags.bind.empty()) place->bind = flags.bind;
  return open_runtime().join(*place);
}

void compare_ranks(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& facts) {
  nlohmann::ordered_json mine = nlohmann::ordered_json::array();
  for (const auto& [what, value] : facts) mine.push_back({what, value});
  std::vector<nlohmann::json> told;
  for (const std::string& text : ranks.tell_all(mine.dump()))
    told.push_back(nlohmann::json::parse(text, nullptr, false));
  std::string differences;
  for (size_t i = 0; i < facts.size(); ++i) {
    std::map<std::string, std::vector<size_t>> by_value;
    for (size_t rank = 0; rank < told.size(); ++rank) {
      const bool there = told[rank].is_array() && told[rank].size() == facts.size();
      by_value[there ? told[rank][i].dump() : "nothing"].push_back(rank);
    }
    if (by_value.size() == 1) continue;
    // Of as many on both sides, rank 0 is right.
    const auto most = std::ranges::max_element(by_value, {}, [](const auto& entry) {
      return std::pair{entry.second.size(), entry.second.front() == 0};
    });
    for (const auto& [value, list] : by_value) {
      if (value == most->first) continue;
      for (size_t rank : list)
        differences +=
            fmt::format("{}rank {} has another {} than rank {}", differences.empty() ? "" : "; ",
                        rank, facts[i].first, most->second.front());
    }
  }
  if (!differences.empty())
    fail(ErrorKind::Runtime, "the ranks cannot train together: {}", printable(differences));
}

}  // namespace windlass
