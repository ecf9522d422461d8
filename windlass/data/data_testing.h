// What the tests of data sets share: files that are made and go away.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdlib.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/data/dataset.h"

namespace windlass {

class DataFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "windlass-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  std::filesystem::path folder_;
};

inline std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

inline std::vector<int64_t> integers(const Dataset& data, int64_t sample, size_t slot) {
  std::vector<int64_t> values(static_cast<size_t>(slot_elements(data.slots()[slot])));
  data.fill(sample, slot, std::span(values));
  return values;
}

inline std::vector<float> floats(const Dataset& data, int64_t sample, size_t slot) {
  std::vector<float> values(static_cast<size_t>(slot_elements(data.slots()[slot])));
  data.fill(sample, slot, std::span(values));
  return values;
}

// Expects an Error{Input} whose message has `part` in it.
template <typename Action>
void expect_refused(Action&& action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "no error, expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input) << error.message();
    EXPECT_THAT(error.message(), testing::HasSubstr(part));
  }
}

}  // namespace windlass
