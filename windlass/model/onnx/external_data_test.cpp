// Weights in files beside the model.

#include <filesystem>
#include <fstream>

#include "windlass/model/onnx/import_testing.h"

namespace windlass {
namespace {

using namespace proto;
using testing::HasSubstr;
namespace fs = std::filesystem;

using Entries = std::vector<std::pair<std::string, std::string>>;

// A folder that lives as long as the test.
class ExternalData : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(testing::TempDir()) /
        (std::string("windlass_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  // y = x w with w [2, 2] in another file.
  static std::string file(const Entries& entries) {
    return proto::model(input("x", {3, 2}) + output("y", {3, 2}) +
                        initializer(external_tensor("w", {2, 2}, entries)) +
                        node("MatMul", {"x", "w"}, {"y"}));
  }
  Model load(const Entries& entries) {
    return import_onnx(file(entries), "m.onnx", folder_.string());
  }
  std::string error(const Entries& entries) {
    return import_error(file(entries), ErrorKind::Input, {}, folder_.string());
  }

  fs::path folder_;
};

const std::string kValues = raw(std::vector<float>{1, 2, 3, 4});

TEST_F(ExternalData, IsLocated) {
  write("w.bin", "12345678" + kValues);
  const Model model = load({{"location", "w.bin"}, {"offset", "8"}, {"length", "16"}});
  ASSERT_EQ(model.weights.size(), 1u);
  const WeightLocation& location = model.weights.begin()->second;
  EXPECT_EQ(location.file, (folder_ / "w.bin").string());
  EXPECT_EQ(location.offset, 8);
  EXPECT_EQ(location.bytes, 16);
  EXPECT_TRUE(location.value.empty());
}

TEST_F(ExternalData, NeedsNeitherOffsetNorLength) {
  write("sub/w", kValues);
  const Model model = load({{"location", "sub/w"}});
  EXPECT_EQ(model.weights.begin()->second.offset, 0);
  EXPECT_EQ(model.weights.begin()->second.bytes, 16);
}

TEST_F(ExternalData, Missing) {
  EXPECT_THAT(
      error({{"location", "w.bin"}}),
      HasSubstr("tensor \"w\": external data " + (folder_ / "w.bin").string() + " cannot be read"));
  EXPECT_THAT(error({{"offset", "0"}}), HasSubstr("names no file"));
}

TEST_F(ExternalData, TooShort) {
  write("w.bin", kValues.substr(0, 15));
  EXPECT_THAT(error({{"location", "w.bin"}}), HasSubstr("has 15 bytes, 16 are needed"));
  write("w.bin", kValues);
  EXPECT_THAT(error({{"location", "w.bin"}, {"offset", "4"}}), HasSubstr("20 are needed"));
  EXPECT_THAT(error({{"location", "w.bin"}, {"length", "12"}}),
              HasSubstr("external data has 12 bytes, fp32[2, 2] needs 16"));
}

TEST_F(ExternalData, OutsideOfTheFolder) {
  const fs::path outside = folder_.parent_path() / (folder_.filename().string() + ".outside");
  std::ofstream(outside, std::ios::binary) << kValues;
  for (const std::string& location : {"../" + outside.filename().string(), outside.string(),
                                      "sub/../../" + outside.filename().string()})
    EXPECT_THAT(error({{"location", location}}), HasSubstr("outside of the model's folder"));
  fs::remove(outside);
}

TEST_F(ExternalData, DamagedNumbers) {
  write("w.bin", kValues);
  for (const char* offset : {"-4", "4x", "", "99999999999999999999"})
    EXPECT_THAT(error({{"location", "w.bin"}, {"offset", offset}}), HasSubstr("expected a number"));
  EXPECT_THAT(error({{"location", "w.bin"}, {"offset", "9223372036854775807"}}),
              HasSubstr("overflows"));
}

}  // namespace
}  // namespace windlass
