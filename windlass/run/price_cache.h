// Prices of kernels that were measured on this host before, kept in a file, so that the next plan
// need not measure them again.
//
// A file has the prices of one setting: the version of windlass, the processor, how many threads a
// device has and how many devices compute at once. It names the libraries whose kernels were
// measured, and is good only as long as these files are what they were. What cannot be read, is of
// another setting or too old is measured anew.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/plan/plan.h"

namespace windlass {

// What prices depend on, beside the kernel itself.
struct PriceSetting {
  std::string windlass;     // its version
  std::string processor;    // "model name", and how many there are
  std::string environment;  // where libraries are looked for
  int64_t threads = 1, devices = 1;
  bool operator==(const PriceSetting&) const = default;
};
// Of this host.
PriceSetting price_setting(int threads, int devices);

// A library as it lay on the disk.
struct LibraryFile {
  std::string path;
  int64_t bytes = 0;
  int64_t modified = 0;  // nanoseconds since 1970
  bool operator==(const LibraryFile&) const = default;
};
// Paths that are no files are left out.
std::vector<LibraryFile> look_at_libraries(const std::vector<std::string>& paths);

struct CachedPrice {
  MeasuredKernel price;
  int64_t time = 0;            // when it was measured: seconds since 1970
  int64_t others_percent = 0;  // of the processors, what other programs took meanwhile
  bool operator==(const CachedPrice&) const = default;
};

struct PriceFile {
  PriceSetting setting;
  std::vector<LibraryFile> libraries;
  std::vector<CachedPrice> prices;  // ascending by kernel, each once
  bool operator==(const PriceFile&) const = default;
};
// Bounds of a file. Prices that were measured longer ago are not used any more.
inline constexpr int64_t kMostPriceBytes = int64_t{16} << 20;
inline constexpr size_t kMostPrices = 20'000;
inline constexpr int64_t kMostPriceAge = int64_t{30} * 24 * 3600;
// Of those that were measured beside other programs (OtherLoad::noticed): a machine that is busy
// now is likely to be so for a while, but not for days.
inline constexpr int64_t kMostBusyPriceAge = 10 * 60;

// Throws Error{Input} for what is not such a file, begins with `where`.
PriceFile price_file_from_json(std::string_view text, const std::string& where);
std::string price_file_to_json(const PriceFile& file);

// The folder of windlass in the user's cache ($XDG_CACHE_HOME, or ~/.cache); empty if there is
// none.
std::string price_cache_folder();

// The file of a setting in a folder. Neither call throws: what went wrong is added to `notes`.
// `now` is in seconds since 1970.
class PriceCache {
 public:
  PriceCache(const std::string& folder, PriceSetting setting);

  const std::string& path() const { return path_; }
  std::vector<CachedPrice> read(int64_t now, std::vector<std::string>& notes) const;
  // Adds prices measured now with these libraries, beside other programs that took so much of the
  // host, to those that are there. Makes the folder if it is missing. The newest are kept if there
  // are too many.
  void add(const std::vector<MeasuredKernel>& measured, const std::vector<std::string>& libraries,
           double others, int64_t now, std::vector<std::string>& notes) const;

 private:
  // What is there, if it is good.
  PriceFile load(int64_t now, std::vector<std::string>& notes) const;

  const PriceSetting setting_;
  std::string path_;
};

}  // namespace windlass
