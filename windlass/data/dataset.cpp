#include "windlass/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/data/formats.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

bool holds_floats(const SlotSpec& slot) {
  return slot.kind == SlotKind::Image || slot.kind == SlotKind::Float;
}

// Maps a file and keeps it in `files`.
std::span<const std::byte> map(MappedFiles& files, const std::string& path) {
  try {
    files.push_back(std::make_unique<MappedFile>(path));
  } catch (const Error& error) {
    throw error.within(path);
  }
  return files.back()->bytes();
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The labels of an images file: "train-images-idx3-ubyte" has "train-labels-idx1-ubyte" beside it.
std::optional<std::string> labels_of(const fs::path& images) {
  std::string name = images.filename().string();
  for (const auto& [from, to] : {std::pair("images", "labels"), std::pair("idx3", "idx1")}) {
    const size_t at = name.find(from);
    if (at == std::string::npos) return std::nullopt;
    name.replace(at, std::string_view(from).size(), to);
  }
  return (images.parent_path() / name).string();
}

std::unique_ptr<Dataset> open_mnist(const std::string& images, std::vector<SlotSpec> slots,
                                    const DatasetOptions& options) {
  const auto labels = labels_of(images);
  if (!labels)
    fail_input(
        "{}: a file of images needs labels; expected a name like train-images-idx3-ubyte "
        "beside train-labels-idx1-ubyte",
        images);
  MappedFiles files;
  const auto pixels = map(files, images);
  const auto classes = map(files, *labels);
  std::vector<ImageRun> runs = {parse_mnist(pixels, classes, images, *labels)};
  return image_dataset(std::move(files), std::move(runs), std::move(slots), options);
}

std::unique_ptr<Dataset> open_cifar(const std::vector<std::string>& paths,
                                    std::vector<SlotSpec> slots, const DatasetOptions& options) {
  MappedFiles files;
  std::vector<ImageRun> runs;
  for (const std::string& path : paths) {
    const auto bytes = map(files, path);
    runs.push_back(parse_cifar(bytes, path));
  }
  return image_dataset(std::move(files), std::move(runs), std::move(slots), options);
}

// Train and test files of a folder are parts already.
DatasetOptions whole(DatasetOptions options) {
  options.part = DataPart::All;
  return options;
}

std::optional<std::string> first_existing(const fs::path& folder,
                                          std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (is_file(folder / name)) return (folder / name).string();
  return std::nullopt;
}

std::unique_ptr<Dataset> open_folder(const std::string& folder, std::vector<SlotSpec> slots,
                                     const DatasetOptions& options) {
  const bool evaluates = options.part == DataPart::Eval;
  const auto train = first_existing(folder, {"train-images-idx3-ubyte", "train-images.idx3-ubyte"});
  if (train) {
    const auto test = first_existing(folder, {"t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"});
    return open_mnist(evaluates && test ? *test : *train, std::move(slots),
                      test ? whole(options) : options);
  }
  std::vector<std::string> batches;
  for (int i = 1; i <= 99; ++i) {
    const fs::path batch = fs::path(folder) / fmt::format("data_batch_{}.bin", i);
    if (is_file(batch)) batches.push_back(batch.string());
  }
  if (!batches.empty()) {
    const auto test = first_existing(folder, {"test_batch.bin"});
    if (evaluates && test) batches = {*test};
    return open_cifar(batches, std::move(slots), test ? whole(options) : options);
  }
  fail_input(
      "{}: the folder holds neither MNIST (train-images-idx3-ubyte) nor CIFAR-10 "
      "(data_batch_1.bin); give a file",
      folder);
}

std::unique_ptr<Dataset> open_file(const std::string& path, std::vector<SlotSpec> slots,
                                   const DatasetOptions& options) {
  const std::string name = fs::path(path).filename().string();
  if (name.ends_with(".gz")) fail_input("{}: compressed; unpack it with gunzip", path);
  if (name.find("idx1") != std::string::npos)
    fail_input("{}: labels; give the file of images (idx3)", path);
  if (name.find("idx3") != std::string::npos) return open_mnist(path, std::move(slots), options);
  const bool binary = name.ends_with(".bin");
  if (binary && (name.starts_with("data_batch") || name.starts_with("test_batch")))
    return open_cifar({path}, std::move(slots), options);
  if (binary && options.token_bytes != 2 && options.token_bytes != 4)
    fail_input("tokens of {} bytes are not known; expected 2 or 4", options.token_bytes);
  MappedFiles files;
  const auto bytes = map(files, path);
  TokenRun run = parse_tokens(bytes, binary ? options.token_bytes : 1, path);
  return token_dataset(std::move(files), std::move(run), std::move(slots), options);
}

}  // namespace

int64_t slot_elements(const SlotSpec& slot) {
  for (int64_t size : slot.shape)
    if (size < 0) fail_input("a model input has a dimension of {}", size);
  return checked_product(slot.shape);
}

bool slot_takes(const SlotSpec& slot, int64_t value) {
  if (slot.bound <= 0 || !slot.strict || value == slot.ignored) return true;
  return value >= slot.least && value < slot.bound;
}

bool fill_beside_data(const SlotSpec& slot, std::span<int64_t> out) {
  constexpr int64_t kFew = 16;
  if (slot.kind == SlotKind::Positions) {
    const int64_t last = slot.shape.empty() ? 1 : slot.shape.back();
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(i) % last;
    return slot_takes(slot, last - 1);
  }
  if (slot.kind != SlotKind::Integer || slot.bound > kFew) return false;
  const int64_t value = slot.bound <= 0 ? 1 : 0;
  std::fill(out.begin(), out.end(), value);
  return slot_takes(slot, value);
}

void Dataset::fill(int64_t sample, size_t slot, std::span<float> out) const {
  ensure(sample >= 0 && sample < size() && slot < slots_.size(), "no such sample or slot");
  ensure(holds_floats(slots_[slot]), "a slot of integers is filled with floats");
  ensure(static_cast<int64_t>(out.size()) == slot_elements(slots_[slot]), "a slot of other size");
  fill_floats(sample, slots_[slot], slot, out);
}

void Dataset::fill(int64_t sample, size_t slot, std::span<int64_t> out) const {
  ensure(sample >= 0 && sample < size() && slot < slots_.size(), "no such sample or slot");
  ensure(!holds_floats(slots_[slot]), "a slot of floats is filled with integers");
  ensure(static_cast<int64_t>(out.size()) == slot_elements(slots_[slot]), "a slot of other size");
  fill_integers(sample, slots_[slot], slot, out);
}

std::unique_ptr<Dataset> open_dataset(const std::string& spec, std::vector<SlotSpec> slots,
                                      const DatasetOptions& options) {
  if (spec.empty()) fail_input("no data set is named");
  if (spec == "synthetic") return synthetic_dataset(std::move(slots), options);
  std::error_code ignored;
  const fs::file_status status = fs::status(spec, ignored);
  if (fs::is_directory(status)) return open_folder(spec, std::move(slots), options);
  if (!fs::exists(status)) fail_input("{}: no such file; expected data, or \"synthetic\"", spec);
  return open_file(spec, std::move(slots), options);
}

}  // namespace windlass
