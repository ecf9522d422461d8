#include "windlass/run/event_file.h"

#include <filesystem>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

TEST(EventFile, ChecksumIsTheOneOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
}

// Bytes that python3-crcmod and protoc agree with.
TEST(EventFile, BeginsAsReadersExpect) {
  EXPECT_EQ(hex(event_record(version_event(1.5))),
            "1800000000000000a37f4b22"
            "09000000000000f83f1a0d627261696e2e4576656e743a32"
            "2a28646c");
}

// 09 double 1.5; 10 step 300 = ac 02; 2a summary of 13 bytes: 0a value of 11 bytes: 0a tag "loss",
// 15 float 2.
TEST(EventFile, NumbersAreNamed) {
  EXPECT_EQ(hex(scalar_event(1.5, 300, {{"loss", 2.0}})),
            "09000000000000f83f"
            "10ac02"
            "2a0d"
            "0a0b"
            "0a046c6f7373"
            "1500000040");
}

TEST(EventFile, FilesOfARunThatGoesOnLieBesideEachOther) {
  const std::string folder = fmt::format("{}events-{}", testing::TempDir(), getpid());
  for (int64_t run = 0; run < 2; ++run) EventFile(folder).add(run + 1, {{"loss", 1}});
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_NE(entry.path().string().find("tfevents"), std::string::npos);
    EXPECT_EQ(entry.file_size(), 40U + 16U + 9U + 2U + 15U);
    ++files;
  }
  EXPECT_EQ(files, 2U);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(EventFile("/proc/nowhere"), Error);
}

}  // namespace
}  // namespace windlass
