#include "windlass/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/mapped_file.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kLengthBytes = 8;
// The reference implementation reads headers up to 100 MB; a hundred thousand tensors take ten.
constexpr uint64_t kMaxHeader = uint64_t{32} << 20;
constexpr size_t kMaxIndex = size_t{32} << 20;
constexpr const char* kMetadata = "__metadata__";

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {
    {"F64", DType::F64}, {"F32", DType::F32},   {"BF16", DType::BF16}, {"F16", DType::F16},
    {"I64", DType::I64}, {"I32", DType::I32},   {"I16", DType::I16},   {"I8", DType::I8},
    {"U8", DType::U8},   {"BOOL", DType::Bool},
};

DType dtype_of(const std::string& name) {
  for (const DTypeName& known : kDTypes)
    if (known.name == name) return known.dtype;
  fail_unsupported(
      "element type \"{}\" is not known; known are F64, F32, BF16, F16, I64, I32, I16, I8, U8, "
      "BOOL",
      printable(name, 40));
}

std::string_view name_of(DType dtype) {
  for (const DTypeName& known : kDTypes)
    if (known.dtype == dtype) return known.name;
  throw Error(ErrorKind::Internal, "internal error: a tensor without element type is written");
}

// Whole numbers that are not negative, at most 2^63 - 1 each.
std::vector<int64_t> whole_numbers(const json& entry, const char* key, size_t most) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array() || found->size() > most)
    fail_input("\"{}\" is not a list of at most {} whole numbers", key, most);
  std::vector<int64_t> numbers;
  for (const json& value : *found) {
    constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kLargest)
      fail_input("\"{}\" holds {}, expected whole numbers", key, show_json(value));
    numbers.push_back(value.get<int64_t>());
  }
  return numbers;
}

// One entry of the header; offsets count from the first byte after it.
StoredTensor tensor_of(const std::string& name, const json& entry, int64_t data_bytes) {
  if (!entry.is_object()) fail_input("is {}, expected an object", show_json(entry));
  for (const auto& item : entry.items())
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      fail_input("unknown key \"{}\"", printable(item.key(), 60));
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) fail_input("\"dtype\" is missing");
  StoredTensor tensor{
      .name = name, .type = {dtype_of(dtype->get<std::string>()), {}}, .location = {}};
  tensor.type.shape = whole_numbers(entry, "shape", kMaxRank);
  const auto offsets = whole_numbers(entry, "data_offsets", 2);
  if (offsets.size() != 2) fail_input("\"data_offsets\" needs a begin and an end");
  const int64_t begin = offsets[0], end = offsets[1];
  if (begin > end || end > data_bytes)
    fail_input("lies at {} to {}, but the file has {} bytes of values; it was cut off or damaged",
               begin, end, data_bytes);
  const int64_t expected = byte_size(tensor.type).value;
  if (end - begin != expected)
    fail_input("{} takes {} bytes, the header gives it {}", format_type(tensor.type), expected,
               end - begin);
  tensor.location.offset = begin;
  tensor.location.bytes = end - begin;
  tensor.location.dtype = tensor.type.dtype;
  return tensor;
}

std::map<std::string, std::string> metadata_of(const json& entry) {
  if (!entry.is_object()) fail_input("is {}, expected an object", show_json(entry));
  std::map<std::string, std::string> metadata;
  for (const auto& item : entry.items()) {
    if (!item.value().is_string())
      fail_input("key \"{}\" is {}, expected a text", printable(item.key(), 60),
                 show_json(item.value()));
    metadata.emplace(item.key(), item.value().get<std::string>());
  }
  return metadata;
}

std::string label(const std::string& name) {
  return fmt::format("tensor \"{}\"", printable(name, 200));
}

// Tensors in the order of their bytes, which follow one another without gap or overlap.
void sort_and_check_gaps(std::vector<StoredTensor>& tensors, int64_t data_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return std::pair(a.location.offset, a.location.bytes) <
                            std::pair(b.location.offset, b.location.bytes);
                   });
  int64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.location.offset != end)
      fail_input("{} begins at {}, expected {} where the one before it ends", label(tensor.name),
                 tensor.location.offset, end);
    end += tensor.location.bytes;
  }
  if (end != data_bytes)
    fail_input("{} bytes follow the header, its tensors take {}; the file was cut off or damaged",
               data_bytes, end);
}

Safetensors parse(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < kLengthBytes)
    fail_input("not a safetensors file: {} bytes, expected at least 8", file.size());
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(file[i]);
  if (length > kMaxHeader)
    fail_input("not a safetensors file: a header of {} bytes, expected at most {}", length,
               kMaxHeader);
  if (length > file.size() - kLengthBytes)
    fail_input("a header of {} bytes in a file of {}; it was cut off", length, file.size());
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<size_t>(length));
  if (!text.starts_with('{')) fail_input("not a safetensors file: the header is not an object");
  const json header = parse_json(text);
  const auto data_start = static_cast<int64_t>(kLengthBytes + length);
  const auto data_bytes = static_cast<int64_t>(file.size()) - data_start;

  Safetensors result;
  for (const auto& item : header.items()) {
    try {
      if (item.key() == kMetadata)
        result.metadata = metadata_of(item.value());
      else
        result.tensors.push_back(tensor_of(item.key(), item.value(), data_bytes));
    } catch (const Error& error) {
      throw error.within(label(item.key()));
    }
  }
  sort_and_check_gaps(result.tensors, data_bytes);
  for (StoredTensor& tensor : result.tensors) {
    tensor.location.offset += data_start;
    tensor.location.file = path;
  }
  return result;
}

Safetensors read_file(const std::string& path) {
  try {
    const MappedFile mapped(path);
    return parse(mapped.bytes(), path);
  } catch (const Error& error) {
    throw error.within(path);
  }
}

// For each tensor the name of the file that holds it.
std::map<std::string, std::string> read_index(const std::string& path) {
  const MappedFile mapped(path);
  const auto bytes = mapped.bytes();
  if (bytes.size() > kMaxIndex) fail_input("not an index: larger than {} MiB", kMaxIndex >> 20);
  const json index =
      parse_json(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object())
    fail_input("\"weight_map\" is missing; expected the file of each tensor");
  std::map<std::string, std::string> files;
  for (const auto& item : map->items()) {
    const std::string file =
        item.value().is_string() ? item.value().get<std::string>() : std::string();
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos)
      fail_input("{} lies in {}, expected the name of a file beside the index", label(item.key()),
                 show_json(item.value()));
    files.emplace(item.key(), file);
  }
  return files;
}

Safetensors read_shards(const std::string& path) {
  std::map<std::string, std::string> files;
  try {
    files = read_index(path);
  } catch (const Error& error) {
    throw error.within(path);
  }
  std::set<std::string> names;
  for (const auto& entry : files) names.insert(entry.second);
  Safetensors result;
  for (const std::string& name : names) {
    Safetensors shard = read_file((fs::path(path).parent_path() / name).string());
    result.metadata.merge(shard.metadata);
    for (StoredTensor& tensor : shard.tensors) {
      const auto meant = files.find(tensor.name);
      if (meant == files.end() || meant->second != name) continue;
      files.erase(meant);
      result.tensors.push_back(std::move(tensor));
    }
  }
  if (!files.empty())
    fail_input("{}: {} should be in {}, which does not hold it", path, label(files.begin()->first),
               files.begin()->second);
  return result;
}

// The header as the reference implementation writes it: padded with blanks to a multiple of 8.
std::string header_text(const std::vector<NamedType>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::set<std::string> names = {kMetadata};
  int64_t offset = 0;
  for (const NamedType& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      fail_input("{} would be written twice", label(tensor.name));
    const int64_t end = checked_add(offset, byte_size(tensor.type).value);
    header[tensor.name] = {{"dtype", name_of(tensor.type.dtype)},
                           {"shape", tensor.type.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail_input("a name or the metadata is not UTF-8");
  }
  text.resize(static_cast<size_t>(ceil_div(static_cast<int64_t>(text.size()), 8)) * 8, ' ');
  return text;
}

// Runs what may fill the disk.
template <typename Action>
void writing(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Runtime) throw;
    throw Error(error.kind(),
                error.message() + "; a file of that name that was there before is unchanged");
  }
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  try {
    return parse(file, path);
  } catch (const Error& error) {
    throw error.within(path);
  }
}

Safetensors read_safetensors(const std::string& path) {
  return path.ends_with(".json") ? read_shards(path) : read_file(path);
}

std::optional<std::string> find_safetensors(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    const fs::path path = fs::path(folder) / name;
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path.string();
  }
  return std::nullopt;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<NamedType>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::string text;
  try {
    text = header_text(tensors, metadata);
    if (text.size() > kMaxHeader) fail_input("the header would take {} bytes", text.size());
    for (const NamedType& tensor : tensors)
      missing_ = checked_add(missing_, byte_size(tensor.type).value);
  } catch (const Error& error) {
    throw error.within(path);
  }
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i) & 0xff);
  writing([&] {
    file_.write(length);
    file_.write(text);
  });
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  ensure(static_cast<int64_t>(bytes.size()) <= missing_, "more bytes than the header announced");
  missing_ -= static_cast<int64_t>(bytes.size());
  writing([&] {
    file_.write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  });
}

void SafetensorsWriter::finish() {
  ensure(missing_ == 0, "fewer bytes than the header announced");
  writing([&] { file_.commit(); });
}

}  // namespace windlass
