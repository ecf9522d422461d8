// Aligned text tables.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace windlass {

enum class Align { Left, Right };

// Columns are padded to their widest cell and separated by two spaces; no trailing blanks.
class Table {
 public:
  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}

  // Control characters are replaced, and cells cut to 2000 bytes.
  void add(std::vector<std::string> cells);
  std::string text(std::string_view indent = "") const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace windlass
