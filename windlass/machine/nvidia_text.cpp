// Parsers of what nvidia-smi prints.

#include <charconv>
#include <optional>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/machine/nvidia.h"

namespace windlass {
namespace {

constexpr size_t kMaxCards = 256;
constexpr size_t kMaxColumns = 1024;
constexpr int kMaxNvlinks = 64;
constexpr size_t kMaxName = 100;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\v\f";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = line.find_first_not_of(" \t\r\v\f", at);
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(line.find_first_of(" \t\r\v\f", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    at = end;
  }
  return words;
}

// Without the escape sequences that underline the heading.
std::string plain_text(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x1b') {
      result += text[i];
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == '[') ++i;
    while (i + 1 < text.size() && text[i + 1] >= ' ' && text[i + 1] < '@') ++i;
    if (i + 1 < text.size()) ++i;
  }
  return result;
}

template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// The number of a card's label: 3 of "GPU3".
std::optional<size_t> card_number(std::string_view word) {
  if (!word.starts_with("GPU")) return std::nullopt;
  const auto number = whole_number<int>(word.substr(3));
  return number ? std::optional(static_cast<size_t>(*number)) : std::nullopt;
}

// A cell that is not understood counts as the longest path.
NvidiaTopology::Cell parse_cell(std::string_view word) {
  if (word == "PIX") return {NvidiaPath::Switch, 0};
  if (word == "PXB") return {NvidiaPath::Switches, 0};
  if (word == "PHB") return {NvidiaPath::HostBridge, 0};
  if (word == "NODE") return {NvidiaPath::Socket, 0};
  if (word.starts_with("NV")) {
    const auto count = whole_number<int>(word.substr(2));
    if (count && *count > 0 && *count <= kMaxNvlinks) return {NvidiaPath::Nvlink, *count};
  }
  return {NvidiaPath::System, 0};
}

}  // namespace

std::vector<NvidiaCard> parse_nvidia_cards(std::string_view text) {
  std::vector<NvidiaCard> cards;
  size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    line = trim(line);
    if (line.empty()) continue;
    const size_t comma = line.rfind(',');
    if (comma == std::string_view::npos)
      fail_input("nvidia-smi: line {} is \"{}\", expected a name and a size", number,
                 printable(line, kMaxName));
    const std::string name = printable(trim(line.substr(0, comma)), kMaxName);
    const auto size = words_of(line.substr(comma + 1));
    const auto mebibytes =
        size.size() == 2 && size[1] == "MiB" ? whole_number<int64_t>(size[0]) : std::nullopt;
    constexpr int64_t kMaxMebibytes = int64_t{1} << 30;
    if (name.empty() || !mebibytes || *mebibytes < 1 || *mebibytes > kMaxMebibytes)
      fail_input("nvidia-smi: line {}: \"{}\" has the memory \"{}\", expected a number of MiB",
                 number, name, printable(trim(line.substr(comma + 1)), kMaxName));
    if (cards.size() == kMaxCards) fail_input("nvidia-smi: more than {} cards", kMaxCards);
    cards.push_back({name, Bytes(*mebibytes * kMiB.value)});
  }
  return cards;
}

NvidiaTopology parse_nvidia_topology(std::string_view text, size_t cards) {
  NvidiaTopology topology;
  topology.cards = cards;
  if (cards > kMaxCards) fail_input("nvidia-smi topo: more than {} cards", kMaxCards);
  const std::string plain = plain_text(text);
  std::vector<bool> seen(cards);
  for (std::string_view line : split(plain, '\n')) {
    const auto words = words_of(line);
    if (words.empty()) continue;
    if (words[0] == "Legend:") break;
    if (topology.columns == 0) {
      // The heading: cards, adapters, then words about affinity.
      size_t columns = 0;
      while (columns < words.size() && words[columns] != "CPU") ++columns;
      if (columns < cards || columns > kMaxColumns) continue;
      bool is_heading = true;
      for (size_t i = 0; i < cards; ++i) is_heading = is_heading && card_number(words[i]) == i;
      if (!is_heading) continue;
      topology.columns = columns;
      topology.cells.resize(cards * columns);
      topology.affinity.resize(cards);
      continue;
    }
    const auto card = card_number(words[0]);
    if (!card || *card >= cards || seen[*card]) continue;
    if (words.size() < 1 + topology.columns)
      fail_input("nvidia-smi topo: the line of {} has {} entries, expected {}",
                 printable(words[0], kMaxName), words.size() - 1, topology.columns);
    seen[*card] = true;
    for (size_t k = 0; k < topology.columns; ++k)
      topology.cells[*card * topology.columns + k] = parse_cell(words[1 + k]);
    if (words.size() > 1 + topology.columns) topology.affinity[*card] = words[1 + topology.columns];
  }
  if (topology.columns == 0) fail_input("nvidia-smi topo: no heading with {} cards", cards);
  for (size_t i = 0; i < cards; ++i)
    if (!seen[i]) fail_input("nvidia-smi topo: no line for GPU{}", i);
  return topology;
}

}  // namespace windlass
