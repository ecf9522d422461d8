#include "windlass/cli/cli.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/text.h"

namespace windlass {
namespace {

void print_error(std::string_view message) {
  std::fflush(stdout);
  fmt::print(stderr, "windlass: {}\n", printable(message));
}

int code(ExitCode exit_code) { return static_cast<int>(exit_code); }

// CLI11 would say that arguments were not expected.
void check_verb(const CLI::App& program, std::string_view verb) {
  if (verb.empty() || verb.starts_with('-')) return;
  std::vector<std::string> verbs;
  for (const CLI::App* known : program.get_subcommands({})) {
    if (known->get_name() == verb) return;
    if (!known->get_group().empty()) verbs.push_back(known->get_name());
  }
  fail_input("unknown verb \"{}\"{}; known are {}", verb, did_you_mean(verb, verbs),
             join(verbs, ", "));
}

}  // namespace

ExitCode exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Input:
    case ErrorKind::Unsupported: return ExitCode::BadInput;
    case ErrorKind::OutOfMemory:
    case ErrorKind::Runtime: return ExitCode::RunFailed;
    case ErrorKind::Internal: return ExitCode::Bug;
  }
  return ExitCode::Bug;
}

void end_at_once(const Error& error) {
  print_error(error.message());
  std::fflush(stderr);
  std::_Exit(code(exit_code_of(error.kind())));
}

int run_program(int argc, char** argv) {
  CLI::App program{
      "windlass trains neural networks that do not fit: give it a model, a machine and a memory "
      "limit.",
      "windlass"};
  program.set_version_flag("--version", fmt::format("windlass {}", kVersion));
  program.require_subcommand(1);
  program.footer(
      "Examples:\n"
      "  windlass inspect gpt2-xl\n"
      "  windlass inspect model.onnx --batch 32\n"
      "  windlass inspect path/to/config.json --dtype bf16 --optimizer adamw --json\n"
      "  windlass plan gpt2 --batch 4 --on local --memory 2GiB -o plan.json\n"
      "  windlass train plan.json --data text.txt --steps 100\n"
      "  windlass compare gpt2-xl --batch 8 --on 4x3090\n"
      "  windlass explain plan.json\n"
      "  windlass report plan.json -o report.html\n"
      "  windlass simulate gpt2-xl --on 4x3090 --strategy zero:stage=3 --dtype fp16 --batch 16\n"
      "Exit codes: 0 done, 1 bad input, 2 no feasible plan, 3 run failed, 4 a bug in windlass.");
  ExitCode exit_code = ExitCode::Done;
  add_inspect(program);
  add_machine(program, exit_code);
  add_plan(program, exit_code);
  add_compare(program, exit_code);
  add_advise(program, exit_code);
  add_explain(program, exit_code);
  add_report(program, exit_code);
  add_simulate(program, exit_code);
  add_check(program, exit_code);
  add_train(program, exit_code);
  add_export(program);
  add_operators(program);
  add_validate(program, exit_code);
  add_calibrate(program, exit_code);
  add_serve(program, exit_code);
  add_shell(program);
  add_answer(program);
  try {
    if (argc > 1) check_verb(program, argv[1]);
    program.parse(argc, argv);
    if (std::fflush(stdout) != 0) throw Error(ErrorKind::Runtime, "cannot write to the output");
    return code(exit_code);
  } catch (const CLI::ParseError& error) {
    // CLI11 prints help and version through the same path as errors; both are code 0.
    return program.exit(error) == 0 ? code(ExitCode::Done) : code(ExitCode::BadInput);
  } catch (const Error& error) {
    print_error(error.message());
    return code(exit_code_of(error.kind()));
  } catch (const std::bad_alloc&) {
    print_error("out of host memory; give the model a smaller batch or sequence");
    return code(ExitCode::RunFailed);
  } catch (const std::exception& error) {
    print_error(fmt::format("internal error: {}", error.what()));
    return code(ExitCode::Bug);
  }
}

}  // namespace windlass
