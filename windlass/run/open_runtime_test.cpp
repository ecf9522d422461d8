#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/base/test_places.h"
#include "windlass/run/runtime.h"

namespace windlass {
namespace {

// Most memory that the program had. What this process has counts, too, and is little: it has no
// libtorch either.
int64_t peak_bytes(std::initializer_list<const char*> arguments) {
  std::vector<std::string> texts = {program_path()};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (!std::freopen("/dev/null", "w", stdout)) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  struct rusage usage {};
  int status = 0;
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  EXPECT_EQ(status, 0);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(OpenRuntime, WhoRunsNoKernelTakesLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "what the sanitizer takes counts";
  EXPECT_LT(peak_bytes({"--version"}), 20'000'000);
  EXPECT_LT(peak_bytes({"inspect", "llama3-405b"}), 30'000'000);
}

// This program is no windlass: there is no library beside it.
TEST(OpenRuntime, SaysWhereItLooked) {
  try {
    open_runtime();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Runtime);
    EXPECT_TRUE(error.message().starts_with("libwindlass_runtime.so: not found")) << error.what();
  }
}

}  // namespace
}  // namespace windlass
