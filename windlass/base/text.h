// Small text operations shared by messages and readers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace windlass {

// Parts of `text` between separators; an empty text has no parts.
std::vector<std::string_view> split(std::string_view text, char separator);

std::string join(std::span<const std::string> parts, std::string_view separator);

std::string lower_case(std::string_view text);

// The text with control characters replaced, so that names out of files cannot steer a terminal,
// and cut to `limit` bytes. Line ends stay.
std::string printable(std::string_view text, size_t limit = 20'000);

// Whether `text` matches `pattern`, in which * stands for any run of characters and ? for one.
bool matches_glob(std::string_view text, std::string_view pattern);

// Number of single-character insertions, deletions, replacements and swaps of neighbours between
// two texts.
size_t edit_distance(std::string_view a, std::string_view b);

// The known name closest to `name`, if close enough to be a plausible slip of the finger.
std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> known);

// " (did you mean \"x\"?)" or nothing.
std::string did_you_mean(std::string_view name, std::span<const std::string> known);

}  // namespace windlass
