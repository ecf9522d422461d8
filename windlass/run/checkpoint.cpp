#include "windlass/run/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/base/mapped_file.h"
#include "windlass/model/safetensors.h"
#include "windlass/plan/plan.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "windlass checkpoint 1";
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kSuffix = ".safetensors";

// A tensor of a file, and the part of a persistent tensor that it is.
struct Entry {
  std::string name;
  TensorType type;
  const PersistentTensor* of = nullptr;
  size_t offset = 0;

  size_t size() const { return static_cast<size_t>(byte_size(type).value); }
};

// Reads persistent tensors for one entry after the other: parts of the same follow each other.
class EntryReader {
 public:
  std::span<const std::byte> bytes(const Entry& entry) {
    if (entry.of != of_) {
      of_ = entry.of;
      values_ = of_->values();
    }
    return std::span(values_).subspan(entry.offset, entry.size());
  }

 private:
  const PersistentTensor* of_ = nullptr;
  std::vector<std::byte> values_;
};

bool lasts(const Graph& graph, const PersistentTensor& tensor) {
  if (tensor.kind == BufferKind::OptimizerState) return true;
  const TensorRole role = graph[tensor.tensor].role;
  return role == TensorRole::Weight || role == TensorRole::Buffer;
}

std::vector<Entry> entries_of(const TrainingGraph& training,
                              const std::vector<PersistentTensor>& tensors, bool optimizer) {
  const Graph& graph = training.graph;
  std::vector<Entry> entries;
  for (const PersistentTensor& tensor : tensors) {
    if (!lasts(graph, tensor)) continue;
    const Tensor& meant = graph[tensor.tensor];
    if (tensor.kind == BufferKind::Weight) {
      entries.push_back({meant.name, meant.type, &tensor, 0});
      continue;
    }
    if (!optimizer) continue;
    const size_t first = training.forward_ops + training.backward_ops;
    const auto op = std::find_if(graph.ops.begin() + static_cast<ptrdiff_t>(first), graph.ops.end(),
                                 [&](const Op& o) { return o.inputs[0] == tensor.tensor; });
    ensure(op != graph.ops.end(), "optimizer state of a weight that is not updated");
    size_t offset = 0;
    for (size_t i = 2; i < op->inputs.size(); ++i) {
      if (!op->inputs[i].valid()) continue;
      const TensorType& type = graph[op->inputs[i]].type;
      const std::string part = i == 2 ? "master" : fmt::format("state{}", i - 3);
      entries.push_back({fmt::format("optimizer.{}.{}", meant.name, part), type, &tensor, offset});
      offset += entries.back().size();
    }
  }
  return entries;
}

std::string sum_of(std::span<const std::byte> bytes) {
  return format_fingerprint(hash_bytes(bytes));
}

void write_entries(const std::string& path, const std::vector<Entry>& entries,
                   std::map<std::string, std::string> metadata) {
  std::vector<NamedType> types;
  EntryReader reader;
  for (const Entry& entry : entries) {
    types.push_back({entry.name, entry.type});
    metadata["sum " + entry.name] = sum_of(reader.bytes(entry));
  }
  SafetensorsWriter writer(path, types, metadata);
  for (const Entry& entry : entries) writer.write(reader.bytes(entry));
  writer.finish();
}

template <typename T>
T number(const std::map<std::string, std::string>& metadata, const std::string& key,
         const std::string& path, int base = 10) {
  const auto found = metadata.find(key);
  T value{};
  if (found != metadata.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error == std::errc() && end == text.data() + text.size()) return value;
  }
  fail_input("{}: \"{}\" is missing or no number: not a checkpoint of windlass, or damaged", path,
             key);
}

}  // namespace

void write_checkpoint(const std::string& path, const TrainingGraph& training,
                      const std::vector<PersistentTensor>& tensors, const RunPosition& position) {
  write_entries(path, entries_of(training, tensors, true),
                {{"format", std::string(kFormat)},
                 {"step", std::to_string(position.step)},
                 {"epoch", std::to_string(position.data.epoch)},
                 {"index", std::to_string(position.data.index)},
                 {"seed", std::to_string(position.seed)},
                 {"micro_batches", std::to_string(position.micro_batches)},
                 {"optimizer", std::string(enum_name(training.options.optimizer))},
                 {"model", format_fingerprint(position.model)}});
}

void write_weights(const std::string& path, const TrainingGraph& training,
                   const std::vector<PersistentTensor>& tensors) {
  write_entries(path, entries_of(training, tensors, false), {{"format", "pt"}});
}

// As write_entries() reads: once for the sums, once for the bytes.
void help_write(const TrainingGraph& training, const std::vector<PersistentTensor>& tensors,
                bool optimizer) {
  EntryReader reader;
  for (int pass = 0; pass < 2; ++pass)
    for (const Entry& entry : entries_of(training, tensors, optimizer)) reader.bytes(entry);
}

namespace {

std::string text_of(const Safetensors& stored, const std::string& key) {
  const auto found = stored.metadata.find(key);
  return found == stored.metadata.end() ? std::string() : found->second;
}

std::span<const std::byte> bytes_of(const MappedFile& file, const StoredTensor& tensor) {
  return file.bytes().subspan(static_cast<size_t>(tensor.location.offset),
                              static_cast<size_t>(tensor.location.bytes));
}

MappedFile map_file(const std::string& path) {
  try {
    return MappedFile(path);
  } catch (const Error& error) {
    throw error.within(path);
  }
}

Safetensors parse_checkpoint(const MappedFile& file, const std::string& path) {
  Safetensors stored = parse_safetensors(file.bytes(), path);
  if (text_of(stored, "format") != kFormat)
    fail_input("{}: not a checkpoint of windlass (weights alone are read with --weights)", path);
  return stored;
}

void check_sum(const MappedFile& file, const Safetensors& stored, const StoredTensor& tensor,
               const std::string& path) {
  if (sum_of(bytes_of(file, tensor)) != text_of(stored, "sum " + tensor.name))
    fail_input("{}: tensor \"{}\" is damaged: its check sum differs; take an older checkpoint",
               path, tensor.name);
}

}  // namespace

void check_checkpoint(const std::string& path) {
  const MappedFile file = map_file(path);
  const Safetensors stored = parse_checkpoint(file, path);
  for (const StoredTensor& tensor : stored.tensors) check_sum(file, stored, tensor, path);
}

RunPosition read_checkpoint(const std::string& path, const TrainingGraph& training,
                            const std::vector<PersistentTensor>& tensors, uint64_t model) {
  const MappedFile file = map_file(path);
  const Safetensors stored = parse_checkpoint(file, path);
  const auto& metadata = stored.metadata;
  const auto text = [&](const std::string& key) { return text_of(stored, key); };
  if (text("model") != format_fingerprint(model))
    fail_input("{}: is a checkpoint of another model (fingerprint {}; this one has {})", path,
               text("model"), format_fingerprint(model));
  const std::string_view optimizer = enum_name(training.options.optimizer);
  if (text("optimizer") != optimizer)
    fail_input("{}: was written by optimizer {}, this run has {}", path, text("optimizer"),
               optimizer);
  RunPosition position;
  position.step = number<int64_t>(metadata, "step", path);
  position.data.epoch = number<int64_t>(metadata, "epoch", path);
  position.data.index = number<int64_t>(metadata, "index", path);
  position.seed = number<uint64_t>(metadata, "seed", path);
  position.micro_batches = number<int64_t>(metadata, "micro_batches", path);
  position.model = model;
  if (position.step < 0 || position.data.epoch < 0 || position.data.index < 0)
    fail_input("{}: step {}, epoch {}, index {}: damaged", path, position.step, position.data.epoch,
               position.data.index);

  std::map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : stored.tensors) by_name[tensor.name] = &tensor;
  const std::vector<Entry> entries = entries_of(training, tensors, true);
  // Everything is looked at before anything changes.
  for (const Entry& entry : entries) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) fail_input("{}: has no tensor \"{}\"", path, entry.name);
    const StoredTensor& tensor = *found->second;
    if (tensor.type != entry.type)
      fail_input("{}: tensor \"{}\" is {}, this run has {}", path, entry.name,
                 format_type(tensor.type), format_type(entry.type));
    check_sum(file, stored, tensor, path);
  }
  for (size_t i = 0; i < entries.size();) {
    std::vector<std::byte> whole(static_cast<size_t>(entries[i].of->bytes));
    const PersistentTensor* of = entries[i].of;
    for (; i < entries.size() && entries[i].of == of; ++i) {
      const auto bytes = bytes_of(file, *by_name[entries[i].name]);
      std::memcpy(whole.data() + entries[i].offset, bytes.data(), bytes.size());
    }
    of->write(whole);
  }
  return position;
}

int64_t checkpoint_micro_batches(const std::string& path) {
  try {
    return std::max<int64_t>(
        0, number<int64_t>(read_safetensors(path).metadata, "micro_batches", path));
  } catch (const Error&) {
    return 0;
  }
}

std::string checkpoint_path(const std::string& folder, int64_t step) {
  return (fs::path(folder) / fmt::format("{}{:08}{}", kPrefix, step, kSuffix)).string();
}

namespace {

// Steps of the checkpoints in a folder, ascending.
std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const char* begin = name.data() + kPrefix.size();
    const char* end = name.data() + name.size() - kSuffix.size();
    int64_t step = 0;
    const auto [at, wrong] = std::from_chars(begin, end, step);
    if (wrong == std::errc() && at == end && step >= 0) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

}  // namespace

FoundCheckpoint newest_checkpoint(const std::string& folder) {
  const std::vector<int64_t> steps = steps_in(folder);
  FoundCheckpoint found;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = checkpoint_path(folder, *step);
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

void remove_old_checkpoints(const std::string& folder, int64_t step, size_t keep) {
  std::vector<int64_t> steps = steps_in(folder);
  std::erase_if(steps, [&](int64_t other) { return other > step; });
  std::error_code error;
  for (size_t i = 0; i + keep < steps.size(); ++i)
    fs::remove(checkpoint_path(folder, steps[i]), error);
  // AtomicFile's temporary files: a name, a dot and six characters.
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t dot = name.rfind('.');
    if (name.starts_with(kPrefix) && dot != std::string::npos && dot + 7 == name.size() &&
        std::string_view(name).substr(0, dot).ends_with(kSuffix))
      unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove(path, error);
}

FoundCheckpoint find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return newest_checkpoint(path);
  return {.path = path};
}

}  // namespace windlass
