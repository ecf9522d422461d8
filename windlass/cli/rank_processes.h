// Processes of one run: where this one stands among them, and those that it starts itself on this
// host.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "windlass/cli/cli.h"
#include "windlass/run/ranks.h"

namespace windlass {

// As whoever started this process says; none if it is alone.
std::optional<RankPlace> own_place();
// Meets the others there, if this process was started as one of several; else null. `bind` may be
// empty.
std::unique_ptr<Ranks> join_others(double time_out, const std::string& bind);

// Throws Error{Runtime} naming the ranks that differ from most others, on all ranks.
void compare_ranks(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& facts);

// Does the work. What fails of the run meanwhile says what this rank was at.
template <class Work>
void during(Ranks* ranks, const std::string& what, Work&& work) {
  if (ranks == nullptr) return work();
  ranks->be_at(what);
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Runtime) throw;
    throw error.within(what);
  }
  ranks->be_at({});
}

// The command line of this process.
std::vector<std::string> own_command();

// Starts processes on this host, which meet in a file of a private folder that is there as long as
// the object.
class RankStarter {
 public:
  RankStarter();
  ~RankStarter();
  RankStarter(const RankStarter&) = delete;
  RankStarter& operator=(const RankStarter&) = delete;

  struct End {
    // Of the first that failed, if it was not only that it lost another.
    ExitCode code = ExitCode::Done;
    int64_t lost = 0;  // those that a signal ended, or that did not end by themselves
  };
  // So many with this command line, until all have ended. They print where this process does, and
  // signals to it go to them; those that do not end by themselves after a failure are killed.
  End run(const std::vector<std::string>& command, int64_t count, double time_out);

 private:
  std::filesystem::path folder_;
  int starts_ = 0;
};

}  // namespace windlass
