// The command line: verbs, flags, and how errors become exit codes.
#pragma once

#include <string>

#include "windlass/base/error.h"
#include "windlass/base/version.h"

namespace CLI {
class App;
}

namespace windlass {

// Exit codes of every verb.
enum class ExitCode : int {
  Done = 0,
  BadInput = 1,
  NoPlan = 2,
  RunFailed = 3,
  Bug = 4,
};

ExitCode exit_code_of(ErrorKind kind);

// Runs the program: parses, acts, prints. Never throws.
int run_program(int argc, char** argv);

// Says what went wrong and ends the process as it is, with the exit code of the error's kind: for
// threads that hang and can neither be stopped nor waited for. Files that appear whole or not at
// all are not touched.
[[noreturn]] void end_at_once(const Error& error);

// Add one verb each to the program. Acting happens inside CLI11's callback.
void add_inspect(CLI::App& program);
void add_check(CLI::App& program, ExitCode& exit_code);
void add_export(CLI::App& program);
void add_operators(CLI::App& program);
// These also say how the program ends: not fitting is an answer, with an exit code of its own.
void add_machine(CLI::App& program, ExitCode& exit_code);
void add_simulate(CLI::App& program, ExitCode& exit_code);
void add_plan(CLI::App& program, ExitCode& exit_code);
void add_train(CLI::App& program, ExitCode& exit_code);
void add_compare(CLI::App& program, ExitCode& exit_code);
void add_advise(CLI::App& program, ExitCode& exit_code);
void add_explain(CLI::App& program, ExitCode& exit_code);
void add_report(CLI::App& program, ExitCode& exit_code);
void add_validate(CLI::App& program, ExitCode& exit_code);
void add_calibrate(CLI::App& program, ExitCode& exit_code);
void add_serve(CLI::App& program, ExitCode& exit_code);
void add_shell(CLI::App& program);   // completion and man
void add_answer(CLI::App& program);  // is not listed

}  // namespace windlass
