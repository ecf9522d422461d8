#include "windlass/cost/piece.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {

Piece::Piece(const Graph& graph, const Op& op, const LoopNest& nest, const LocalSizes& local,
             const LoopBlocks& blocks)
    : graph_(graph),
      op_(op),
      nest_(nest),
      local_(local),
      blocks_(blocks),
      signature_(signature_of(graph, op)) {
  ensure(local.size() == nest.loops.size(), "a piece needs one local size per loop");
}

double Piece::share(size_t loop) const {
  const int64_t size = nest_.loops[loop].size;
  return size == 0 ? 0 : static_cast<double>(local_[loop]) / static_cast<double>(size);
}

double Piece::share() const {
  double product = 1;
  for (size_t i = 0; i < local_.size(); ++i) product *= share(i);
  return product;
}

Shape Piece::local_shape(const OperandMap& map, const Shape& shape) const {
  Shape result = shape;
  for (size_t i = 0; i < std::min(map.size(), shape.size()); ++i) {
    if (map[i].loop < 0) continue;
    const auto loop = static_cast<size_t>(map[i].loop);
    const int64_t size = local_[loop];
    const int64_t begin = std::min(size, nest_.loops[loop].size - size);
    const int64_t run = shape[i] / map[i].blocks;
    result[i] = axis_range(map[i], {begin, begin + size}, run).size() * map[i].blocks;
  }
  return result;
}

Bytes Piece::bytes(const OperandMap& map, const TensorType& type) const {
  if (!type.present()) return Bytes(0);
  return byte_size({type.dtype, local_shape(map, type.shape)});
}

Bytes Piece::input(size_t i) const {
  return i < signature_.inputs.size() ? bytes(nest_.inputs[i], signature_.inputs[i]) : Bytes(0);
}

Bytes Piece::output(size_t i) const { return bytes(nest_.outputs[i], signature_.outputs[i]); }

Bytes Piece::auxiliary(size_t i) const {
  return bytes(nest_.auxiliaries[i], signature_.auxiliaries[i]);
}

Bytes Piece::inputs() const {
  Bytes total;
  for (size_t i = 0; i < signature_.inputs.size(); ++i) total += input(i);
  return total;
}

Bytes Piece::outputs() const {
  Bytes total;
  for (size_t i = 0; i < signature_.outputs.size(); ++i) total += output(i);
  return total;
}

Bytes Piece::auxiliaries() const {
  Bytes total;
  for (size_t i = 0; i < op_.auxiliaries.size(); ++i)
    if (op_.auxiliaries[i].valid()) total += auxiliary(i);
  return total;
}

Bytes Piece::output_gradient(size_t i) const {
  return bytes(nest_.outputs[i], graph_.type_of(op_.inputs[i]));
}

Bytes Piece::output_gradients() const {
  Bytes total;
  for (size_t i = 0; i < signature_.outputs.size(); ++i) total += output_gradient(i);
  return total;
}

Bytes Piece::input_gradient(size_t i) const {
  return wants(i) ? bytes(nest_.inputs[i], graph_.type_of(op_.outputs[i])) : Bytes(0);
}

Bytes Piece::input_gradients() const {
  Bytes total;
  for (size_t i = 0; i < op_.outputs.size(); ++i) total += input_gradient(i);
  return total;
}

Bytes Piece::saved() const {
  Bytes total;
  for (const SavedRef& ref : op_.saved) {
    const auto i = static_cast<size_t>(ref.index);
    switch (ref.source) {
      case SavedRef::Source::Input: total += input(i); break;
      case SavedRef::Source::Output: total += output(i); break;
      case SavedRef::Source::Auxiliary: total += auxiliary(i); break;
    }
  }
  return total;
}

bool Piece::wants(size_t i) const { return i < op_.outputs.size() && op_.outputs[i].valid(); }

}  // namespace windlass
