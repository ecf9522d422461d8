#include "windlass/cost/layer_profile.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
// Together these keep every sum over a chain below 2^62.
constexpr int64_t kMaxLayers = 1 << 14;
constexpr int64_t kMaxLayerBytes = int64_t{1} << 45;
constexpr int64_t kMaxMicroBatch = 1 << 20;
constexpr double kMaxSeconds = 1e6;

const json& require(const json& document, JsonObject& object, const char* key) {
  if (!object.has(key)) {
    object.finish();
    fail_input("\"{}\" is missing", key);
  }
  return document.at(key);
}

int64_t whole(const json& value, const std::string& where, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  const int64_t number = fits ? value.get<int64_t>() : least - 1;
  if (!fits || number < least || number > most)
    fail_input("{} is {}, expected a whole number from {} to {}", where, show_json(value), least,
               most);
  return number;
}

double seconds(const json& value, const std::string& where) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= 0 && number <= kMaxSeconds))
    fail_input("{} is {}, expected seconds from 0 to {}", where, show_json(value), kMaxSeconds);
  return number;
}

const json& list(const json& value, const std::string& where, size_t length) {
  if (!value.is_array()) fail_input("{} is {}, expected a list", where, show_json(value));
  if (value.size() != length)
    fail_input("{} has {} entries, expected one for each of the {} layers", where, value.size(),
               length);
  return value;
}

std::vector<int64_t> byte_list(const json& value, const std::string& where, size_t length) {
  std::vector<int64_t> result;
  for (const json& entry : list(value, where, length))
    result.push_back(whole(entry, fmt::format("{}[{}]", where, result.size()), 0, kMaxLayerBytes));
  return result;
}

std::vector<double> seconds_list(const json& value, const std::string& where, size_t length) {
  std::vector<double> result;
  for (const json& entry : list(value, where, length))
    result.push_back(seconds(entry, fmt::format("{}[{}]", where, result.size())));
  return result;
}

std::vector<int64_t> size_list(const json& value, const std::string& where) {
  if (!value.is_array() || value.empty())
    fail_input("{} is {}, expected a list of micro-batch sizes", where, show_json(value));
  std::vector<int64_t> result;
  for (const json& entry : value) {
    const int64_t size =
        whole(entry, fmt::format("{}[{}]", where, result.size()), 1, kMaxMicroBatch);
    if (!result.empty() && size <= result.back())
      fail_input("{}[{}] is {}, expected more than the {} before it: sizes ascend", where,
                 result.size(), size, result.back());
    result.push_back(size);
  }
  return result;
}

// The entry of one micro-batch size in a table {"1": [...], "2": [...]}.
const json& row(const json& table, const char* key, int64_t size) {
  const auto found = table.find(std::to_string(size));
  if (found == table.end())
    fail_input("\"{}\" has no entry for micro-batch size \"{}\", which the sizes list", key, size);
  return *found;
}

const json& table(const json& value, const char* key, size_t sizes) {
  if (!value.is_object())
    fail_input("\"{}\" is {}, expected an object with a list for each micro-batch size", key,
               show_json(value));
  if (value.size() != sizes)
    fail_input("\"{}\" has {} entries, expected one for each of the {} micro-batch sizes", key,
               value.size(), sizes);
  return value;
}

PassProfile read_pass(const json& document, JsonObject& object, size_t layers, const char* sizes,
                      const char* times, const char* peaks) {
  PassProfile pass;
  pass.sizes = size_list(require(document, object, sizes), fmt::format("\"{}\"", sizes));
  const json& time = table(require(document, object, times), times, pass.sizes.size());
  const json& peak = table(require(document, object, peaks), peaks, pass.sizes.size());
  for (int64_t size : pass.sizes) {
    PassCosts& costs = pass.at_size.emplace_back();
    costs.seconds =
        seconds_list(row(time, times, size), fmt::format("\"{}\".{}", times, size), layers);
    costs.peak = byte_list(row(peak, peaks, size), fmt::format("\"{}\".{}", peaks, size), layers);
  }
  return pass;
}

LayerProfile read_profile(std::string_view text) {
  const json document = parse_json(text);
  JsonObject object(document, "");
  for (const char* key : {"source", "R", "u_fwd", "u_bwd", "W", "B", "K", "X_bytes_u1", "upd_cpu_s",
                          "fwd_s", "bwd_incl_recompute_s", "fwd_mem", "bwd_mem"})
    object.has(key);
  object.finish();
  LayerProfile profile;
  profile.source = object.text("source", "");
  const auto layers = static_cast<size_t>(object.integer("R", 2, kMaxLayers));
  const auto bytes = [&](const char* key) {
    return byte_list(require(document, object, key), fmt::format("\"{}\"", key), layers);
  };
  profile.weights = bytes("W");
  profile.buffers = bytes("B");
  profile.optimizer = bytes("K");
  profile.input = bytes("X_bytes_u1");
  profile.host_update =
      seconds_list(require(document, object, "upd_cpu_s"), "\"upd_cpu_s\"", layers);
  profile.forward = read_pass(document, object, layers, "u_fwd", "fwd_s", "fwd_mem");
  profile.backward =
      read_pass(document, object, layers, "u_bwd", "bwd_incl_recompute_s", "bwd_mem");
  const int64_t largest = std::max(profile.forward.sizes.back(), profile.backward.sizes.back());
  for (size_t l = 0; l < layers; ++l)
    if (profile.input[l] > kMaxLayerBytes / largest)
      fail_input("\"X_bytes_u1\"[{}] is {}: at micro-batch size {} that is more than {} bytes", l,
                 profile.input[l], largest, kMaxLayerBytes);
  return profile;
}

// floor(low + (high - low) * step / width) for 0 <= step <= width, without overflow.
int64_t between(int64_t low, int64_t high, int64_t step, int64_t width) {
  if (high < low) return between(high, low, width - step, width);
  const int64_t whole_widths = (high - low) / width, rest = (high - low) % width;
  return low + whole_widths * step + rest * step / width;
}

}  // namespace

PassCosts PassProfile::at(int64_t micro_batch) const {
  if (!covers(micro_batch))
    fail_input("micro-batch size {} was not measured: the profile knows {} to {}", micro_batch,
               sizes.front(), sizes.back());
  const auto above =
      static_cast<size_t>(std::ranges::lower_bound(sizes, micro_batch) - sizes.begin());
  if (sizes[above] == micro_batch) return at_size[above];
  const PassCosts &low = at_size[above - 1], &high = at_size[above];
  const int64_t step = micro_batch - sizes[above - 1];
  const int64_t width = sizes[above] - sizes[above - 1];
  PassCosts result;
  for (size_t l = 0; l < low.seconds.size(); ++l) {
    const double share = static_cast<double>(step) / static_cast<double>(width);
    result.seconds.push_back(low.seconds[l] + share * (high.seconds[l] - low.seconds[l]));
    result.peak.push_back(between(low.peak[l], high.peak[l], step, width));
  }
  return result;
}

uint64_t fingerprint(const LayerProfile& profile) {
  Hasher hasher;
  const auto add = [&](const auto& list) {
    hasher.add(static_cast<uint64_t>(list.size()));
    for (const auto& value : list) hasher.add(value);
  };
  for (const auto* list : {&profile.weights, &profile.buffers, &profile.optimizer, &profile.input})
    add(*list);
  add(profile.host_update);
  if (profile.tied > 0) hasher.add(profile.tied);
  for (const PassProfile* pass : {&profile.forward, &profile.backward}) {
    add(pass->sizes);
    for (const PassCosts& costs : pass->at_size) {
      add(costs.seconds);
      add(costs.peak);
    }
  }
  return hasher.result();
}

bool is_layer_profile(std::string_view text) {
  try {
    const json document = parse_json(text, true);
    return document.is_object() &&
           (document.contains("fwd_s") || document.contains("bwd_incl_recompute_s"));
  } catch (const Error&) {
    return false;
  }
}

LayerProfile layer_profile_from_json(std::string_view text, const std::string& where) {
  try {
    return read_profile(text);
  } catch (const Error& error) {
    throw error.within(where);
  }
}

LayerProfile load_layer_profile(const std::string& path) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  std::ifstream stream(path, std::ios::binary);
  if (failed || !stream) fail_input("{}: cannot be read", printable(path, 200));
  if (size > static_cast<uintmax_t>(kMaxFileBytes))
    fail_input("{}: {} bytes are too many for a layer profile", printable(path, 200), size);
  return layer_profile_from_json(std::string{std::istreambuf_iterator<char>(stream), {}}, path);
}

}  // namespace windlass
