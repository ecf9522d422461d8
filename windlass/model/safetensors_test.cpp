#include "windlass/model/safetensors.h"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string length_of(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data) {
  return length_of(header.size()) + header + data;
}

Safetensors parse_text(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "x.safetensors");
}

std::string read_all(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_all(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class SafetensorsFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "windlass-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

TEST(Safetensors, ReadsWhatTheHeaderSays) {
  // Names come in any order; the values say which tensor is first.
  const std::string header =
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"__metadata__":{"format":"pt"}})";
  const Safetensors file = parse_text(file_of(header, std::string(10, 'v')));
  ASSERT_EQ(file.tensors.size(), 2u);
  const auto start = static_cast<int64_t>(8 + header.size());
  EXPECT_EQ(file.tensors[0].name, "a");
  EXPECT_EQ(file.tensors[0].type, (TensorType{DType::BF16, {}}));
  EXPECT_EQ(file.tensors[0].location.offset, start);
  EXPECT_EQ(file.tensors[1].name, "b");
  EXPECT_EQ(file.tensors[1].type, (TensorType{DType::F32, {2}}));
  EXPECT_EQ(file.tensors[1].location.offset, start + 2);
  EXPECT_EQ(file.tensors[1].location.bytes, 8);
  EXPECT_EQ(file.tensors[1].location.dtype, DType::F32);
  EXPECT_EQ(file.tensors[1].location.file, "x.safetensors");
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(Safetensors, EmptyTensorsShareAPlace) {
  const std::string header = R"({"a":{"dtype":"I8","shape":[0,3],"data_offsets":[0,0]},)"
                             R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("c":{"dtype":"BOOL","shape":[0],"data_offsets":[1,1]}}  )";
  EXPECT_EQ(parse_text(file_of(header, "x")).tensors.size(), 3u);
  EXPECT_TRUE(parse_text(file_of("{}", "")).tensors.empty());
}

struct Broken {
  const char* what;
  std::string file;
  const char* message;
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.what; }

class SafetensorsErrors : public testing::TestWithParam<Broken> {};

TEST_P(SafetensorsErrors, SayWhatIsWrong) {
  try {
    parse_text(GetParam().file);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::Internal);
    EXPECT_THAT(error.message(),
                AllOf(StartsWith("x.safetensors: "), HasSubstr(GetParam().message)));
  }
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                const std::string& data) {
  return file_of(R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
                     offsets + "}}",
                 data);
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsErrors,
    testing::Values(
        Broken{"empty", "", "0 bytes"}, Broken{"short", "abc", "3 bytes"},
        Broken{"huge header", length_of(~uint64_t{0}) + "{}", "at most"},
        Broken{"header beyond the file", length_of(100) + "{}", "cut off"},
        Broken{"no object", file_of("[1]", ""), "not an object"},
        Broken{"no JSON", file_of("{x", ""), "x.safetensors"},
        Broken{"twice", file_of(R"({"t":1,"t":1})", ""), "t"},
        Broken{"no entry", file_of(R"({"t":1})", ""), "tensor \"t\": is 1"},
        Broken{"unknown key",
               file_of(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"z":1}})", "1234"),
               "unknown key \"z\""},
        Broken{"no type", file_of(R"({"t":{"shape":[],"data_offsets":[0,4]}})", "1234"), "dtype"},
        Broken{"metadata", file_of(R"({"__metadata__":{"a":1}})", ""), "expected a text"},
        Broken{"deep", file_of("{\"a\":" + std::string(10000, '['), ""), "nested"}));

INSTANTIATE_TEST_SUITE_P(
    Tensors, SafetensorsErrors,
    testing::Values(Broken{"type", one("F8_E4M3", "[1]", "[0,1]", "x"), "F8_E4M3"},
                    Broken{"size", one("F32", "[2]", "[0,4]", "1234"), "takes 8 bytes"},
                    Broken{"negative", one("I8", "[-1]", "[0,1]", "x"), "whole numbers"},
                    Broken{"fraction", one("I8", "[1.0]", "[0,1]", "x"), "whole numbers"},
                    Broken{"overflow", one("F64", "[4294967296,4294967296]", "[0,0]", ""),
                           "tensor \"t\""},
                    Broken{"hidden overflow", one("F64", "[0,9223372036854775807,3]", "[0,0]", ""),
                           "tensor \"t\""},
                    Broken{"beyond 63 bits", one("I8", "[18446744073709551615]", "[0,1]", "x"),
                           "whole numbers"},
                    Broken{"cut off", one("F32", "[2]", "[0,8]", "1234"), "cut off"},
                    Broken{"backwards", one("I8", "[0]", "[1,0]", "x"), "1 to 0"},
                    Broken{"one offset", one("I8", "[0]", "[0]", ""), "begin and an end"},
                    Broken{"gap", one("I8", "[1]", "[1,2]", "xy"), "begins at 1"},
                    Broken{"rest", one("I8", "[1]", "[0,1]", "xyz"), "3 bytes follow"},
                    Broken{"overlap",
                           file_of(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                                   R"("b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}})",
                                   "xyz"),
                           "tensor \"b\" begins at 1, expected 2"}));

TEST_F(SafetensorsFiles, WritesTheBytesOfTheReferenceImplementation) {
  const std::string file = path("model.safetensors");
  SafetensorsWriter writer(file, {{"b", {DType::F32, {1, 2}}}, {"a", {DType::U8, {}}}},
                           {{"format", "pt"}});
  EXPECT_FALSE(fs::exists(file));
  const float values[] = {1, -2};
  writer.write(std::as_bytes(std::span(values)).first(3));
  writer.write(std::as_bytes(std::span(values)).subspan(3));
  writer.write(std::as_bytes(std::span("\x07", 1)));
  writer.finish();
  // Blanks pad the header to a multiple of 8.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0\x07", 9);
  EXPECT_EQ(read_all(file), length_of(padded.size()) + padded + data);

  const Safetensors again = read_safetensors(file);
  ASSERT_EQ(again.tensors.size(), 2u);
  EXPECT_EQ(again.tensors[0].type, (TensorType{DType::F32, {1, 2}}));
  EXPECT_EQ(again.metadata.at("format"), "pt");
}

TEST_F(SafetensorsFiles, NothingAppearsWithoutFinish) {
  const std::string file = path("model.safetensors");
  write_all(file, "old");
  { const SafetensorsWriter writer(file, {{"a", {DType::U8, {4}}}}); }
  EXPECT_EQ(read_all(file), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(SafetensorsFiles, AFullDiskLeavesTheOldFile) {
  const std::string file = path("model.safetensors");
  write_all(file, "old");
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = {4096, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    SafetensorsWriter writer(file, {{"a", {DType::U8, {100'000}}}});
    writer.write(std::vector<std::byte>(100'000));
    writer.finish();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Runtime);
    message = error.message();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, AllOf(HasSubstr("model.safetensors: writing failed"),
                             HasSubstr("that was there before is unchanged")));
  EXPECT_EQ(read_all(file), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(SafetensorsFiles, RefusesNamesThatCannotBeWritten) {
  const TensorType byte = {DType::U8, {1}};
  const std::string file = path("x");
  EXPECT_THROW(SafetensorsWriter(file, {{"a", byte}, {"a", byte}}), Error);
  EXPECT_THROW(SafetensorsWriter(file, {{"__metadata__", byte}}), Error);
  EXPECT_THROW(SafetensorsWriter(file, {{"\xff", byte}}), Error);
  EXPECT_THROW(SafetensorsWriter(path("no/such/folder"), {}), Error);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsFiles, IndexNamesTheFileOfEachTensor) {
  for (const char* name : {"1.safetensors", "2.safetensors"}) {
    SafetensorsWriter writer(path(name), {{"a", {DType::U8, {1}}}, {"b", {DType::U8, {1}}}});
    writer.write(std::as_bytes(std::span(name, 2)));
    writer.finish();
  }
  const std::string index = path("model.safetensors.index.json");
  write_all(index, R"({"metadata":{},"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  EXPECT_EQ(find_safetensors(folder_.string()), index);
  const Safetensors read = read_safetensors(index);
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].name, "b");
  EXPECT_EQ(read.tensors[0].location.file, path("1.safetensors"));
  EXPECT_EQ(read.tensors[1].location.file, path("2.safetensors"));

  const auto expect_error = [&](const char* text, const char* message) {
    write_all(index, text);
    try {
      read_safetensors(index);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr(message));
    }
  };
  expect_error(R"({"weight_map":{"c":"1.safetensors"}})", "tensor \"c\" should be in");
  expect_error(R"({"weight_map":{"a":"../1.safetensors"}})", "beside the index");
  expect_error(R"({"weight_map":{"a":"3.safetensors"}})", "3.safetensors: cannot open");
  expect_error(R"({"weight_map":[]})", "weight_map");
  expect_error("[]", "weight_map");
}

}  // namespace
}  // namespace windlass
