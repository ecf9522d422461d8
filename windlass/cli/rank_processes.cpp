#include "windlass/cli/rank_processes.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/interrupt.h"
#include "windlass/run/rank_environment.h"
#include "windlass/run/runtime.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using RankClock = std::chrono::steady_clock;

const RankClock::time_point kProgramBegin = RankClock::now();

// How long ranks may take to end when one has said why it does; beyond the time-out, when one was
// killed.
constexpr double kEndSeconds = 8;

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
      const pid_t changed = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
      if (changed > 0 && running_.contains(changed)) {
        if (WIFSTOPPED(status)) stopped_.insert(changed);
        if (WIFCONTINUED(status)) stopped_.erase(changed);
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
        note_end(running_[changed], status);
        running_.erase(changed);
        stopped_.erase(changed);
        if (first_ == ExitCode::Done) continue;
        const double patience = kEndSeconds + (WIFSIGNALED(status) ? time_out : 0);
        const auto until =
            RankClock::now() + std::chrono::milliseconds(static_cast<int64_t>(1e3 * patience));
        give_up = std::min(give_up.value_or(until), until);
        continue;
      }
      if (InterruptScope::interrupted() && !told) {
        told = true;
        for (const auto& [child, rank] : running_) kill(child, SIGTERM);
      }
      // Who is stopped does not end, however long others wait.
      const bool none_goes_on = stopped_.size() == running_.size();
      if (give_up && (none_goes_on || RankClock::now() > *give_up)) {
        for (const auto& [child, rank] : running_)
          fmt::print(stderr, "windlass: rank {} {}, and is killed\n", rank,
                     stopped_.contains(child) ? "is stopped" : "does not end");
        lost_ += static_cast<int64_t>(running_.size());
        end_all(SIGKILL);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return first_;
  }
  // Those that a signal ended, or that did not end by themselves.
  int64_t lost() const { return lost_; }

 private:
  void note_end(int64_t rank, int status) {
    if (WIFSIGNALED(status)) ++lost_;
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
  std::set<pid_t> stopped_;           // of these
  ExitCode first_ = ExitCode::Done;
  int64_t lost_ = 0;
};

}  // namespace

std::optional<RankPlace> own_place() {
  return rank_from_environment([](const char* name) { return std::getenv(name); });
}

std::unique_ptr<Ranks> join_others(double time_out, const std::string& bind) {
  std::optional<RankPlace> place = own_place();
  if (!place) return nullptr;
  place->time_out = time_out;
  if (!bind.empty()) place->bind = bind;
  place->stuck = [rank = place->rank](const Error& error) {
    end_at_once(error.within(fmt::format("rank {}", rank)));
  };
  Runtime& runtime = open_runtime();
  place->age = std::chrono::duration<double>(RankClock::now() - kProgramBegin).count();
  return runtime.join(*place);
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
    fail(ErrorKind::Runtime, "the ranks cannot work together: {}", printable(differences));
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

RankStarter::RankStarter() {
  std::string pattern = (fs::temp_directory_path() / "windlass-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    fail(ErrorKind::Runtime, "{}: cannot be made: {}", pattern, std::strerror(errno));
  folder_ = pattern;
}

RankStarter::~RankStarter() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

RankStarter::End RankStarter::run(const std::vector<std::string>& command, int64_t count,
                                  double time_out) {
  const std::string meeting = (folder_ / fmt::format("meeting-{}", starts_++)).string();
  RankProcesses processes(command, count, meeting);
  const ExitCode code = processes.wait(time_out);
  return {code, processes.lost()};
}

}  // namespace windlass
