#include "windlass/run/step_log.h"

#include <charconv>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr std::string_view kJsonStart = "{\"step\":";

// Of a log, the lines up to a step; a line that was cut off is dropped, too.
void keep_lines(const std::string& path, int64_t last) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    // "12,0.5,..." or {"step":12,...}; the header is no number.
    int64_t step = 0;
    const size_t begin = line.starts_with(kJsonStart) ? kJsonStart.size() : 0;
    std::from_chars(line.data() + begin, line.data() + line.size(), step);
    if (step <= last) kept += line + "\n";
  }
  file.close();
  AtomicFile rewritten(path);
  rewritten.write(kept);
  rewritten.commit();
}

}  // namespace

StepLog::StepLog(const std::string& path, std::optional<int64_t> done)
    : path_(path), json_(path.ends_with(".json") || path.ends_with(".jsonl")) {
  std::error_code ignored;
  const bool fresh = !done || !std::filesystem::is_regular_file(path, ignored);
  if (!fresh) keep_lines(path, *done);
  file_.open(path, fresh ? std::ios::trunc : std::ios::app);
  if (!file_) fail_input("{}: cannot be written", path);
  if (fresh && !json_)
    file_ << "step,loss,learning_rate,step_time_s,samples_per_s,peak_bytes,eval_loss\n";
}

void StepLog::add(const TrainerStep& step, double seconds, double rate,
                  std::optional<double> evaluated) {
  if (json_) {
    nlohmann::ordered_json line = {{"step", step.step},
                                   {"loss", step.outcome.loss},
                                   {"learning_rate", step.learning_rate},
                                   {"step_time_s", seconds},
                                   {"samples_per_s", rate},
                                   {"peak_bytes", step.outcome.peaks[0]}};
    if (evaluated) line["eval_loss"] = *evaluated;
    file_ << line.dump() << "\n";
  } else {
    file_ << fmt::format("{},{},{},{},{},{},{}\n", step.step, step.outcome.loss, step.learning_rate,
                         seconds, rate, step.outcome.peaks[0],
                         evaluated ? fmt::format("{}", *evaluated) : "");
  }
  file_.flush();
  if (!file_) fail(ErrorKind::Runtime, "{}: cannot be written: disk full?", path_);
}

}  // namespace windlass
