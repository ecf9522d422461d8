// The steps of a run in a file, a line a step, that a run that goes on continues: JSON where the
// name ends in .json or .jsonl, else a table of values between commas.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "windlass/run/training.h"

namespace windlass {

class StepLog {
 public:
  // A run that goes on after step `done` keeps the lines of the steps that it does not do again;
  // nothing: a fresh run. Throws Error{Input} if the file cannot be written.
  StepLog(const std::string& path, std::optional<int64_t> done);
  // Throws Error{Runtime} if that fails.
  void add(const TrainerStep& step, double seconds, double rate, std::optional<double> evaluated);

 private:
  std::string path_;
  bool json_;
  std::ofstream file_;
};

}  // namespace windlass
