#include "windlass/run/price_cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <sys/stat.h>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kNow = 1'800'000'000;

class PriceCaching : public testing::Test {
 protected:
  PriceCaching() {
    std::string pattern = (fs::temp_directory_path() / "windlass-prices-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no scratch folder");
    folder_ = pattern;
    library_ = (folder_ / "library.so").string();
    put(library_, "code");
  }
  ~PriceCaching() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  static void put(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string get(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  PriceCache cache(int threads = 1, int devices = 2) const {
    return {(folder_ / "cache" / "windlass").string(), price_setting(threads, devices)};
  }
  void add(const std::vector<MeasuredKernel>& prices, int64_t now = kNow, double others = 0) {
    std::vector<std::string> notes;
    cache().add(prices, {library_}, others, now, notes);
    EXPECT_THAT(notes, testing::IsEmpty());
  }
  // What is read without a word.
  std::vector<MeasuredKernel> known(int64_t now = kNow) const {
    std::vector<std::string> notes;
    std::vector<MeasuredKernel> found;
    for (CachedPrice& price : cache().read(now, notes)) found.push_back(std::move(price.price));
    EXPECT_THAT(notes, testing::IsEmpty());
    return found;
  }
  // The note of a file that is not used.
  std::string refusal() const {
    std::vector<std::string> notes;
    EXPECT_TRUE(cache().read(kNow, notes).empty());
    EXPECT_EQ(notes.size(), 1u);
    return notes.empty() ? "" : notes[0];
  }

  const MeasuredKernel conv_ = {"Conv 0", 1000, 64}, norm_ = {"Norm 0", 20, 0};
  fs::path folder_;
  std::string library_;
};

TEST_F(PriceCaching, KeepsWhatWasMeasured) {
  EXPECT_TRUE(known().empty());
  add({norm_, conv_});
  EXPECT_EQ(known(), (std::vector<MeasuredKernel>{conv_, norm_}));
  // What is measured again counts, the rest stays.
  const MeasuredKernel again = {"Norm 0", 25, 8};
  add({again}, kNow + 5);
  EXPECT_EQ(known(kNow + 5), (std::vector<MeasuredKernel>{conv_, again}));
}

TEST_F(PriceCaching, OtherSettingsHaveTheirOwn) {
  add({conv_});
  std::vector<std::string> notes;
  EXPECT_TRUE(cache(2, 2).read(kNow, notes).empty());
  EXPECT_TRUE(cache(1, 1).read(kNow, notes).empty());
  EXPECT_TRUE(notes.empty());
  // One that lies in the place of another is not taken for it.
  fs::copy_file(cache().path(), cache(2, 2).path());
  EXPECT_TRUE(cache(2, 2).read(kNow, notes).empty());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("another host or setting"));
}

TEST_F(PriceCaching, OldPricesAndThoseOfTheFutureAreDropped) {
  add({conv_}, kNow);
  add({norm_}, kNow + 100);
  EXPECT_EQ(known(kNow + kMostPriceAge + 50), std::vector<MeasuredKernel>{norm_});
  EXPECT_TRUE(known(kNow - 10 * 24 * 3600).empty());
  add({}, kNow + kMostPriceAge + 50);
  EXPECT_THAT(get(cache().path()), testing::Not(HasSubstr("Conv 0")));
}

// For the next command, not for the next day.
TEST_F(PriceCaching, PricesMeasuredBesideOtherProgramsAreKeptBriefly) {
  add({conv_}, kNow, 0.4);
  add({norm_}, kNow, 0.04);
  EXPECT_EQ(known(kNow + kMostBusyPriceAge), (std::vector<MeasuredKernel>{conv_, norm_}));
  std::vector<std::string> notes;
  EXPECT_THAT(cache().read(kNow, notes),
              testing::ElementsAre(testing::Field(&CachedPrice::others_percent, 40),
                                   testing::Field(&CachedPrice::others_percent, 4)));
  EXPECT_EQ(known(kNow + kMostBusyPriceAge + 1), std::vector<MeasuredKernel>{norm_});
  add({conv_}, kNow + 1, 0);  // measured again when it was quiet
  EXPECT_EQ(known(kNow + kMostBusyPriceAge + 1), (std::vector<MeasuredKernel>{conv_, norm_}));
}

TEST_F(PriceCaching, AnotherLibraryMeansOtherPrices) {
  add({conv_});
  put(library_, "other code");
  EXPECT_THAT(refusal(), HasSubstr("libraries that are others now"));
  add({norm_});
  EXPECT_EQ(known(), std::vector<MeasuredKernel>{norm_});
  fs::remove(library_);
  EXPECT_THAT(refusal(), HasSubstr("libraries that are others now"));
}

TEST_F(PriceCaching, TooManyAreCutToTheNewest) {
  std::vector<MeasuredKernel> many;
  for (size_t i = 0; i < kMostPrices; ++i) many.push_back({fmt::format("Kernel {}", i), 1, 0});
  add(many);
  add({conv_}, kNow + 1);
  const std::vector<MeasuredKernel> found = known(kNow + 1);
  EXPECT_EQ(found.size(), kMostPrices);
  EXPECT_EQ(found[0], conv_);
}

TEST_F(PriceCaching, HostileFilesAreIgnoredAndReplaced) {
  add({conv_, norm_});
  const std::string good = get(cache().path());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not valid JSON"},
      {"\0\xff\xfe", ""},
      {"[]", "expected"},
      {"{}", "format"},
      {std::string(100'000, '['), ""},
      {good.substr(0, good.size() / 2), ""},
      {changed("windlass kernel prices", "windlass plan"), "\"format\""},
      {changed("\"version\": 2", "\"version\": 3"), "version"},
      {changed("\"version\": 2", "\"version\": 1"), "in another way"},
      {changed("\"time_ns\": 1000", "\"time_ns\": -1"), "time_ns"},
      {changed("\"time_ns\": 1000", "\"time_ns\": 1e300"), "time_ns"},
      {changed("\"workspace_bytes\": 64", "\"workspace_bytes\": 99999999999999999999"),
       "workspace_bytes"},
      {changed("\"kernel\": \"Norm 0\"", "\"kernel\": \"Conv 0\""), "twice"},
      {changed("\"kernel\": \"Norm 0\"", "\"kernel\": 7"), "kernel"},
      {changed("\"Norm 0\"", "\"" + std::string(5000, 'x') + "\""), "letters"},
      {changed("\"threads\": 1", "\"threads\": 1, \"more\": 1"), "more"},
      {changed("\"threads\": 1", "\"threads\": 7"), "another host or setting"},
      {std::string(static_cast<size_t>(kMostPriceBytes) + 1, ' '), "larger than"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    put(cache().path(), text);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(part), HasSubstr("measured anew")));
  }
  add({norm_});
  EXPECT_EQ(known(), std::vector<MeasuredKernel>{norm_});
}

// Any byte may be another one, or missing: read as something, or refused.
TEST_F(PriceCaching, RandomDamageIsSurvived) {
  add({conv_, norm_});
  const std::string good = get(cache().path());
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (int64_t n = rng.integer(1, 4); n > 0; --n) {
      const auto at = static_cast<size_t>(rng.integer(0, static_cast<int64_t>(text.size()) - 1));
      if (rng.chance(0.3))
        text.erase(at, static_cast<size_t>(rng.integer(1, 40)));
      else
        text[at] = static_cast<char>(rng.integer(0, 255));
      if (text.empty()) text = "{";
    }
    try {
      const PriceFile file = price_file_from_json(text, "x");
      EXPECT_EQ(price_file_from_json(price_file_to_json(file), "x"), file);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input) << error.message();
    }
  }
}

TEST_F(PriceCaching, WhatIsNoFileIsNotWaitedFor) {
  add({conv_});
  fs::remove(cache().path());
  ASSERT_EQ(mkfifo(cache().path().c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("is not a file"));
}

TEST_F(PriceCaching, AFolderThatCannotBeMadeIsTold) {
  put((folder_ / "cache").string(), "in the way");
  std::vector<std::string> notes;
  cache().add({conv_}, {library_}, 0, kNow, notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("not kept"));
}

TEST(PriceFolder, FollowsTheEnvironment) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string before = cache == nullptr ? "" : cache;
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(price_cache_folder(), "/somewhere/windlass");
  setenv("XDG_CACHE_HOME", "not/absolute", 1);
  EXPECT_THAT(price_cache_folder(), testing::Not(HasSubstr("not/absolute")));
  if (cache == nullptr)
    unsetenv("XDG_CACHE_HOME");
  else
    setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace windlass
