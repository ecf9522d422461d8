#include "windlass/run/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/base/mapped_file.h"
#include "windlass/model/safetensors.h"
#include "windlass/plan/plan.h"
#include "windlass/run/checkpoint_folder.h"
#include "windlass/run/ranks.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "windlass checkpoint 1";
// As other libraries want it, and those of windlass before they did.
constexpr const char* kKindKey = "windlass";
constexpr const char* kFormatKey = "format";
// Drawn for each checkpoint of several parts.
constexpr const char* kPartsKey = "parts";
constexpr std::string_view kSumKey = "sum ";  // and the name of a tensor

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
  explicit EntryReader(int32_t rank) : rank_(rank) {}

  // Whether this rank gets the bytes.
  bool gets(const Entry& entry) const {
    return entry.of->reader == kReadByAll || entry.of->reader == rank_;
  }
  // Nothing if another rank gets them: then what this one has of them goes there.
  std::span<const std::byte> bytes(const Entry& entry) {
    if (entry.of != of_) {
      of_ = entry.of;
      values_.resize(gets(entry) ? static_cast<size_t>(of_->bytes) : 0);
      of_->read(values_);
    }
    if (!gets(entry)) return {};
    return std::span(values_).subspan(entry.offset, entry.size());
  }

 private:
  const int32_t rank_;
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

// Those that this rank gets, into a file; of the others it brings what it has. No file if there are
// none.
void write_entries(const std::string& path, const std::vector<Entry>& entries,
                   std::map<std::string, std::string> metadata, int32_t rank) {
  std::vector<NamedType> types;
  EntryReader reader(rank);
  for (const Entry& entry : entries) {
    const std::span<const std::byte> bytes = reader.bytes(entry);
    if (!reader.gets(entry)) continue;
    types.push_back({entry.name, entry.type});
    metadata[std::string(kSumKey) + entry.name] = sum_of(bytes);
  }
  std::optional<SafetensorsWriter> writer;
  if (!types.empty()) writer.emplace(path, types, metadata);
  for (const Entry& entry : entries) {
    const std::span<const std::byte> bytes = reader.bytes(entry);
    if (reader.gets(entry)) writer->write(bytes);
  }
  if (writer) writer->finish();
}

std::map<std::string, std::string> metadata_of(const TrainingGraph& training,
                                               const RunPosition& position) {
  return {{kFormatKey, "pt"},
          {kKindKey, std::string(kFormat)},
          {"step", std::to_string(position.step)},
          {"epoch", std::to_string(position.data.epoch)},
          {"index", std::to_string(position.data.index)},
          {"seed", std::to_string(position.seed)},
          {"micro_batches", std::to_string(position.micro_batches)},
          {"optimizer", std::string(enum_name(training.options.optimizer))},
          {"model", format_fingerprint(position.model)}};
}

// Where the files of a checkpoint of several ranks lie: by rank, those that have a part of it.
std::map<int32_t, std::string> part_names(const std::vector<Entry>& entries,
                                          const std::string& word) {
  std::map<int32_t, std::string> names;
  for (const Entry& entry : entries) names.try_emplace(entry.of->reader);
  size_t number = 0;
  for (auto& [rank, name] : names) name = part_name(word, ++number, names.size());
  return names;
}

void write_index(const std::string& path, const std::vector<Entry>& entries,
                 const std::map<int32_t, std::string>& names) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (const Entry& entry : entries) {
    map[entry.name] = names.at(entry.of->reader);
    total += byte_size(entry.type).value;
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  AtomicFile file(path);
  file.write(index.dump(2));
  file.write("\n");
  file.commit();
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
                      const std::vector<PersistentTensor>& tensors, const RunPosition& position,
                      Ranks* ranks) {
  const std::vector<Entry> entries = entries_of(training, tensors, true);
  auto metadata = metadata_of(training, position);
  if (ranks == nullptr) return write_entries(path, entries, metadata, 0);
  const bool first = ranks->rank() == 0;
  const std::string word = ranks->tell_all(first ? make_part_folder(path) : std::string())[0];
  metadata[kPartsKey] = word;
  const std::map<int32_t, std::string> names = part_names(entries, word);
  const auto mine = names.find(ranks->rank());
  const fs::path folder = fs::path(path).parent_path();
  write_entries(mine == names.end() ? "" : (folder / mine->second).string(), entries, metadata,
                ranks->rank());
  // All parts are on the disk.
  ranks->tell_all("written");
  if (!first) return;
  write_index(path, entries, names);
  sync_folder_of(folder.string());
}

void write_weights(const std::string& path, const TrainingGraph& training,
                   const std::vector<PersistentTensor>& tensors, int32_t rank) {
  write_entries(path, entries_of(training, tensors, false), {{kFormatKey, "pt"}}, rank);
}

namespace {

std::string text_of(const Safetensors& stored, const std::string& key) {
  const auto found = stored.metadata.find(key);
  return found == stored.metadata.end() ? std::string() : found->second;
}

// A checkpoint of one file or of several.
class StoredCheckpoint {
 public:
  explicit StoredCheckpoint(const std::string& path)
      : path_(path), stored_(read_safetensors(path)) {
    if (text_of(stored_, kKindKey) != kFormat && text_of(stored_, kFormatKey) != kFormat)
      fail_input("{}: not a checkpoint of windlass (weights alone are read with --weights)", path);
    for (const StoredTensor& tensor : stored_.tensors) map_file(tensor.location.file);
    check_parts();
  }

  const Safetensors& stored() const { return stored_; }
  std::span<const std::byte> bytes(const StoredTensor& tensor) const {
    const auto all = files_.at(tensor.location.file).bytes();
    const auto offset = static_cast<size_t>(tensor.location.offset);
    const auto size = static_cast<size_t>(tensor.location.bytes);
    if (offset > all.size() || size > all.size() - offset)
      fail_input("{}: was cut off while it was read", tensor.location.file);
    return all.subspan(offset, size);
  }
  void check_sum(const StoredTensor& tensor) const {
    if (sum_of(bytes(tensor)) != text_of(stored_, std::string(kSumKey) + tensor.name))
      fail_input("{}: tensor \"{}\" is damaged: its check sum differs; take an older checkpoint",
                 path_, tensor.name);
  }

 private:
  void map_file(const std::string& file) {
    try {
      files_.try_emplace(file, file);
    } catch (const Error& error) {
      throw error.within(file);
    }
  }

  // Each part is whole by itself: whether they were written together is another question.
  void check_parts() const {
    const auto first = files_.begin();
    std::map<std::string, std::string> expected;
    for (auto file = first; files_.size() > 1 && file != files_.end(); ++file) {
      std::map<std::string, std::string> said =
          parse_safetensors(file->second.bytes(), file->first).metadata;
      std::erase_if(said, [](const auto& entry) { return entry.first.starts_with(kSumKey); });
      if (file == first)
        expected = std::move(said);
      else if (said != expected)
        fail_input("{}: {} and {} are parts of different checkpoints; take an older one", path_,
                   fs::path(first->first).filename().string(),
                   fs::path(file->first).filename().string());
    }
  }

  const std::string path_;
  const Safetensors stored_;
  std::map<std::string, MappedFile> files_;
};

}  // namespace

void check_checkpoint(const std::string& path) {
  const StoredCheckpoint file(path);
  for (const StoredTensor& tensor : file.stored().tensors) file.check_sum(tensor);
}

RunPosition read_checkpoint(const std::string& path, const TrainingGraph& training,
                            const std::vector<PersistentTensor>& tensors, uint64_t model) {
  const StoredCheckpoint file(path);
  const Safetensors& stored = file.stored();
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
    file.check_sum(tensor);
  }
  for (size_t i = 0; i < entries.size();) {
    std::vector<std::byte> whole(static_cast<size_t>(entries[i].of->bytes));
    const PersistentTensor* of = entries[i].of;
    for (; i < entries.size() && entries[i].of == of; ++i) {
      const auto bytes = file.bytes(*by_name[entries[i].name]);
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

}  // namespace windlass
