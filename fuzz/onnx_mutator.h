// Edits of ONNX files that leave them well-formed on the wire: fields are changed, removed,
// repeated, moved and copied between messages, and the lengths around them follow. Changes of
// single bytes, which libFuzzer does by itself, rarely get past the parser.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace windlass::fuzz {

// Messages whose fields are looked into; everything else is bytes.
enum class Message : std::uint8_t {
  None,
  Model,
  Graph,
  Node,
  Attribute,
  Tensor,
  Value,
  Type,
  TensorType,
  Shape,
  Dimension,
  Opset,
  Function,
  Entry,
};

inline Message child_of(Message parent, std::uint64_t field) {
  struct Link {
    Message parent;
    std::uint64_t field;
    Message child;
  };
  using enum Message;
  static constexpr Link kLinks[] = {
      {Model, 7, Graph},      {Model, 8, Opset},      {Model, 25, Function}, {Graph, 1, Node},
      {Graph, 5, Tensor},     {Graph, 11, Value},     {Graph, 12, Value},    {Graph, 13, Value},
      {Node, 5, Attribute},   {Attribute, 5, Tensor}, {Attribute, 6, Graph}, {Tensor, 13, Entry},
      {Function, 7, Node},    {Function, 9, Opset},   {Value, 2, Type},      {Type, 1, TensorType},
      {TensorType, 2, Shape}, {Shape, 1, Dimension},
  };
  for (const Link& link : kLinks)
    if (link.parent == parent && link.field == field) return link.child;
  return None;
}

// A field of a message: a number, bytes, or a message of its own.
struct WireField {
  std::uint64_t tag = 0;  // number and wire type
  std::uint64_t number = 0;
  std::string bytes;  // also fixed-width values
  Message message = Message::None;
  std::vector<WireField> fields;  // if it is a message

  std::uint64_t wire_type() const { return tag & 7; }
};

class WireParser {
 public:
  explicit WireParser(std::string_view text) : rest_(text) {}

  // The fields of a message, or nothing if the text is no message.
  std::optional<std::vector<WireField>> fields(Message message, int depth = 0) {
    std::vector<WireField> result;
    while (!rest_.empty()) {
      WireField field;
      if (!varint(field.tag)) return std::nullopt;
      std::uint64_t length = 0;
      switch (field.wire_type()) {
        case 0:
          if (!varint(field.number)) return std::nullopt;
          break;
        case 1: length = 8; break;
        case 2:
          if (!varint(length)) return std::nullopt;
          break;
        case 5: length = 4; break;
        default: return std::nullopt;
      }
      if (length > rest_.size()) return std::nullopt;
      const std::string_view content = rest_.substr(0, length);
      rest_.remove_prefix(length);
      const Message child = child_of(message, field.tag >> 3);
      if (field.wire_type() == 2 && child != Message::None && depth < 20) {
        auto inner = WireParser(content).fields(child, depth + 1);
        if (!inner) return std::nullopt;
        field.message = child;
        field.fields = *std::move(inner);
      } else {
        field.bytes = content;
      }
      result.push_back(std::move(field));
    }
    return result;
  }

 private:
  bool varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view rest_;
};

inline void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(0x80 | (value & 0x7f)));
  out.push_back(static_cast<char>(value));
}

inline std::string serialize(const std::vector<WireField>& fields) {
  std::string out;
  for (const WireField& field : fields) {
    put_varint(out, field.tag);
    const std::string content =
        field.message == Message::None ? field.bytes : serialize(field.fields);
    if (field.wire_type() == 0) put_varint(out, field.number);
    if (field.wire_type() == 2) put_varint(out, content.size());
    out += content;
  }
  return out;
}

class OnnxMutator {
 public:
  explicit OnnxMutator(unsigned seed) : random_(seed) {}

  // One to four edits; what is copied may come from `donor` as well.
  void mutate(std::vector<WireField>& model, const std::vector<WireField>& donor) {
    const std::size_t edits = 1 + below(4);
    for (std::size_t i = 0; i < edits; ++i) {
      places_.clear();
      donors_.clear();
      collect(Message::Model, model, places_);
      collect(Message::Model, const_cast<std::vector<WireField>&>(donor), donors_);
      donors_.insert(donors_.end(), places_.begin(), places_.end());
      if (places_.empty()) return;
      edit(model);
    }
  }

 private:
  // A field and the message it is in.
  struct Place {
    Message parent;
    std::vector<WireField>* list;
    std::size_t index;
    WireField& field() const { return (*list)[index]; }
  };

  std::size_t below(std::size_t limit) { return random_() % limit; }

  static void collect(Message parent, std::vector<WireField>& fields, std::vector<Place>& places) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      places.push_back({parent, &fields, i});
      collect(fields[i].message, fields[i].fields, places);
    }
  }

  void edit(std::vector<WireField>& model) {
    const Place place = places_[below(places_.size())];
    switch (below(8)) {
      case 0:
        place.list->erase(place.list->begin() + static_cast<std::ptrdiff_t>(place.index));
        break;
      case 1: {
        const WireField copy = place.field();
        place.list->insert(place.list->begin() + static_cast<std::ptrdiff_t>(place.index), copy);
        break;
      }
      case 2: std::swap(place.field(), (*place.list)[below(place.list->size())]); break;
      case 3:
      case 4: copy_from_elsewhere(place); break;
      case 5:
        // A version that the installed ONNX library does not know: its checker is skipped.
        for (WireField& field : model)
          if (field.tag == 8) field.number = 99;
        break;
      default: change(place.field()); break;
    }
  }

  // Replaces the field, or adds beside it, another field of the same message type.
  void copy_from_elsewhere(const Place& place) {
    std::vector<const WireField*> fitting;
    for (const Place& other : donors_)
      if (other.parent == place.parent) fitting.push_back(&other.field());
    const WireField copy = *fitting[below(fitting.size())];
    if (copy.tag == place.field().tag && below(2) == 0)
      place.field() = copy;
    else
      place.list->push_back(copy);
  }

  void change(WireField& field) {
    if (field.message != Message::None) return;
    switch (field.wire_type()) {
      case 0: field.number = interesting(field.number); break;
      case 5: change_float(field.bytes); break;
      default: change_bytes(field.bytes); break;
    }
  }

  std::uint64_t interesting(std::uint64_t old) {
    static constexpr std::int64_t kEnds[] = {INT64_MAX,
                                             INT64_MIN,
                                             INT64_MIN + 1,
                                             std::int64_t{1} << 62,
                                             std::int64_t{1} << 58,
                                             std::int64_t{1} << 40,
                                             std::int64_t{1} << 31,
                                             -(std::int64_t{1} << 31),
                                             std::int64_t{1} << 22,
                                             65536,
                                             1000};
    switch (below(4)) {
      case 0: return static_cast<std::uint64_t>(kEnds[below(std::size(kEnds))]);
      case 1: return old + 1;
      case 2: return old - 1;
      default: return static_cast<std::uint64_t>(static_cast<std::int64_t>(below(24)) - 4);
    }
  }

  void change_float(std::string& bytes) {
    static constexpr float kValues[] = {0.0F, 1.0F, -1.0F, 0.5F, 1e30F, -1e30F, HUGE_VALF, NAN};
    const float value = kValues[below(std::size(kValues))];
    bytes.assign(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  // Text becomes another text of the file; values become others of the same width.
  void change_bytes(std::string& bytes) {
    switch (below(4)) {
      case 0: bytes.clear(); break;
      case 1: {
        const WireField& other = donors_[below(donors_.size())].field();
        if (other.message == Message::None && other.wire_type() == 2) bytes = other.bytes;
        break;
      }
      case 2:
        if (bytes.size() >= 8) {
          const std::uint64_t value = interesting(0);
          bytes.replace(below(bytes.size() / 8) * 8, 8, reinterpret_cast<const char*>(&value), 8);
        }
        break;
      default:
        if (!bytes.empty()) bytes[below(bytes.size())] = static_cast<char>(below(256));
        break;
    }
  }

  std::minstd_rand random_;
  std::vector<Place> places_, donors_;
};

}  // namespace windlass::fuzz
