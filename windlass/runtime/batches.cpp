#include "windlass/runtime/batches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "windlass/base/error.h"
#include "windlass/model/convert.h"
#include "windlass/model/safetensors.h"
#include "windlass/model/weights.h"

namespace windlass {
namespace {

// The first reader of a tensor that looks inside, through views and casts; and whether a slice
// came first.
struct Reader {
  const Op* op = nullptr;
  size_t input = 0;
  bool sliced = false;
};

Reader reader_of(const Graph& graph, TensorId tensor) {
  Reader found;
  for (int depth = 0; depth < 16; ++depth) {
    const Op* next = nullptr;
    for (const Op& op : graph.ops) {
      const auto at = std::ranges::find(op.inputs, tensor);
      if (at == op.inputs.end()) continue;
      next = &op;
      found.op = next;
      found.input = static_cast<size_t>(at - op.inputs.begin());
      break;
    }
    if (next == nullptr) return found;
    const bool passes = next->kind == OpKind::Reshape || next->kind == OpKind::Cast ||
                        next->kind == OpKind::Slice || next->kind == OpKind::Transpose ||
                        next->kind == OpKind::Expand;
    if (!passes) return found;
    found.sliced |= next->kind == OpKind::Slice;
    tensor = next->outputs[0];
  }
  return found;
}

// The samples of a safetensors file, tensor by tensor.
class TensorFile final : public Dataset {
 public:
  TensorFile(std::vector<SlotSpec> specs, std::vector<StoredTensor> tensors,
             std::vector<std::string_view> uses, int64_t samples, std::string path)
      : Dataset(std::move(specs)),
        tensors_(std::move(tensors)),
        uses_(std::move(uses)),
        samples_(samples),
        path_(std::move(path)) {
    hold_small();
  }

  int64_t size() const override { return samples_; }
  std::string describe() const override {
    return fmt::format("{}: {} tensors, {} samples", path_, tensors_.size(), samples_);
  }

 protected:
  void fill_floats(int64_t sample, const SlotSpec&, size_t index,
                   std::span<float> out) const override {
    read(sample, index, DType::F32, std::as_writable_bytes(out));
  }
  void fill_integers(int64_t sample, const SlotSpec& slot, size_t index,
                     std::span<int64_t> out) const override {
    read(sample, index, DType::I64, std::as_writable_bytes(out));
    for (int64_t value : out)
      if (!slot_takes(slot, value))
        fail_input("{}: tensor \"{}\", sample {}: {} is outside {} to {}, the {}{}", path_,
                   tensors_[index].name, sample, value, slot.least, slot.bound - 1, uses_[index],
                   slot.ignored ? fmt::format(" ({} is left out)", *slot.ignored) : "");
  }

 private:
  // A row that is read by itself costs three calls of the system: small tensors are read once.
  void hold_small() {
    constexpr int64_t kMostHeld = int64_t{64} << 20;
    int64_t left = kMostHeld;
    held_.resize(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const bool floats = is_float(tensors_[i].type.dtype);
      const int64_t bytes = element_count(tensors_[i].type.shape) *
                            static_cast<int64_t>(floats ? sizeof(float) : sizeof(int64_t));
      if (bytes > left) continue;
      left -= bytes;
      held_[i].resize(static_cast<size_t>(bytes));
      read_weight(tensors_[i].location, floats ? DType::F32 : DType::I64, held_[i]);
    }
  }

  void read(int64_t sample, size_t index, DType as, std::span<std::byte> out) const {
    if (!held_[index].empty()) {
      std::ranges::copy(
          std::span(held_[index]).subspan(static_cast<size_t>(sample) * out.size(), out.size()),
          out.begin());
      return;
    }
    WeightLocation piece = tensors_[index].location;
    piece.bytes /= samples_;
    piece.offset += sample * piece.bytes;
    read_weight(piece, as, out);
  }

  std::vector<StoredTensor> tensors_;
  std::vector<std::string_view> uses_;  // of integers: what the range counts
  int64_t samples_;
  std::string path_;
  std::vector<std::vector<std::byte>> held_;  // by tensor, in the type of its slot; empty: on disk
};

// "a", "b" and 3 more.
std::string names_in(const Safetensors& file) {
  constexpr size_t kMaxNames = 6;
  if (file.tensors.empty()) return "none";
  std::string text;
  for (size_t i = 0; i < std::min(kMaxNames, file.tensors.size()); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", file.tensors[i].name);
  if (file.tensors.size() > kMaxNames)
    text += fmt::format(" and {} more", file.tensors.size() - kMaxNames);
  return text;
}

// A step reads an input that all samples share once: their rows must say the same.
void check_shared(const std::string& path, const StoredTensor& tensor) {
  const int64_t rows = tensor.type.shape[0];
  WeightLocation row = tensor.location;
  row.bytes /= rows;
  std::vector<std::byte> first(static_cast<size_t>(row.bytes)), other(first.size());
  read_weight(row, row.dtype, first);
  for (int64_t i = 1; i < rows; ++i) {
    row.offset += row.bytes;
    read_weight(row, row.dtype, other);
    if (first != other)
      fail_input(
          "{}: tensor \"{}\": row {} differs from row 0, but the model reads one value for all "
          "samples of a batch; give it a batch axis when it is exported (dynamic_axes), or the "
          "same row to every sample",
          path, tensor.name, i);
  }
}

std::unique_ptr<Dataset> open_tensors(const std::string& path, const Graph& network,
                                      const std::vector<BatchSlot>& slots) {
  const Safetensors file = read_safetensors(path);
  std::vector<SlotSpec> specs;
  std::vector<StoredTensor> tensors;
  std::vector<std::string_view> uses;
  int64_t samples = -1;
  const bool several = std::ranges::any_of(slots, [&](const BatchSlot& slot) {
    return slot.per_sample &&
           element_count(network[slot.tensor].type.shape) > slot_elements(slot.spec);
  });
  for (const BatchSlot& slot : slots) {
    const std::string& name = network[slot.tensor].name;
    const auto found = std::ranges::find(file.tensors, name, &StoredTensor::name);
    if (found == file.tensors.end())
      fail_input("{}: has no tensor \"{}\", which the model reads; it has {}", path, name,
                 names_in(file));
    const Shape& shape = found->type.shape;
    if (shape.empty() || Shape(shape.begin() + 1, shape.end()) != slot.spec.shape)
      fail_input("{}: tensor \"{}\" is {}; expected samples of {}", path, name, format_shape(shape),
                 format_shape(slot.spec.shape));
    const bool floats = slot.spec.kind == SlotKind::Float || slot.spec.kind == SlotKind::Image;
    if (floats != is_float(found->type.dtype))
      fail_input("{}: tensor \"{}\" is of {}, where the model reads {}", path, name,
                 dtype_name(found->type.dtype),
                 floats ? "floating-point numbers" : "whole numbers");
    if (samples >= 0 && shape[0] != samples)
      fail_input("{}: tensor \"{}\" has {} samples, another one {}", path, name, shape[0], samples);
    samples = shape[0];
    if (samples < 1) fail_input("{}: tensor \"{}\" has no samples", path, name);
    if (several && !slot.per_sample) check_shared(path, *found);
    tensors.push_back(*found);
    specs.push_back(slot.spec);
    uses.push_back(index_use_name(slot.use));
  }
  return std::make_unique<TensorFile>(std::move(specs), std::move(tensors), std::move(uses),
                                      samples, path);
}

// A target that the prediction is multiplied with, not compared with: that of binary cross-entropy,
// between 0 and 1.
bool is_probability(const Graph& graph, TensorId target) {
  const Reader reader = reader_of(graph, target);
  const auto* attrs = reader.op ? std::get_if<BinaryAttrs>(&reader.op->attrs) : nullptr;
  return attrs && attrs->fn == BinaryFn::Mul;
}

void limit_slot(SlotSpec& spec, const IndexRange& range, DType dtype) {
  spec.strict = range.binding();
  spec.ignored = range.ignored;
  if (range.use != IndexUse::None) {
    spec.least = range.least;
    spec.bound = range.past;
  } else if (dtype == DType::Bool) {
    spec.bound = 2;
  }
}

// What an input of whole numbers that is no label stands for. The first that is looked up is the
// text, and so is what is looked up in as large a table: a decoder's side of it.
SlotKind integer_kind(const Tensor& tensor, const IndexRange& range, int64_t tokens_bound) {
  if (tensor.name.find("position") != std::string::npos) return SlotKind::Positions;
  const bool text = range.looked_up && (tokens_bound == 0 || range.past == tokens_bound);
  return text ? SlotKind::Tokens : SlotKind::Integer;
}

}  // namespace

std::vector<BatchSlot> batch_slots(const Graph& network, const BatchAxes& batch) {
  std::vector<BatchSlot> slots;
  std::optional<Shape> tokens, images;
  int64_t tokens_bound = 0;  // rows of the table of the first tokens
  const auto sample_shape = [&](const Tensor& tensor, bool per_sample) {
    const Shape& shape = tensor.type.shape;
    return per_sample ? Shape(shape.begin() + 1, shape.end()) : shape;
  };
  const std::vector<IndexRange> ranges = index_ranges(network);
  // A model that brings its loss has its labels among its inputs.
  const auto is_label = [&](size_t i) {
    return network.tensors[i].role == TensorRole::Label ||
           (ranges[i].use == IndexUse::Classes && !ranges[i].looked_up);
  };
  // Inputs first: what a label is depends on them.
  for (const bool labels : {false, true})
    for (size_t i = 0; i < network.tensors.size(); ++i) {
      const Tensor& tensor = network.tensors[i];
      if (tensor.role != TensorRole::Label && tensor.role != TensorRole::Input) continue;
      if (is_label(i) != labels) continue;
      const TensorId id(i);
      BatchSlot slot = {.tensor = id, .spec = {}, .use = ranges[i].use};
      slot.per_sample = !tensor.type.shape.empty() && batch.axis[i] == 0 &&
                        tensor.type.shape[0] % std::max<int64_t>(1, batch.samples) == 0;
      slot.spec.shape = sample_shape(tensor, slot.per_sample);
      if (slot.per_sample && tensor.type.shape[0] != batch.samples)
        slot.spec.shape.insert(slot.spec.shape.begin(), tensor.type.shape[0] / batch.samples);
      if (is_float(tensor.type.dtype)) {
        const size_t axes = slot.spec.shape.size();
        const bool image = !labels && (axes == 3 || axes == 1);
        slot.spec.kind = image ? SlotKind::Image : SlotKind::Float;
        if (image) images = slot.spec.shape;
        if (tensor.role == TensorRole::Label && is_probability(network, id)) slot.spec.bound = 1;
        slots.push_back(std::move(slot));
        continue;
      }
      limit_slot(slot.spec, ranges[i], tensor.type.dtype);
      if (!labels) {
        slot.spec.kind = integer_kind(tensor, ranges[i], tokens_bound);
        if (slot.spec.kind == SlotKind::Tokens && tokens_bound == 0) {
          tokens = slot.spec.shape;
          tokens_bound = slot.spec.bound;
        }
      } else if (tokens && element_count(slot.spec.shape) == element_count(*tokens)) {
        // Models that shift by themselves compare with the tokens from the second on.
        slot.spec.kind = reader_of(network, id).sliced ? SlotKind::Tokens : SlotKind::NextTokens;
      } else {
        const bool single = element_count(slot.spec.shape) == 1;
        slot.spec.kind = single && images ? SlotKind::Label : SlotKind::Integer;
      }
      slots.push_back(std::move(slot));
    }
  return slots;
}

std::unique_ptr<Dataset> open_batches(const std::string& spec, const Graph& network,
                                      const std::vector<BatchSlot>& slots,
                                      const DatasetOptions& options) {
  if (spec.ends_with(".safetensors")) return open_tensors(spec, network, slots);
  std::vector<SlotSpec> specs;
  for (const BatchSlot& slot : slots) specs.push_back(slot.spec);
  return open_dataset(spec, std::move(specs), options);
}

BatchFiller::BatchFiller(const Dataset& data, const Graph& network, std::vector<BatchSlot> slots)
    : data_(data), slots_(std::move(slots)) {
  ensure(data.slots().size() == slots_.size(), "a data set was opened for another model");
  ensure(network.tensors.size() > 0, "a network without tensors");
}

void BatchFiller::fill(TensorId tensor, const TensorType& type, std::span<const int64_t> samples,
                       std::span<std::byte> out) const {
  const auto found = std::ranges::find(slots_, tensor, &BatchSlot::tensor);
  ensure(found != slots_.end(), "a tensor is filled that is no input");
  const auto index = static_cast<size_t>(found - slots_.begin());
  const size_t rows = found->per_sample ? samples.size() : 1;
  const auto elements = static_cast<size_t>(slot_elements(found->spec));
  ensure(static_cast<int64_t>(rows * elements) == element_count(type.shape),
         "an input differs from its samples in size");
  const bool floats = found->spec.kind == SlotKind::Float || found->spec.kind == SlotKind::Image;
  const auto each = static_cast<size_t>(element_bytes(type.dtype));
  std::vector<float> numbers(floats ? elements : 0);
  std::vector<int64_t> integers(floats ? 0 : elements);
  for (size_t row = 0; row < rows; ++row) {
    const std::span<std::byte> target = out.subspan(row * elements * each, elements * each);
    if (floats) {
      data_.fill(samples[row], index, std::span(numbers));
      convert_values(std::as_bytes(std::span(numbers)), DType::F32, target, type.dtype);
    } else {
      data_.fill(samples[row], index, std::span(integers));
      for (size_t i = 0; i < elements; ++i)  // little-endian: the low bytes come first
        std::memcpy(target.data() + i * each, &integers[i], each);
    }
  }
}

}  // namespace windlass
