#include "windlass/model/onnx/wire.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/model/onnx/wire_fields.h"

namespace windlass {
namespace {

constexpr int kMaxDepth = 64;
// Messages take a hundred times their bytes in memory; real models have some ten thousand.
constexpr size_t kMaxMessages = 2'000'000;
// Tensors have four or five entries that say where their value is.
constexpr size_t kMaxLocationFields = 100;
constexpr int64_t kProtobufLimit = std::numeric_limits<int32_t>::max();

// Messages on the way to tensors.
enum class Message : uint8_t {
  Model,
  TrainingInfo,
  Function,
  Graph,
  Node,
  Attribute,
  SparseTensor,
  Tensor,
};

constexpr size_t kMessageCount = static_cast<size_t>(Message::Tensor) + 1;

std::string_view message_name(Message message) {
  constexpr std::array<std::string_view, kMessageCount> kNames = {
      "ModelProto", "TrainingInfoProto", "FunctionProto",     "GraphProto",
      "NodeProto",  "AttributeProto",    "SparseTensorProto", "TensorProto"};
  return kNames[static_cast<size_t>(message)];
}

// The message in each field of each message, where it can hold tensors.
constexpr uint32_t kFieldEnd = 26;
constexpr auto kChildMessages = [] {
  using enum Message;
  std::array<std::array<std::optional<Message>, kFieldEnd>, kMessageCount> children;
  const auto set = [&children](Message parent, uint32_t field, Message child) {
    children[static_cast<size_t>(parent)][field] = child;
  };
  set(Model, 7, Graph);
  set(Model, 20, TrainingInfo);
  set(Model, 25, Function);
  set(TrainingInfo, 1, Graph);
  set(TrainingInfo, 2, Graph);
  set(Function, 7, Node);
  set(Function, 11, Attribute);
  set(Graph, 1, Node);
  set(Graph, 5, Tensor);
  set(Graph, 15, SparseTensor);
  set(Node, 5, Attribute);
  set(Attribute, 5, Tensor);
  set(Attribute, 6, Graph);
  set(Attribute, 10, Tensor);
  set(Attribute, 11, Graph);
  set(Attribute, 22, SparseTensor);
  set(Attribute, 23, SparseTensor);
  set(SparseTensor, 1, Tensor);
  return children;
}();

std::optional<Message> child_message(Message parent, uint32_t field) {
  if (field >= kFieldEnd) return std::nullopt;
  return kChildMessages[static_cast<size_t>(parent)][field];
}

constexpr std::array<PayloadField, 7> kPayloadFields = {
    PayloadField::Float, PayloadField::Int32,  PayloadField::String, PayloadField::Int64,
    PayloadField::Raw,   PayloadField::Double, PayloadField::Uint64};

// How an element of the field is stored outside a packed list.
WireType element_type(PayloadField field) {
  switch (field) {
    case PayloadField::Float: return WireType::Fixed32;
    case PayloadField::Double: return WireType::Fixed64;
    case PayloadField::Raw:
    case PayloadField::String: return WireType::Delimited;
    case PayloadField::Int32:
    case PayloadField::Int64:
    case PayloadField::Uint64: return WireType::Varint;
  }
  return WireType::Delimited;
}

std::string_view text_at(std::span<const std::byte> file, const Field& field) {
  return {reinterpret_cast<const char*>(file.data()) + field.content, field.size()};
}

// Where one of the value fields of a tensor lies: a run of fields if it comes in several parts.
struct ValueRun {
  size_t begin = 0;    // of the first tag
  size_t content = 0;  // of the first value
  size_t end = 0;      // of the last value
  size_t parts = 0;
  bool contiguous = true;
  bool packed = true;  // all parts have a length

  size_t size() const { return end - begin; }

  void add(const Field& field) {
    if (parts == 0) {
      begin = field.begin;
      content = field.content;
    } else if (field.begin != end) {
      contiguous = false;
    }
    packed = packed && field.type == WireType::Delimited;
    end = field.end;
    ++parts;
  }
};

class SkeletonReader {
 public:
  SkeletonReader(std::span<const std::byte> file, const SkeletonOptions& options)
      : file_(file), options_(options) {}

  Skeleton read() {
    scan(Message::Model, 0, file_.size(), 0);
    return {apply_edits(), std::move(payloads_)};
  }

 private:
  // Replaces [begin, end) of the file.
  struct Edit {
    size_t begin = 0;
    size_t end = 0;
    std::string text;
  };

  struct TensorScan {
    std::string_view name;
    bool external = false;
    std::array<ValueRun, kPayloadFields.size()> values;  // parallel to kPayloadFields
    std::vector<Edit> location;                          // cuts out what says where the value lies
  };

  // Returns by how many bytes the message shrinks.
  size_t scan(Message message, size_t begin, size_t end, int depth) {
    if (depth > kMaxDepth)
      fail_input("byte {}: messages are nested more than {} deep; the file is damaged or not ONNX",
                 begin, kMaxDepth);
    if (++messages_ > kMaxMessages)
      fail_input(
          "byte {}: more than {} nodes, attributes and tensors; the file is damaged or not ONNX",
          begin, kMaxMessages);
    if (message == Message::Tensor) return scan_tensor(begin, end);
    size_t cut = 0;
    FieldReader reader(file_, begin, end, message_name(message));
    while (!reader.done()) {
      const Field field = reader.next();
      if (field.type != WireType::Delimited) continue;
      if (const auto child = child_message(message, field.number))
        cut += scan_child(*child, field, depth + 1);
    }
    return cut;
  }

  size_t scan_child(Message message, const Field& field, int depth) {
    const size_t length_edit = edits_.size();
    edits_.push_back({field.length_at, field.content, {}});
    const size_t cut = scan(message, field.content, field.end, depth);
    if (cut == 0) {
      edits_.pop_back();
      return 0;
    }
    // Protobuf reads lengths of at most five bytes.
    const size_t old_width = field.content - field.length_at;
    const size_t width = std::min<size_t>(old_width, 5);
    const size_t length = field.size() - cut;
    if (varint_width(length) > width) fail_too_large();
    append_varint(edits_[length_edit].text, length, width);
    return cut + old_width - width;
  }

  size_t scan_tensor(size_t begin, size_t end) {
    TensorScan tensor;
    FieldReader reader(file_, begin, end, message_name(Message::Tensor));
    while (!reader.done()) {
      const Field field = reader.next();
      const auto value = std::ranges::find(kPayloadFields, static_cast<PayloadField>(field.number));
      if (field.number < kFieldEnd && value != kPayloadFields.end()) {
        if (field.type == WireType::Delimited || field.type == element_type(*value))
          tensor.values[value - kPayloadFields.begin()].add(field);
      } else if (field.number == 8 && field.type == WireType::Delimited) {
        tensor.name = text_at(file_, field);
      } else if (field.number == 13 && field.type == WireType::Delimited) {
        check_external_entry(field);
        tensor.location.push_back({field.begin, field.end, {}});
        if (tensor.location.size() > kMaxLocationFields)
          fail_input("byte {}: tensor \"{}\" names more than {} places; the file is damaged",
                     field.begin, tensor.name, kMaxLocationFields);
      } else if (field.number == 14 && field.type == WireType::Varint) {
        tensor.external = field.varint == 1;
        tensor.location.push_back({field.begin, field.end, {}});
      }
    }
    return cut_value(std::move(tensor));
  }

  void check_external_entry(const Field& entry) const {
    FieldReader reader(file_, entry.content, entry.end, "StringStringEntryProto");
    while (!reader.done()) {
      const Field field = reader.next();
      if (field.number == 1 && field.type == WireType::Delimited &&
          text_at(file_, field) == kPayloadKey)
        fail_input("byte {}: external data uses the key {}, which is reserved", entry.begin,
                   kPayloadKey);
    }
  }

  size_t cut_value(TensorScan tensor) {
    const std::optional<size_t> chosen = large_value(tensor);
    if (!chosen) return 0;
    const ValueRun& run = tensor.values[*chosen];
    const PayloadField field = kPayloadFields[*chosen];
    const bool records = run.parts > 1 || !run.packed || field == PayloadField::String;
    const size_t from = records ? run.begin : run.content;
    Payload payload{std::string(tensor.name), static_cast<int64_t>(from),
                    static_cast<int64_t>(run.end - from), field, records};
    std::string text = external_data(payload);
    if (text.size() >= run.size()) return 0;
    size_t cut = run.size() - text.size();
    // What the tensor said of its location before would contradict what it says now.
    std::vector<Edit> edits = std::move(tensor.location);
    for (const Edit& edit : edits) cut += edit.end - edit.begin;
    edits.push_back({run.begin, run.end, std::move(text)});
    std::ranges::sort(edits, {}, &Edit::begin);
    std::ranges::move(edits, std::back_inserter(edits_));
    payloads_.push_back(std::move(payload));
    return cut;
  }

  // Which of the values is to be cut out, if any.
  std::optional<size_t> large_value(const TensorScan& tensor) const {
    std::optional<size_t> chosen;
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const ValueRun& run = tensor.values[i];
      const std::string_view value = field_name(kPayloadFields[i]);
      if (!is_large(run, kPayloadFields[i])) continue;
      if (tensor.external)
        fail_input("byte {}: tensor \"{}\" is marked as external data but has {} in the file",
                   run.begin, tensor.name, value);
      if (chosen)
        fail_input("byte {}: tensor \"{}\" has both {} and {}; expected one of them", run.begin,
                   tensor.name, field_name(kPayloadFields[*chosen]), value);
      chosen = i;
    }
    return chosen;
  }

  // Of a singular field in several parts only the last counts, and scattered parts cannot be cut
  // out as one: such values, which no writer produces, stay.
  bool is_large(const ValueRun& run, PayloadField field) const {
    if (run.parts == 0 || !run.contiguous) return false;
    if (field == PayloadField::Raw && (run.parts > 1 || !run.packed)) return false;
    return static_cast<uint64_t>(run.end - run.content) >
           static_cast<uint64_t>(std::max<int64_t>(options_.threshold, 0));
  }

  std::string external_data(const Payload& payload) const {
    std::string text = "\x70\x01";  // data_location = EXTERNAL
    const auto entry = [&text](std::string_view key, std::string_view value) {
      std::string content;
      append_bytes(content, 1, key);
      append_bytes(content, 2, value);
      append_bytes(text, 13, content);
    };
    entry("location", options_.location);
    entry("offset", std::to_string(payload.offset));
    entry("length", std::to_string(payload.length));
    entry(kPayloadKey, std::to_string(payloads_.size()));
    return text;
  }

  std::string apply_edits() const {
    size_t size = file_.size();
    for (const Edit& edit : edits_) size = size - (edit.end - edit.begin) + edit.text.size();
    if (size > static_cast<size_t>(kProtobufLimit)) fail_too_large();
    std::string out;
    out.reserve(size);
    size_t position = 0;
    const auto copy_until = [&](size_t end) {
      out.append(reinterpret_cast<const char*>(file_.data()) + position, end - position);
    };
    for (const Edit& edit : edits_) {
      copy_until(edit.begin);
      out += edit.text;
      position = edit.end;
    }
    copy_until(file_.size());
    return out;
  }

  [[noreturn]] void fail_too_large() const {
    fail_input(
        "the file without its weights still exceeds {} bytes, which is all that protobuf can "
        "read; store the large attributes as initializers",
        kProtobufLimit);
  }

  std::span<const std::byte> file_;
  const SkeletonOptions& options_;
  std::vector<Edit> edits_;  // ascending
  std::vector<Payload> payloads_;
  size_t messages_ = 0;
};

}  // namespace

Skeleton read_skeleton(std::span<const std::byte> file, const SkeletonOptions& options) {
  return SkeletonReader(file, options).read();
}

}  // namespace windlass
