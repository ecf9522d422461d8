#include "windlass/run/price_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sys/stat.h>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"
#include "windlass/base/version.h"
#include "windlass/run/other_load.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kPriceFormat = "windlass kernel prices";
// Another one as well where kernels are measured in another way.
constexpr int64_t kPriceVersion = 2;
constexpr size_t kLongestText = 4096;  // of a kernel's name, or a path
constexpr int64_t kDay = 24 * 3600;

std::string bounded_text(JsonObject& object, const std::string& key) {
  std::string text = object.text(key);
  if (text.size() > kLongestText)
    fail_input("{}: \"{}\" has {} letters, at most {} are read", object.where(), key, text.size(),
               kLongestText);
  return text;
}

std::string environment_value(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Of the first processor; all of a host are alike, or nearly so.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown";
}

uint64_t hash_of(const PriceSetting& setting) {
  return Hasher()
      .add(setting.windlass)
      .add(setting.processor)
      .add(setting.environment)
      .add(setting.threads)
      .add(setting.devices)
      .result();
}

}  // namespace

PriceSetting price_setting(int threads, int devices) {
  std::string environment = environment_value("LD_LIBRARY_PATH");
  if (environment.size() > kLongestText)
    environment = fmt::format("{:016x}", Hasher().add(environment).result());
  return {.windlass = std::string(kVersion),
          .processor = fmt::format("{}, {}", printable(processor_name(), 200),
                                   std::thread::hardware_concurrency()),
          .environment = printable(environment, kLongestText),
          .threads = threads,
          .devices = devices};
}

std::vector<LibraryFile> look_at_libraries(const std::vector<std::string>& paths) {
  std::vector<LibraryFile> files;
  for (const std::string& path : paths) {
    struct stat found {};
    if (stat(path.c_str(), &found) != 0) continue;
    files.push_back({path, int64_t{found.st_size},
                     int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec});
  }
  std::ranges::sort(files, {}, &LibraryFile::path);
  return files;
}

PriceFile price_file_from_json(std::string_view text, const std::string& where) try {
  const nlohmann::json document = parse_json(text);
  JsonObject top(document, "");
  if (const std::string format = top.text("format"); format != kPriceFormat)
    fail_input("\"format\" is \"{}\", expected \"{}\"", printable(format, 60), kPriceFormat);
  if (top.integer("version", 1, kPriceVersion) < kPriceVersion)
    fail_input("kernels were measured in another way then (\"version\" is not {})", kPriceVersion);
  constexpr int64_t kMostCount = 1 << 20, kMostTime = int64_t{1} << 50;
  PriceFile file;
  file.setting = {.windlass = bounded_text(top, "windlass"),
                  .processor = bounded_text(top, "processor"),
                  .environment = bounded_text(top, "environment"),
                  .threads = top.integer("threads", 1, kMostCount),
                  .devices = top.integer("devices", 1, kMostCount)};
  for (JsonObject& entry : top.objects("libraries")) {
    file.libraries.push_back(
        {.path = bounded_text(entry, "path"),
         .bytes = entry.integer("bytes", 0, int64_t{1} << 60),
         .modified = entry.integer("modified_ns", -(int64_t{1} << 62), int64_t{1} << 62)});
    entry.finish();
  }
  std::map<std::string, CachedPrice> prices;
  for (JsonObject& entry : top.objects("prices")) {
    CachedPrice price = {{.kernel = bounded_text(entry, "kernel"),
                          .time_ns = entry.integer("time_ns", 1, kMostTime),
                          .workspace_bytes = entry.integer("workspace_bytes", 0, int64_t{1} << 60)},
                         entry.integer("measured_s", 0, kMostTime),
                         entry.integer("others_percent", 0, 0, 100)};
    entry.finish();
    const std::string kernel = price.price.kernel;
    if (!prices.try_emplace(kernel, std::move(price)).second)
      fail_input("{}: \"{}\" is there twice", entry.where(), printable(kernel, 200));
    if (prices.size() > kMostPrices) fail_input("more than {} prices", kMostPrices);
  }
  top.finish();
  for (auto& [kernel, price] : prices) file.prices.push_back(std::move(price));
  return file;
} catch (const Error& error) {
  throw error.within(where);
}

std::string price_file_to_json(const PriceFile& file) {
  ordered_json json = {{"format", kPriceFormat},
                       {"version", kPriceVersion},
                       {"windlass", file.setting.windlass},
                       {"processor", file.setting.processor},
                       {"environment", file.setting.environment},
                       {"threads", file.setting.threads},
                       {"devices", file.setting.devices},
                       {"libraries", ordered_json::array()},
                       {"prices", ordered_json::array()}};
  for (const LibraryFile& library : file.libraries)
    json["libraries"].push_back(
        {{"path", library.path}, {"bytes", library.bytes}, {"modified_ns", library.modified}});
  for (const CachedPrice& entry : file.prices) {
    json["prices"].push_back({{"kernel", entry.price.kernel},
                              {"time_ns", entry.price.time_ns},
                              {"workspace_bytes", entry.price.workspace_bytes},
                              {"measured_s", entry.time}});
    if (entry.others_percent > 0) json["prices"].back()["others_percent"] = entry.others_percent;
  }
  return json.dump(0, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string price_cache_folder() {
  // The rules for such folders ignore paths that are not absolute.
  if (const std::string cache = environment_value("XDG_CACHE_HOME"); cache.starts_with('/'))
    return cache + "/windlass";
  if (const std::string home = environment_value("HOME"); home.starts_with('/'))
    return home + "/.cache/windlass";
  return "";
}

PriceCache::PriceCache(const std::string& folder, PriceSetting setting)
    : setting_(std::move(setting)),
      path_(fmt::format("{}/kernels-{:016x}.json", folder, hash_of(setting_))) {}

PriceFile PriceCache::load(int64_t now, std::vector<std::string>& notes) const {
  PriceFile none = {.setting = setting_, .libraries = {}, .prices = {}};
  std::error_code failed;
  const fs::file_status status = fs::status(path_, failed);
  if (!fs::exists(status)) return none;
  try {
    // A pipe would be waited for.
    if (!fs::is_regular_file(status)) fail_input("{}: is not a file", path_);
    const auto bytes = fs::file_size(path_, failed);
    if (failed) fail_input("{}: cannot be read: {}", path_, failed.message());
    if (bytes > static_cast<uintmax_t>(kMostPriceBytes))
      fail_input("{}: is larger than {} bytes", path_, kMostPriceBytes);
    std::string text(bytes, '\0');
    std::ifstream stream(path_, std::ios::binary);
    if (!stream.read(text.data(), static_cast<std::streamsize>(bytes)))
      fail_input("{}: cannot be read", path_);
    PriceFile file = price_file_from_json(text, path_);
    if (file.setting != setting_) fail_input("{}: is of another host or setting", path_);
    std::vector<std::string> paths;
    for (const LibraryFile& library : file.libraries) paths.push_back(library.path);
    if (file.libraries.empty() || look_at_libraries(paths) != file.libraries)
      fail_input("{}: was measured with libraries that are others now", path_);
    std::erase_if(file.prices, [&](const CachedPrice& price) {
      const bool busy = static_cast<double>(price.others_percent) >= 100 * OtherLoad::kNoticed;
      return price.time < now - (busy ? kMostBusyPriceAge : kMostPriceAge) ||
             price.time > now + kDay;
    });
    return file;
  } catch (const Error& error) {
    notes.push_back(fmt::format("{}; kernels are measured anew", error.message()));
  } catch (const std::exception& error) {
    notes.push_back(fmt::format("{}: {}; kernels are measured anew", path_, error.what()));
  }
  return none;
}

std::vector<CachedPrice> PriceCache::read(int64_t now, std::vector<std::string>& notes) const {
  return load(now, notes).prices;
}

void PriceCache::add(const std::vector<MeasuredKernel>& measured,
                     const std::vector<std::string>& libraries, double others, int64_t now,
                     std::vector<std::string>& notes) const try {
  // Somebody else may have written since it was read. What is no good has been told of then.
  std::vector<std::string> told;
  PriceFile file = load(now, told);
  file.libraries = look_at_libraries(libraries);
  const auto percent = static_cast<int64_t>(std::lround(100 * std::clamp(others, 0.0, 1.0)));
  std::map<std::string, CachedPrice> prices;
  for (CachedPrice& price : file.prices) prices[price.price.kernel] = std::move(price);
  for (const MeasuredKernel& kernel : measured)
    if (kernel.kernel.size() <= kLongestText) prices[kernel.kernel] = {kernel, now, percent};
  file.prices.clear();
  for (auto& [kernel, price] : prices) file.prices.push_back(std::move(price));
  if (file.prices.size() > kMostPrices) {
    std::ranges::stable_sort(file.prices, std::greater<>{}, &CachedPrice::time);
    file.prices.resize(kMostPrices);
    std::ranges::sort(file.prices, {}, [](const CachedPrice& price) { return price.price.kernel; });
  }
  const std::string text = price_file_to_json(file);
  if (text.size() > static_cast<size_t>(kMostPriceBytes)) return;
  fs::create_directories(fs::path(path_).parent_path());
  AtomicFile written(path_);
  written.write(text);
  written.commit();
} catch (const std::exception& error) {
  notes.push_back(fmt::format("prices of kernels are not kept: {}", error.what()));
}

}  // namespace windlass
