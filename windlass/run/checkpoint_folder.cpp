#include "windlass/run/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"
#include "windlass/model/safetensors.h"
#include "windlass/run/checkpoint.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kPartPrefix = "model-";
constexpr size_t kWordSize = 8;

std::string stem_of(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

struct StepPath {
  int64_t step = 0;
  fs::path path;  // the file, or the folder of parts
  bool parts = false;

  std::string checkpoint() const { return (parts ? path / kIndexName : path).string(); }
  // Without its index a folder is what a run left unfinished.
  bool finished() const {
    std::error_code ignored;
    return !parts || fs::is_regular_file(path / kIndexName, ignored);
  }
};

// Those of a folder, oldest first.
std::vector<StepPath> steps_in(const std::string& folder) {
  std::vector<StepPath> list;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    const std::string name = entry.path().filename().string();
    const bool parts = entry.is_directory(ignored);
    const size_t suffix = parts ? 0 : kSuffix.size();
    if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + suffix) continue;
    const char* begin = name.data() + kPrefix.size();
    const char* end = name.data() + name.size() - suffix;
    int64_t step = 0;
    const auto [at, wrong] = std::from_chars(begin, end, step);
    if (wrong != std::errc() || at != end || step < 0) continue;
    // Other libraries have folders of such names, too, but without zeros in front.
    if (name != stem_of(step) + std::string(parts ? "" : kSuffix)) continue;
    list.push_back({step, entry.path(), parts});
  }
  std::ranges::sort(list, {}, [](const StepPath& one) { return std::pair(one.step, one.path); });
  return list;
}

// AtomicFile's temporary files: a name, a dot and six characters. Else the name itself.
std::string_view without_temporary(std::string_view name) {
  constexpr size_t kAdded = 7;
  const bool temporary = name.size() > kAdded && name[name.size() - kAdded] == '.' &&
                         (name.substr(0, name.size() - kAdded).ends_with(kSuffix) ||
                          name.substr(0, name.size() - kAdded).ends_with(".json"));
  return temporary ? name.substr(0, name.size() - kAdded) : name;
}

// "model-0f3c9a21-00001-of-00002.safetensors"
bool is_part(std::string_view name) {
  if (!name.starts_with(kPartPrefix) || !name.ends_with(kSuffix)) return false;
  const std::string_view word = name.substr(kPartPrefix.size()).substr(0, kWordSize);
  return word.size() == kWordSize && word.find_first_not_of("0123456789abcdef") == word.npos &&
         name.substr(kPartPrefix.size() + kWordSize).starts_with('-');
}

// Of what windlass writes into the folder of a checkpoint, everything but `keep`; and the folder,
// if nothing else is there.
void clear_parts(const fs::path& folder, const std::set<std::string>& keep) {
  std::error_code error;
  std::vector<fs::path> gone;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::string_view meant = without_temporary(name);
    if ((is_part(meant) || meant == kIndexName) && !keep.contains(name))
      gone.push_back(entry.path());
  }
  for (const fs::path& path : gone) fs::remove(path, error);
  if (keep.empty()) fs::remove(folder, error);
}

void remove_checkpoint(const StepPath& one) {
  std::error_code error;
  // From then on it is none.
  fs::remove(one.checkpoint(), error);
  if (one.parts) clear_parts(one.path, {});
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step, int32_t ranks) {
  const fs::path stem = fs::path(folder) / stem_of(step);
  return ranks > 1 ? (stem / kIndexName).string() : stem.string() + std::string(kSuffix);
}

std::string make_part_folder(const std::string& index) {
  const fs::path folder = fs::path(index).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::Runtime, "{}: cannot be made: {}", folder.string(), error.message());
  // No result depends on it.
  std::random_device device;
  while (true) {
    const std::string word = fmt::format("{:08x}", static_cast<uint32_t>(device()));
    const bool taken = std::ranges::any_of(fs::directory_iterator(folder, error), [&](auto& entry) {
      return entry.path().filename().string().starts_with(std::string(kPartPrefix) + word);
    });
    if (!taken) return word;
  }
}

std::string part_name(const std::string& word, size_t number, size_t count) {
  return fmt::format("{}{}-{:05}-of-{:05}{}", kPartPrefix, word, number, count, kSuffix);
}

FoundCheckpoint newest_checkpoint(const std::string& folder) {
  std::vector<StepPath> steps = steps_in(folder);
  std::erase_if(steps, [](const StepPath& one) { return !one.finished(); });
  FoundCheckpoint found;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = step->checkpoint();
    try {
      check_checkpoint(path);
      found.path = path;
      return found;
    } catch (const Error& error) {
      found.passed_over.push_back(error.message());
    }
  }
  if (!steps.empty())
    fail_input("{}: none of its {} checkpoints is whole: {}", folder, steps.size(),
               found.passed_over.front());
  return found;
}

void remove_old_checkpoints(const std::string& folder, const std::string& written, int64_t step,
                            size_t keep) {
  std::vector<StepPath> list = steps_in(folder);
  std::set<int64_t> steps;
  for (const StepPath& one : list)
    if (one.finished() && one.step <= step) steps.insert(one.step);
  while (steps.size() > keep) steps.erase(steps.begin());
  for (const StepPath& one : list) {
    const bool old = one.step < step && !steps.contains(one.step);
    const bool other = one.step == step && one.checkpoint() != written;
    if (!one.finished() || old || other) remove_checkpoint(one);
  }
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::string_view meant = without_temporary(name);
    if (meant != name && meant.starts_with(kPrefix)) unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove(path, error);
  if (!written.ends_with(kIndexName)) return;
  std::set<std::string> named = {std::string(kIndexName)};
  for (const StoredTensor& tensor : read_safetensors(written).tensors)
    named.insert(fs::path(tensor.location.file).filename().string());
  clear_parts(fs::path(written).parent_path(), named);
}

FoundCheckpoint find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {.path = path};
  const fs::path index = fs::path(path) / kIndexName;
  if (fs::is_regular_file(index, ignored)) return {.path = index.string()};
  return newest_checkpoint(path);
}

}  // namespace windlass
