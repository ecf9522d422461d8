#include "windlass/base/table.h"

#include <algorithm>

#include "windlass/base/text.h"

namespace windlass {

void Table::add(std::vector<std::string> cells) {
  // Cells name things out of files.
  for (std::string& cell : cells) {
    cell = printable(cell, 2000);
    std::replace(cell.begin(), cell.end(), '\n', '?');
  }
  rows_.push_back(std::move(cells));
}

std::string Table::text(std::string_view indent) const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string result;
  for (const auto& row : rows_) {
    std::string line(indent);
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      if (c > 0) line += "  ";
      line += columns_[c] == Align::Right ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + '\n';
  }
  return result;
}

}  // namespace windlass
