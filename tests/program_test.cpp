#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gtest/gtest.h>

#include "windlass/base/test_places.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// A file that is removed at the end.
class ScratchFile {
 public:
  ScratchFile() : path_((fs::temp_directory_path() / "windlass-XXXXXX").string()) {
    const int file = mkstemp(path_.data());
    if (file >= 0) close(file);
  }
  ~ScratchFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::string path_;
};

// A folder for all programs of this process that ask for none of their own.
const std::string& scratch_cache() {
  static const ScratchFolder folder;
  static const std::string path = folder / "cache";
  return path;
}

}  // namespace

struct RunningProgram::State {
  ScratchFile out, err;
  pid_t child = -1;
  bool ended = false;
  int status = 0;
  struct rusage usage {};

  // Whether it has ended; with `options` 0, waits until it has.
  bool reap(int options) {
    pid_t found = ended ? child : 0;
    while (!ended && (found = wait4(child, &status, options, &usage)) < 0 && errno == EINTR) {
    }
    return ended = found != 0;
  }
};

RunningProgram::RunningProgram(const std::vector<std::string>& arguments,
                               const ProgramOptions& options)
    : state_(std::make_unique<State>()) {
  std::vector<char*> argv;
  std::string program = options.program.empty() ? program_path() : options.program;
  argv.push_back(program.data());
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  scratch_cache();
  state_->child = fork();
  if (state_->child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (state_->child == 0) {
    if (!std::freopen(state_->out.path().c_str(), "w", stdout)) _exit(126);
    if (!std::freopen(state_->err.path().c_str(), "w", stderr)) _exit(126);
    if (options.file_bytes > 0) {
      const auto bytes = static_cast<rlim_t>(options.file_bytes);
      const struct rlimit limit = {bytes, bytes};
      if (std::signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0)
        _exit(126);
    }
    // What one test measures is nothing to another one, or to the user.
    const std::string cache = options.cache.empty() ? scratch_cache() : options.cache;
    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
    for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
    if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

RunningProgram::~RunningProgram() {
  if (state_->reap(WNOHANG)) return;
  signal(SIGKILL);
  state_->reap(0);
}

void RunningProgram::signal(int number) {
  if (!state_->reap(WNOHANG)) kill(state_->child, number);
}

int RunningProgram::pid() const { return state_->child; }

bool RunningProgram::wait_for_lines(int64_t lines) {
  for (;;) {
    const bool ended = state_->reap(WNOHANG);
    if (std::ranges::count(state_->out.text(), '\n') >= lines) return true;
    if (ended) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

ProgramResult RunningProgram::wait() {
  state_->reap(0);
  const struct rusage& usage = state_->usage;
  const auto seconds = [](const struct timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {WIFEXITED(state_->status) ? WEXITSTATUS(state_->status) : -1, state_->out.text(),
          state_->err.text(), seconds(usage.ru_utime) + seconds(usage.ru_stime),
          int64_t{usage.ru_maxrss} * 1024};
}

ProgramResult run_windlass(const std::vector<std::string>& arguments,
                           const ProgramOptions& options) {
  return RunningProgram(arguments, options).wait();
}

namespace {

TEST(Program, HelpAndVersionSucceed) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"--version"}, {"inspect", "--help"}}) {
    const ProgramResult result = run_windlass(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0];
    EXPECT_FALSE(result.out.empty());
    EXPECT_EQ(result.err, "");
  }
}

TEST(Program, MistakesGiveCodeOneAndAHint) {
  const struct {
    std::vector<std::string> arguments;
    std::string hint;
  } cases[] = {
      {{}, "subcommand"},
      {{"inspct"}, "unknown verb \"inspct\" (did you mean \"inspect\"?)"},
      {{"zzz", "gpt2"}, "unknown verb \"zzz\"; known are inspect"},
      {{"inspect"}, "MODEL"},
      {{"inspect", "resnt-50"}, "did you mean \"resnet-50\""},
      {{"inspect", "gpt2:layrs=3"}, "did you mean \"layers\""},
      {{"inspect", "gpt2", "--dtype", "fp17"}, "--dtype"},
      {{"inspect", "gpt2", "--batch", "0"}, "--batch"},
      {{"inspect", "gpt2", "--batch", "-3"}, "--batch"},
      {{"inspect", "gpt2", "--freeze", "no.such.*"}, "no weight matches --freeze"},
      {{"inspect", "gpt2", "--train", "no.such.*"}, "no weight matches --train"},
      {{"inspect", "gpt2", "--loss", "hinge"}, "loss \"hinge\" is not known"},
      {{"inspect", "missing.onnx"}, "no such file"},
      {{"inspect", "/"}, "config.json"},
      {{"inspect", "/dev/null"}, "regular file"},
      {{"inspect", ""}, "no model is named"},
  };
  for (const auto& [arguments, hint] : cases) {
    const ProgramResult result = run_windlass(arguments);
    EXPECT_EQ(result.exit_code, 1) << (arguments.empty() ? "" : arguments.back());
    EXPECT_NE(result.err.find(hint), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

// Parameters: wte 100 x 64, wpe 1024 x 64, per layer 12 x 64^2 + 13 x 64, final norm 2 x 64.
// Multiply-adds of 16 tokens: 12 x 64^2 a layer and 100 x 64 for the logits; attention 2 x 16^2 x
// 64 a layer.
TEST(Inspect, PrintsForPeople) {
  const ProgramResult result = run_windlass(
      {"inspect", "gpt2:layers=2,hidden=64,heads=4,vocab=100", "--seq", "16", "--top", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, R"(gpt2:layers=2,hidden=64,heads=4,vocab=100 (zoo)
  inputs      input_ids int64[1, 16]
  parameters  172,032 (172 K)
  forward     3.48 MFLOP
  training    10.5 MFLOP a step
  ops         49 forward, 127 in a training step
  structure   4 ops, 2 x [21 ops], 3 ops

bytes of a training step, all on one device (adam)
  weights                         672 KiB
  gradients                       672 KiB
  optimizer                      1.31 MiB
  activations kept for backward   157 KiB

forward ops by family
  attention       2   131 KFLOP
  contraction     9  3.35 MFLOP
  elementwise    12           -
  layout         19           -
  lookup          1           -
  loss            1           -
  normalization   5           -

largest tensors
  transformer.wpe.weight  weight  fp32[1024, 64]  256 KiB
)");
}

TEST(Inspect, JsonHasTheKeysProgramsRelyOn) {
  const ProgramResult result = run_windlass({"inspect", "resnet-18", "--batch", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* key :
       {"\"parameters\": 11689512", "\"forward_flops\": 7256293376", "\"training_flops\"",
        "\"weight_bytes\": 46758048", "\"saved_activation_bytes\"", "\"ops\"", "\"blocks\""})
    EXPECT_NE(result.out.find(key), std::string::npos) << key;
}

TEST(Inspect, DumpsGraphs) {
  for (const char* form : {"graph", "training", "dot"}) {
    const ProgramResult result = run_windlass({"inspect", "mlp", "--dump", form});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("graph \"mlp"), std::string::npos) << form;
  }
  EXPECT_NE(run_windlass({"inspect", "mlp", "--dump", "training"}).out.find("Update"),
            std::string::npos);
}

TEST(Operators, TheDocumentIsWhatIsPrinted) {
  const ProgramResult result = run_windlass({"operators"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(source_folder() + "/docs/operators.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(result.out, text) << "run: windlass operators > docs/operators.md";
}

TEST(Inspect, FrozenWeightsAreNotTrained) {
  const std::vector<std::string> model = {"inspect", "resnet-18", "--json"};
  std::vector<std::string> frozen = model;
  frozen.insert(frozen.end(), {"--freeze", "layer*", "--freeze", "conv1*", "--freeze", "bn1*"});
  std::vector<std::string> list = model;
  list.insert(list.end(), {"--freeze", "layer*", "conv1*", "bn1*"});
  const std::vector<std::string> last = {"inspect", "--json", "--freeze", "layer*",
                                         "conv1*",  "bn1*",   "resnet-18"};
  std::vector<std::string> against = model;
  against.insert(against.end(), {"--freeze", "*", "--train", "fc.*"});
  for (const auto& arguments : {frozen, list, last, against}) {
    const ProgramResult result = run_windlass(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    // Only the classifier is left: 512 x 1000 + 1000.
    EXPECT_NE(result.out.find("\"parameters\": 513000"), std::string::npos);
    EXPECT_NE(result.out.find("\"training\": \"frozen\""), std::string::npos);
  }
}

}  // namespace
}  // namespace windlass
