#include "windlass/runtime/batches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

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

// Rows of the table that an input is looked up in; classes of the loss that it is the label of.
int64_t bound_of(const Graph& graph, TensorId tensor) {
  const Reader reader = reader_of(graph, tensor);
  if (reader.op == nullptr) return 0;
  const auto shape = [&](size_t i) { return graph.type_of(reader.op->inputs[i]).shape; };
  switch (reader.op->kind) {
    case OpKind::Embedding:
      for (TensorId id : reader.op->inputs)
        if (id.valid() && graph[id].role == TensorRole::Weight) return graph[id].type.shape.front();
      return 0;
    case OpKind::Gather:
      return reader.input == 0
                 ? 0
                 : shape(0)[static_cast<size_t>(std::get<AxisAttrs>(reader.op->attrs).axis)];
    case OpKind::CrossEntropy: {
      const auto axis = std::get<CrossEntropyAttrs>(reader.op->attrs).axis;
      return shape(0)[static_cast<size_t>(axis)];
    }
    default: return 0;
  }
}

// The samples of a safetensors file, tensor by tensor.
class TensorFile final : public Dataset {
 public:
  TensorFile(std::vector<SlotSpec> specs, std::vector<StoredTensor> tensors, int64_t samples,
             std::string path)
      : Dataset(std::move(specs)),
        tensors_(std::move(tensors)),
        samples_(samples),
        path_(std::move(path)) {}

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
      if (slot.bound > 0 && (value < 0 || value >= slot.bound))
        fail_input("{}: tensor \"{}\", sample {}: {} is not below {}", path_, tensors_[index].name,
                   sample, value, slot.bound);
  }

 private:
  void read(int64_t sample, size_t index, DType as, std::span<std::byte> out) const {
    WeightLocation piece = tensors_[index].location;
    piece.bytes /= samples_;
    piece.offset += sample * piece.bytes;
    read_weight(piece, as, out);
  }

  std::vector<StoredTensor> tensors_;
  int64_t samples_;
  std::string path_;
};

std::unique_ptr<Dataset> open_tensors(const std::string& path, const Graph& network,
                                      const std::vector<BatchSlot>& slots) {
  const Safetensors file = read_safetensors(path);
  std::vector<SlotSpec> specs;
  std::vector<StoredTensor> tensors;
  int64_t samples = -1;
  for (const BatchSlot& slot : slots) {
    const std::string& name = network[slot.tensor].name;
    const auto found = std::ranges::find(file.tensors, name, &StoredTensor::name);
    if (found == file.tensors.end())
      fail_input("{}: has no tensor \"{}\", which the model reads", path, name);
    const Shape& shape = found->type.shape;
    if (shape.empty() || Shape(shape.begin() + 1, shape.end()) != slot.spec.shape)
      fail_input("{}: tensor \"{}\" is {}; expected samples of {}", path, name, format_shape(shape),
                 format_shape(slot.spec.shape));
    const bool floats = slot.spec.kind == SlotKind::Float || slot.spec.kind == SlotKind::Image;
    if (floats != is_float(found->type.dtype))
      fail_input("{}: tensor \"{}\" is of {}, which the model does not take there", path, name,
                 dtype_name(found->type.dtype));
    if (samples >= 0 && shape[0] != samples)
      fail_input("{}: tensor \"{}\" has {} samples, another one {}", path, name, shape[0], samples);
    samples = shape[0];
    if (samples < 1) fail_input("{}: tensor \"{}\" has no samples", path, name);
    tensors.push_back(*found);
    specs.push_back(slot.spec);
  }
  return std::make_unique<TensorFile>(std::move(specs), std::move(tensors), samples, path);
}

}  // namespace

std::vector<BatchSlot> batch_slots(const Graph& network, const BatchAxes& batch) {
  std::vector<BatchSlot> slots;
  std::optional<Shape> tokens, images;
  const auto sample_shape = [&](const Tensor& tensor, bool per_sample) {
    const Shape& shape = tensor.type.shape;
    return per_sample ? Shape(shape.begin() + 1, shape.end()) : shape;
  };
  // Inputs first: what a label is depends on them.
  for (const bool labels : {false, true})
    for (size_t i = 0; i < network.tensors.size(); ++i) {
      const Tensor& tensor = network.tensors[i];
      const bool label = tensor.role == TensorRole::Label;
      if (label != labels || (!label && tensor.role != TensorRole::Input)) continue;
      const TensorId id(i);
      BatchSlot slot = {.tensor = id, .spec = {}};
      slot.per_sample = !tensor.type.shape.empty() && batch.axis[i] == 0 &&
                        tensor.type.shape[0] % std::max<int64_t>(1, batch.samples) == 0;
      slot.spec.shape = sample_shape(tensor, slot.per_sample);
      if (slot.per_sample && tensor.type.shape[0] != batch.samples)
        slot.spec.shape.insert(slot.spec.shape.begin(), tensor.type.shape[0] / batch.samples);
      slot.spec.bound = is_float(tensor.type.dtype) ? 0 : bound_of(network, id);
      if (is_float(tensor.type.dtype)) {
        const size_t axes = slot.spec.shape.size();
        const bool image = !label && (axes == 3 || axes == 1);
        slot.spec.kind = image ? SlotKind::Image : SlotKind::Float;
        if (image) images = slot.spec.shape;
      } else if (!label) {
        const Reader reader = reader_of(network, id);
        const bool looked_up = reader.op != nullptr && reader.op->kind == OpKind::Embedding;
        // The first that is looked up is the text; further ones (segments, positions) are 0.
        slot.spec.kind = looked_up && !tokens ? SlotKind::Tokens : SlotKind::Integer;
        if (slot.spec.kind == SlotKind::Tokens)
          tokens = slot.spec.shape;
        else
          slot.spec.bound = 1;
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
