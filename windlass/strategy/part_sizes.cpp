#include "windlass/strategy/part_sizes.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace windlass {
namespace {

int64_t sum_of(std::span<const int32_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

}  // namespace

Range part_of(int64_t size, int64_t parts, std::span<const int32_t> sizes, int64_t index) {
  if (sizes.empty()) return part_of(size, parts, index);
  // Both factors of a product are below kMostSizes.
  const int64_t all = sum_of(sizes);
  const auto border = [&](int64_t before) {
    return size / all * before + size % all * before / all;
  };
  const int64_t before = sum_of(sizes.first(static_cast<size_t>(index)));
  return {border(before), border(before + sizes[static_cast<size_t>(index)])};
}

int64_t smallest_part(int64_t size, int64_t parts, std::span<const int32_t> sizes) {
  if (sizes.empty()) return size / parts;
  int64_t least = size;
  for (int64_t p = 0; p < parts; ++p)
    least = std::min(least, part_of(size, parts, sizes, p).size());
  return least;
}

std::vector<int32_t> reduced_sizes(std::vector<int32_t> sizes) {
  int32_t divisor = 0;
  for (int32_t size : sizes) divisor = std::gcd(divisor, size);
  for (int32_t& size : sizes) size /= std::max(divisor, 1);
  if (std::ranges::all_of(sizes, [](int32_t size) { return size == 1; })) sizes.clear();
  return sizes;
}

std::string check_sizes(int64_t parts, std::span<const int32_t> sizes) {
  if (sizes.empty()) return {};
  if (static_cast<int64_t>(sizes.size()) != parts)
    return fmt::format("{} sizes for {} parts", sizes.size(), parts);
  if (std::ranges::any_of(sizes, [](int32_t size) { return size < 1; }))
    return "a part without a size";
  if (sum_of(sizes) > kMostSizes) return fmt::format("sizes that sum up to {}", sum_of(sizes));
  if (const auto reduced = reduced_sizes({sizes.begin(), sizes.end()});
      !std::ranges::equal(reduced, sizes))
    return fmt::format("sizes {}, which are {}", fmt::join(sizes, ":"),
                       format_parts(parts, reduced));
  return {};
}

int64_t part_units(int64_t parts, std::span<const int32_t> sizes) {
  return sizes.empty() ? parts : sum_of(sizes);
}

std::string format_parts(int64_t parts, std::span<const int32_t> sizes) {
  return sizes.empty() ? std::to_string(parts) : fmt::format("{}", fmt::join(sizes, ":"));
}

}  // namespace windlass
