// Packs of layers in a plan file.
#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"
#include "windlass/plan/plan.h"

namespace windlass {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxLayers = 1 << 14;
constexpr int64_t kMaxDevices = 1 << 20;
constexpr int64_t kMaxMicroBatch = 1 << 20;
constexpr std::array kActions = {PackAction::Recompute, PackAction::Keep, PackAction::Offload};

ordered_json ranges_of(const std::vector<Pack>& packs) {
  ordered_json list = ordered_json::array();
  for (const Pack& pack : packs) list.push_back({pack.first, pack.last});
  return list;
}

std::vector<Pack> read_ranges(const json& value, JsonObject& object, const std::string& key) {
  if (!object.has(key)) fail_input("{}: \"{}\" is missing", object.where(), key);
  const json& list = value.at(key);
  const auto place = fmt::format("{}.{}", object.where(), key);
  if (!list.is_array() || list.size() > static_cast<size_t>(kMaxLayers))
    fail_input("{} is {}, expected a list of at most {} packs", place, show_json(list), kMaxLayers);
  std::vector<Pack> packs;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto layer = [&](const json& number) {
      const bool fits =
          number.is_number_unsigned() && number.get<uint64_t>() < static_cast<uint64_t>(kMaxLayers);
      if (!fits)
        fail_input("{}[{}]: {} is no layer, expected 0 to {}", place, i, show_json(number),
                   kMaxLayers - 1);
      return static_cast<int32_t>(number.get<uint64_t>());
    };
    const json& entry = list[i];
    if (!entry.is_array() || entry.size() != 2)
      fail_input("{}[{}] is {}, expected [first, last]", place, i, show_json(entry));
    packs.push_back({layer(entry[0]), layer(entry[1])});
  }
  return packs;
}

PackAction read_action(JsonObject& object) {
  const std::string text = object.text("action");
  std::vector<std::string> known;
  for (PackAction action : kActions) {
    if (pack_action_name(action) == text) return action;
    known.emplace_back(pack_action_name(action));
  }
  fail_input("{}: \"action\" is \"{}\"{}; expected one of {}", object.where(), printable(text, 60),
             did_you_mean(text, known), join(known, ", "));
}

}  // namespace

ordered_json packs_to_json(const PackStrategy& packs) {
  ordered_json backward = ordered_json::array();
  const auto same = [&](size_t a, size_t b) {
    return packs.actions[a] == packs.actions[b] &&
           packs.stash_on_host[a] == packs.stash_on_host[b] &&
           packs.device_update[a] == packs.device_update[b] &&
           packs.keep_shares[a] == packs.keep_shares[b];
  };
  for (size_t p = 0; p < packs.backward_packs.size();) {
    size_t end = p;
    while (end < packs.backward_packs.size() && same(p, end)) ++end;
    backward.push_back({{"first", p},
                        {"count", end - p},
                        {"action", pack_action_name(packs.actions[p])},
                        {"input_on_host", packs.stash_on_host[p] != 0},
                        {"device_update", packs.device_update[p] != 0},
                        {"keep_shares", packs.keep_shares[p] != 0}});
    p = end;
  }
  return {{"mode", packs.depth == 1 ? "dp" : "pp"},
          {"replicas", packs.replicas},
          {"depth", packs.depth},
          {"forward_microbatch", packs.forward_microbatch},
          {"backward_microbatch", packs.backward_microbatch},
          {"forward_packs", ranges_of(packs.forward_packs)},
          {"backward_packs", ranges_of(packs.backward_packs)},
          {"backward", backward},
          {"streams", packs.streams},
          {"piece_bytes", packs.piece_bytes},
          {"state_bytes", packs.state_bytes}};
}

PackStrategy packs_from_json(const json& value, const std::string& where) {
  JsonObject object(value, where);
  for (const char* key :
       {"mode", "replicas", "depth", "forward_microbatch", "backward_microbatch", "forward_packs",
        "backward_packs", "backward", "streams", "piece_bytes", "state_bytes"})
    object.has(key);
  PackStrategy packs;
  packs.replicas = static_cast<int32_t>(object.integer("replicas", 1, kMaxDevices));
  packs.depth = static_cast<int32_t>(object.integer("depth", 1, kMaxDevices));
  const std::string mode = object.text("mode");
  const std::string expected = packs.depth == 1 ? "dp" : "pp";
  if (mode != expected)
    fail_input("{}: \"mode\" is \"{}\", expected \"{}\" with \"depth\" {}", where,
               printable(mode, 60), expected, packs.depth);
  packs.forward_microbatch = object.integer("forward_microbatch", 1, kMaxMicroBatch);
  packs.backward_microbatch = object.integer("backward_microbatch", 1, kMaxMicroBatch);
  packs.forward_packs = read_ranges(value, object, "forward_packs");
  packs.backward_packs = read_ranges(value, object, "backward_packs");
  const auto count = static_cast<int64_t>(packs.backward_packs.size());
  int64_t next = 0;
  for (JsonObject& run : object.objects("backward")) {
    for (const char* key :
         {"first", "count", "action", "input_on_host", "device_update", "keep_shares"})
      run.has(key);
    const int64_t first = run.integer("first", 0, count);
    if (first != next)
      fail_input("{}: \"first\" is {}, expected {}: runs follow each other without gaps",
                 run.where(), first, next);
    const auto length = static_cast<size_t>(run.integer("count", 1, count - first));
    packs.actions.insert(packs.actions.end(), length, read_action(run));
    packs.stash_on_host.insert(packs.stash_on_host.end(), length,
                               run.boolean("input_on_host", true) ? 1 : 0);
    packs.device_update.insert(packs.device_update.end(), length,
                               run.boolean("device_update", false) ? 1 : 0);
    packs.keep_shares.insert(packs.keep_shares.end(), length,
                             run.boolean("keep_shares", false) ? 1 : 0);
    run.finish();
    next = first + static_cast<int64_t>(length);
  }
  if (next != count)
    fail_input("{}: \"backward\" covers {} packs, \"backward_packs\" {}", where, next, count);
  packs.streams = object.boolean("streams", true);
  packs.piece_bytes = object.integer("piece_bytes", 1, INT64_MAX);
  packs.state_bytes = object.integer("state_bytes", 0, INT64_MAX);
  object.finish();
  return packs;
}

}  // namespace windlass
