// Reading named strategies.

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using Defaults = std::function<void(BaselineSpec&)>;

const std::map<std::string_view, Defaults>& names() {
  static const std::map<std::string_view, Defaults> kNames = {
      {"data-parallel", [](BaselineSpec&) {}},
      {"zero", [](BaselineSpec& s) { s.zero = 1; }},
      {"megatron", [](BaselineSpec&) {}},
      {"one-weird-trick", [](BaselineSpec& s) { s.one_weird_trick = true; }},
      {"gpipe", [](BaselineSpec& s) { s.gpipe = true, s.pp = 0; }},
      {"1f1b", [](BaselineSpec& s) { s.pp = 0; }},
      {"recompute-all", [](BaselineSpec& s) { s.recompute = RecomputePolicy::Full; }},
      {"recompute-sqrt", [](BaselineSpec& s) { s.recompute = RecomputePolicy::Sqrt; }},
      {"offload-all", [](BaselineSpec& s) { s.offload = true; }},
      // Each weight is reduced and updated by itself: a bucket might be more than a device holds.
      {"lru", [](BaselineSpec& s) { s.virtualise = true, s.bucket = Bytes(1); }},
      {"harmony", [](BaselineSpec& s) { s.harmony_packs = true; }},
      {"single", [](BaselineSpec& s) { s.dp = 1; }},
  };
  return kNames;
}

int64_t number(std::string_view key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1 << 20)
    fail_input("{}={}: expected a whole number from 1", key, text);
  return value;
}

bool flag(std::string_view key, std::string_view text) {
  if (text == "on" || text == "true" || text == "1") return true;
  if (text == "off" || text == "false" || text == "0") return false;
  fail_input("{}={}: expected on or off", key, text);
}

RecomputePolicy policy(std::string_view text) {
  if (text == "none" || text == "off") return RecomputePolicy::None;
  if (text == "selective") return RecomputePolicy::Selective;
  if (text == "full" || text == "all" || text == "on") return RecomputePolicy::Full;
  if (text == "sqrt") return RecomputePolicy::Sqrt;
  fail_input("recompute={}: expected none, selective, full or sqrt", text);
}

using Setter = std::function<void(BaselineSpec&, std::string_view)>;

const std::map<std::string_view, Setter>& keys() {
  static const std::map<std::string_view, Setter> kKeys = {
      {"dp", [](BaselineSpec& s, auto v) { s.dp = number("dp", v); }},
      {"tp", [](BaselineSpec& s, auto v) { s.tp = number("tp", v); }},
      {"pp", [](BaselineSpec& s, auto v) { s.pp = number("pp", v); }},
      {"cp", [](BaselineSpec& s, auto v) { s.cp = number("cp", v); }},
      {"ep", [](BaselineSpec& s, auto v) { s.ep = number("ep", v); }},
      {"stripes", [](BaselineSpec& s, auto v) { s.stripes = number("stripes", v); }},
      {"stages", [](BaselineSpec& s, auto v) { s.pp = number("stages", v); }},
      {"interleave", [](BaselineSpec& s, auto v) { s.interleave = number("interleave", v); }},
      {"micro", [](BaselineSpec& s, auto v) { s.micro = number("micro", v); }},
      {"micro-batches",
       [](BaselineSpec& s, auto v) { s.micro_batches = number("micro-batches", v); }},
      {"stage", [](BaselineSpec& s, auto v) { s.zero = static_cast<int>(number("stage", v)); }},
      {"zero", [](BaselineSpec& s,
                  auto v) { s.zero = v == "0" ? 0 : static_cast<int>(number("zero", v)); }},
      {"recompute", [](BaselineSpec& s, auto v) { s.recompute = policy(v); }},
      {"sequence-parallel",
       [](BaselineSpec& s, auto v) { s.sequence_parallel = flag("sequence-parallel", v); }},
      {"offload", [](BaselineSpec& s, auto v) { s.offload = flag("offload", v); }},
      {"compress",
       [](BaselineSpec& s, auto v) {
         if (v != "8" && v != "4" && v != "2" && v != "off")
           fail_input("compress={}: expected 8, 4 or 2 bits, or off", v);
         s.compress = v == "off" ? 0 : static_cast<int>(number("compress", v));
       }},
      {"host-weights", [](BaselineSpec& s, auto v) { s.host_weights = flag("host-weights", v); }},
      {"host-update", [](BaselineSpec& s, auto v) { s.host_update = flag("host-update", v); }},
      {"packs", [](BaselineSpec& s, auto v) { s.packs = number("packs", v); }},
      {"mode",
       [](BaselineSpec& s, auto v) {
         if (v != "pp" && v != "dp") fail_input("mode={}: expected pp or dp", v);
         s.pp = v == "pp" ? 0 : 1;
       }},
      {"bucket", [](BaselineSpec& s, auto v) { s.bucket = parse_bytes(v); }},
      {"balance",
       [](BaselineSpec& s, auto v) {
         if (v != "speed" && v != "none") fail_input("balance={}: expected speed or none", v);
         s.balance = v == "speed";
       }},
      {"parts",
       [](BaselineSpec& s, auto v) {
         s.parts.clear();
         for (std::string_view item : split(v, ':'))
           s.parts.push_back(static_cast<int32_t>(number("parts", item)));
       }},
  };
  return kKeys;
}

std::string list_of(const auto& map) {
  std::string text;
  for (const auto& [name, value] : map) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace

std::vector<std::string_view> baseline_names() {
  std::vector<std::string_view> result;
  for (const auto& [name, defaults] : names()) result.push_back(name);
  return result;
}

BaselineSpec parse_baseline(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto known = names().find(name);
  if (known == names().end())
    fail_input("strategy \"{}\" is not known; there are {}", name, list_of(names()));
  BaselineSpec spec;
  spec.name = text;
  known->second(spec);
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      fail_input("strategy \"{}\": \"{}\" has no value; write key=value", text, item);
    const auto key = keys().find(item.substr(0, equals));
    if (key == keys().end())
      fail_input("strategy \"{}\": key \"{}\" is not known; there are {}", text,
                 item.substr(0, equals), list_of(keys()));
    try {
      key->second(spec, item.substr(equals + 1));
    } catch (const Error& error) {
      throw error.within(fmt::format("strategy \"{}\"", text));
    }
  }
  if (spec.offload && spec.compress > 0)
    fail_input("strategy \"{}\": saved tensors are offloaded or compressed, not both", text);
  if (spec.zero > 3) fail_input("strategy \"{}\": ZeRO stage {}, expected 0 to 3", text, spec.zero);
  return spec;
}

void resolve(BaselineSpec& spec, const Machine& machine, int64_t samples) {
  const auto devices = static_cast<int64_t>(machine.devices.size());
  const auto fail_here = [&](const std::string& why) {
    fail_input("strategy \"{}\": {}", spec.name, why);
  };
  if (spec.harmony_packs) {
    const BaselineSpec plain;
    if (spec.dp != plain.dp || spec.tp != plain.tp || spec.cp != plain.cp || spec.ep != plain.ep ||
        spec.zero != plain.zero || spec.offload || spec.compress > 0 ||
        spec.interleave != plain.interleave || spec.recompute != plain.recompute ||
        spec.host_weights || spec.host_update || spec.sequence_parallel ||
        spec.bucket != plain.bucket)
      fail_here("packs of layers have mode, packs, micro and micro-batches, and nothing else");
    // One replica of the pipeline through all devices, or all devices side by side.
    spec.dp = spec.pp == 1 ? devices : 1;
    spec.tp = 1;
  } else {
    if (spec.pp == 0) spec.pp = devices / (spec.tp * spec.cp * std::max<int64_t>(1, spec.dp));
    if (spec.pp == 0) spec.pp = 1;
    const int64_t model = spec.tp * spec.pp * spec.cp;
    const std::string more = spec.cp > 1 ? fmt::format(" x cp {}", spec.cp) : "";
    if (model > devices)
      fail_here(fmt::format("tp {} x pp {}{} needs {} devices, {} has {}", spec.tp, spec.pp, more,
                            model, machine.name, devices));
    if (spec.dp == 0) spec.dp = devices / model;
    if (spec.dp * model > devices)
      fail_here(fmt::format("dp {} x tp {} x pp {}{} needs {} devices, {} has {}", spec.dp, spec.tp,
                            spec.pp, more, spec.dp * model, machine.name, devices));
  }
  if (spec.balance && !spec.parts.empty()) fail_here("balance and parts say the same: keep one");
  if (!spec.parts.empty() && static_cast<int64_t>(spec.parts.size()) != spec.dp)
    fail_here(fmt::format("parts of {} replicas, there are {}", spec.parts.size(), spec.dp));
  if (spec.dp % spec.ep != 0)
    fail_here(
        fmt::format("the experts of {} replicas cannot be on {} of them each", spec.dp, spec.ep));
  if (spec.stripes > 0 && spec.cp == 1) fail_here("stripes are of split sequences: set cp");
  if ((spec.cp > 1 || spec.ep > 1) && spec.one_weird_trick)
    fail_here("neither sequences nor experts are split beside it");
  if (spec.interleave > 1 && spec.pp == 1) fail_here("interleave needs a pipeline: set pp");
  if (samples % spec.dp != 0 && spec.dp > samples)
    fail_here(
        fmt::format("a batch of {} samples cannot be split over {} replicas", samples, spec.dp));
  if (spec.micro_batches == 0) {
    if (spec.micro == 0) {
      const bool pipeline = spec.pp > 1 || spec.harmony_packs;
      spec.micro_batches = 1;
      if (pipeline) {
        // Enough to fill the pipeline, as far as the batch goes.
        const int64_t each = std::max<int64_t>(1, samples / spec.dp);
        const int64_t wanted = 4 * std::max<int64_t>(spec.pp, spec.harmony_packs ? devices : 1);
        for (int64_t m = 1; m <= std::min(each, wanted); ++m)
          if (each % m == 0 && (spec.interleave == 1 || m % spec.pp == 0)) spec.micro_batches = m;
      }
    } else {
      const int64_t per_step = spec.dp * spec.micro;
      if (samples % per_step != 0)
        fail_here(fmt::format("a batch of {} samples is not a multiple of dp {} x micro {}",
                              samples, spec.dp, spec.micro));
      spec.micro_batches = samples / per_step;
    }
  }
  if (spec.harmony_packs && samples % spec.micro_batches != 0)
    fail_here(
        fmt::format("a batch of {} samples cannot be cut into {} equal micro-batches; say "
                    "how many samples they have, with micro",
                    samples, spec.micro_batches));
  if (spec.micro_batches > std::max<int64_t>(1, samples))
    fail_here(fmt::format("a batch of {} samples cannot be cut into {} micro-batches", samples,
                          spec.micro_batches));
  // Of unequal ones the smallest.
  if (samples / spec.micro_batches < spec.dp)
    fail_here(fmt::format("a micro-batch of {} samples cannot be split over {} replicas",
                          samples / spec.micro_batches, spec.dp));
  spec.micro = samples / spec.micro_batches / spec.dp;
}

std::vector<std::string> usual_strategies(size_t devices) {
  if (devices == 1)
    return {"single",
            "single:recompute=full",
            "recompute-sqrt",
            "offload-all",
            "single:host-update=on",
            "single:host-weights=on,host-update=on,recompute=full",
            "lru"};
  std::vector<std::string> names = {"data-parallel", "zero:stage=1",   "zero:stage=2",
                                    "zero:stage=3",  "recompute-all",  "recompute-sqrt",
                                    "offload-all",   "one-weird-trick"};
  for (size_t tp = 2; tp <= std::min<size_t>(8, devices); tp *= 2)
    if (devices % tp == 0) names.push_back(fmt::format("megatron:tp={}", tp));
  for (size_t stages = 2; stages <= std::min<size_t>(8, devices); stages *= 2)
    if (devices % stages == 0) {
      names.push_back(fmt::format("gpipe:stages={}", stages));
      names.push_back(fmt::format("1f1b:stages={}", stages));
    }
  names.push_back("zero:stage=3,recompute=full,host-update=on");
  names.push_back("lru");
  return names;
}

}  // namespace windlass
