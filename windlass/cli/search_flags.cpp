#include "windlass/cli/search_flags.h"

#include <charconv>

#include <CLI/CLI.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/number_in.h"

namespace windlass {
namespace {

int64_t number(std::string_view key, std::string_view text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    fail_input("--fix {}={}: expected a whole number from {} to {}", key, text, least, most);
  return value;
}

bool on_or_off(std::string_view key, std::string_view text) {
  if (text == "on") return true;
  if (text == "off") return false;
  fail_input("--fix {}={}: expected on or off", key, text);
}

RecomputePolicy policy(std::string_view text) {
  if (text == "off" || text == "none") return RecomputePolicy::None;
  if (text == "selective") return RecomputePolicy::Selective;
  if (text == "full") return RecomputePolicy::Full;
  if (text == "sqrt") return RecomputePolicy::Sqrt;
  fail_input("--fix recompute={}: expected off, selective, sqrt or full", text);
}

}  // namespace

void read_fixed(const std::string& text, FixedDecisions& fixed, int64_t& micro_batches) {
  constexpr int64_t kMost = 1 << 20;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, comma - at);
    at = comma + 1;
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos)
      fail_input("--fix \"{}\": expected NAME=VALUE, e.g. tp=2", part);
    const std::string_view key = part.substr(0, equals), value = part.substr(equals + 1);
    if (key == "dp")
      fixed.dp = number(key, value, 1, kMost);
    else if (key == "tp")
      fixed.tp = number(key, value, 1, kMost);
    else if (key == "pp")
      fixed.pp = number(key, value, 1, kMost);
    else if (key == "cp")
      fixed.cp = number(key, value, 1, kMost);
    else if (key == "ep")
      fixed.ep = number(key, value, 1, kMost);
    else if (key == "micro-batches")
      micro_batches = number(key, value, 1, kMost);
    else if (key == "zero")
      fixed.zero = static_cast<int>(number(key, value, 0, 3));
    else if (key == "recompute")
      fixed.recompute = policy(value);
    else if (key == "offload")
      fixed.offload = on_or_off(key, value);
    else if (key == "host-weights")
      fixed.host_weights = on_or_off(key, value);
    else if (key == "host-update")
      fixed.host_update = on_or_off(key, value);
    else
      fail_input(
          "--fix {}: there is no such decision; known: dp, tp, pp, cp, ep, micro-batches, "
          "zero, recompute, offload, host-weights, host-update",
          key);
  }
}

double effort_of(const std::string& text) {
  constexpr double kQuick = 0.2, kThorough = 20, kMost = 1e6;
  if (text == "quick") return kQuick;
  if (text == "normal") return 1;
  if (text == "thorough") return kThorough;
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end || !(value >= 0 && value <= kMost))
    fail_input("--effort {}: expected quick, normal, thorough, or a number from 0 to {}", text,
               kMost);
  return value;
}

void AllowFlag::add_to(CLI::App& verb) {
  verb.add_option("--allow", allow,
                  "what changes the mathematics: compress (saved tensors in 8, 4 or 2 bits), or\n"
                  "compress=4 (in 8 or 4)")
      ->check(CLI::IsMember({"compress", "compress=8", "compress=4", "compress=2"}));
}

int AllowFlag::compress() const {
  int fewest = 0;
  for (const std::string& text : allow) {
    const int bits = text.ends_with('8') ? 8 : text.ends_with('4') ? 4 : 2;
    fewest = fewest == 0 ? bits : std::min(fewest, bits);
  }
  return fewest;
}

void SearchFlags::add_to(CLI::App& verb) {
  verb.add_option("--time-limit", time_limit,
                  "seconds to search at most; where that cuts the search short, the plan says so. "
                  "The\nkernels that an answer needs are measured beside it")
      ->capture_default_str()
      ->check(number_in(0, 1e9));
  verb.add_option("--effort", effort,
                  "how much to search: quick, normal, thorough, or a number of times normal. The "
                  "same\neffort gives the same plan on every machine")
      ->capture_default_str();
  verb.add_option("--seed", seed, "of random choices: the same one gives the same plan")
      ->capture_default_str();
  verb.add_option("--micro-batches", micro_batches, "only so many; default: any")
      ->check(positive_number());
  verb.add_option(
          "--fix", fix,
          "decisions that are yours: tp=2,pp=1,zero=1,recompute=off,... Degrees (dp, tp, pp, cp)\n"
          "hold for all ops: none is split otherwise by itself")
      ->type_name("NAME=VALUE,...");
  allow.add_to(verb);
  verb.add_option("--threads", threads,
                  "threads that kernels and the search use; default: all cores")
      ->check(positive_number());
}

SearchOptions SearchFlags::options() const {
  SearchOptions options = {.time_limit = Seconds(time_limit),
                           .micro_batches = micro_batches,
                           .threads = threads,
                           .seed = seed,
                           .effort = effort_of(effort)};
  if (mode != "auto") options.pack_mode = mode == "dp" ? HarmonyMode::Data : HarmonyMode::Pipeline;
  options.compress = allow.compress();
  for (const std::string& text : fix) read_fixed(text, options.fixed, options.micro_batches);
  return options;
}

}  // namespace windlass
