#include "windlass/graph/op_piece.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/graph/coupled.h"

namespace windlass {
namespace {

bool is_cut(const LoopDim& loop, const LoopPart& part) {
  return part.range.size() * part.blocks != loop.size;
}

void check_parts(const Signature& whole, const LoopNest& nest, const std::vector<LoopPart>& parts) {
  ensure(parts.size() == nest.loops.size(), "a piece has a part of every loop");
  for (size_t l = 0; l < parts.size(); ++l) {
    const LoopDim& loop = nest.loops[l];
    const LoopPart& part = parts[l];
    ensure(part.blocks >= 1 && loop.size % part.blocks == 0 && part.range.begin >= 0 &&
               part.range.end <= loop.size / part.blocks,
           "a part of a loop lies inside the loop");
    if (!is_cut(loop, part)) continue;
    ensure(part.range.size() > 0, "a part of a loop is not empty");
    if (loop.role == LoopRole::Whole)
      fail_unsupported("{} cannot be split along {}", op_info(whole.kind).name, loop.name);
  }
}

AxisPart part_of_axis(const Signature& whole, const LoopNest& nest, const AxisMap& map,
                      const std::vector<LoopPart>& parts, int64_t size) {
  const AxisPart all = {size, {0, size}};
  if (map.loop < 0) return all;
  const auto l = static_cast<size_t>(map.loop);
  const LoopDim& loop = nest.loops[l];
  const LoopPart& part = parts[l];
  if (!is_cut(loop, part)) return all;
  const bool tiles =
      map.offset == 0 && map.stride == map.window && loop.size * map.stride * map.blocks == size;
  if (part.blocks > 1 && !tiles)
    fail_unsupported("{} cannot be split along {} in blocks: windows reach across them",
                     op_info(whole.kind).name, loop.name);
  const int64_t blocks = part.blocks * map.blocks;
  return {size, axis_range(map, part.range, size / blocks), blocks};
}

void cut_operands(const Signature& whole, const LoopNest& nest, const std::vector<LoopPart>& parts,
                  const std::vector<TensorType>& types, const std::vector<OperandMap>& maps,
                  std::vector<TensorType>& local, std::vector<Region>& regions) {
  for (size_t i = 0; i < types.size(); ++i) {
    Region region;
    for (size_t a = 0; types[i].present() && a < types[i].shape.size(); ++a)
      region.push_back(part_of_axis(whole, nest, maps[i][a], parts, types[i].shape[a]));
    local.push_back({types[i].dtype, local_shape(region)});
    regions.push_back(std::move(region));
  }
}

bool adds_bias(int32_t bias, const LoopNest& nest, const std::vector<LoopPart>& parts) {
  if (bias < 0 || static_cast<size_t>(bias) >= nest.inputs.size()) return true;
  for (size_t l = 0; l < parts.size(); ++l)
    if (nest.loops[l].role == LoopRole::Reduced && parts[l].range.begin > 0 &&
        !follows_loop(nest.inputs[static_cast<size_t>(bias)], l))
      return false;
  return true;
}

}  // namespace

std::vector<LoopPart> whole_parts(const LoopNest& nest) {
  std::vector<LoopPart> parts;
  for (const LoopDim& loop : nest.loops) parts.push_back({{0, loop.size}});
  return parts;
}

int64_t AxisPart::to_whole(int64_t local) const {
  if (size == 0) return local;
  return local / range.size() * (size / blocks) + range.begin + local % range.size();
}

int64_t AxisPart::to_local(int64_t whole) const {
  if (size == 0) return whole;
  const int64_t run = size / blocks, at = whole % run;
  if (at < range.begin || at >= range.end) return -1;
  return whole / run * range.size() + at - range.begin;
}

Shape local_shape(const Region& region) {
  Shape shape;
  for (const AxisPart& part : region) shape.push_back(part.count());
  return shape;
}

int64_t whole_element(const Region& region, int64_t local) {
  if (region.empty()) return local;
  int64_t whole = 0, stride = 1;
  for (size_t a = region.size(); a-- > 0;) {
    whole += region[a].to_whole(local % region[a].count()) * stride;
    local /= region[a].count();
    stride *= region[a].size;
  }
  return whole;
}

OpPiece piece_of(const Signature& whole, const LoopNest& nest, const std::vector<LoopPart>& parts) {
  check_parts(whole, nest, parts);
  const OpInfo& info = op_info(whole.kind);
  OpPiece piece;
  piece.kind = whole.kind;
  piece.attrs = *whole.attrs;
  const auto cut = [&](const auto& types, const auto& maps, auto& local, auto& regions) {
    cut_operands(whole, nest, parts, types, maps, local, regions);
  };
  cut(whole.inputs, nest.inputs, piece.inputs, piece.input_regions);
  cut(whole.outputs, nest.outputs, piece.outputs, piece.output_regions);
  cut(whole.auxiliaries, nest.auxiliaries, piece.auxiliaries, piece.auxiliary_regions);
  piece.facts.adds_bias = adds_bias(info.bias, nest, parts);
  for (size_t l = 0; l < parts.size(); ++l)
    piece.coupled = piece.coupled || (couples(nest.loops[l]) && is_cut(nest.loops[l], parts[l]));
  if (info.piece != nullptr) info.piece(whole, piece);
  return piece;
}

bool partial_gradient(OpKind kind, const LoopNest& nest, size_t input, size_t loop) {
  switch (nest.loops[loop].role) {
    case LoopRole::Free: return true;
    case LoopRole::Reduced: return static_cast<int32_t>(input) != op_info(kind).bias;
    case LoopRole::Coupled:
    case LoopRole::Whole: return false;
  }
  return false;
}

bool follows_loop(const OperandMap& map, size_t loop) {
  return std::ranges::any_of(
      map, [&](const AxisMap& axis) { return axis.loop == static_cast<int32_t>(loop); });
}

}  // namespace windlass
