// `windlass serve`: a page in the browser whose controls are the flags of "windlass plan".

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <malloc.h>
#include <memory>
#include <sys/random.h>
#include <sys/resource.h>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/what_if.h"
#include "windlass/serve/page_server.h"

namespace windlass {
namespace {

struct ServeFlags {
  std::string host = "127.0.0.1";
  int port = 8420;
  int searches = 2;
  double seconds = 30;
};

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ErrorKind::Runtime, "the system gives no random numbers");
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// Connections that wait to be served hold a file each and nothing else.
void bound_files() {
  constexpr rlim_t kFiles = 512;
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, kFiles);
  setrlimit(RLIMIT_NOFILE, &limit);
}

ExitCode run_serve(const ServeFlags& flags) {
  bound_files();
  // Threads come and go with requests: what they free is for all of them.
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  const std::string token = random_token();
  PageServer server(
      {.host = flags.host,
       .port = flags.port,
       .page = what_if_page(token, flags.seconds),
       .token = token,
       .program = std::filesystem::read_symlink("/proc/self/exe").string(),
       .searches = flags.searches,
       .command = [&](std::string_view body) { return read_what_if(body, flags.seconds); }});
  if (!is_loopback(flags.host))
    fmt::print(stderr, "note: --host {}: whoever reaches this host can search on it\n", flags.host);
  fmt::print("windlass is at {}   (Ctrl-C ends)\n", server.address());
  std::fflush(stdout);
  const InterruptScope interrupts;
  std::jthread watch([&](const std::stop_token& ended) {
    while (!ended.stop_requested() && !InterruptScope::interrupted())
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.stop();
  });
  server.run();
  return ExitCode::Done;
}

}  // namespace

void add_serve(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "serve", "A page on this host to try models, machines and limits: what if?");
  auto flags = std::make_shared<ServeFlags>();
  verb->add_option("--port", flags->port, "to listen on; 0: any that is free")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  verb->add_option("--host", flags->host,
                   "address to listen on; other than this host's own, others can ask, too")
      ->capture_default_str();
  verb->add_option("--searches", flags->searches, "at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  verb->add_option("--most-seconds", flags->seconds, "longest search that the page may ask for")
      ->capture_default_str()
      ->check(number_in(1, 90));
  verb->footer(
      "The page answers whenever a control changes: the first plan that fits at once, better ones "
      "as\n"
      "they are found, with the charts of \"windlass report\" and the command line for what is "
      "shown.\n"
      "A config.json or a machine file can be loaded into it. Searches run as processes of their "
      "own\n"
      "with bounded time and memory; nothing is kept. Only this host is answered, unless --host "
      "says\n"
      "otherwise, and pages of other origins never.\n"
      "Examples:\n"
      "  windlass serve\n"
      "  windlass serve --port 0 --searches 1");
  verb->callback([flags, &exit_code] { exit_code = run_serve(*flags); });
}

}  // namespace windlass
