#include "windlass/run/step_log.h"

#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"

namespace windlass {
namespace {

// Of a log, the lines up to a step; a line that was cut off is dropped, too.
void keep_lines(const std::string& path, int64_t last) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    int64_t step = 0;  // the header is no number
    std::from_chars(line.data(), line.data() + line.size(), step);
    if (step <= last) kept += line + "\n";
  }
  file.close();
  AtomicFile rewritten(path);
  rewritten.write(kept);
  rewritten.commit();
}

}  // namespace

StepLog::StepLog(const std::string& path, std::optional<int64_t> done) : path_(path) {
  std::error_code ignored;
  const bool fresh = !done || !std::filesystem::is_regular_file(path, ignored);
  if (!fresh) keep_lines(path, *done);
  file_.open(path, fresh ? std::ios::trunc : std::ios::app);
  if (!file_) fail_input("{}: cannot be written", path);
  if (fresh) file_ << "step,loss,learning_rate,step_time_s,samples_per_s,peak_bytes,eval_loss\n";
}

void StepLog::add(const TrainerStep& step, double seconds, double rate,
                  std::optional<double> evaluated) {
  file_ << fmt::format("{},{},{},{},{},{},{}\n", step.step, step.outcome.loss, step.learning_rate,
                       seconds, rate, step.outcome.peaks[0],
                       evaluated ? fmt::format("{}", *evaluated) : "");
  file_.flush();
  if (!file_) fail(ErrorKind::Runtime, "{}: cannot be written: disk full?", path_);
}

}  // namespace windlass
