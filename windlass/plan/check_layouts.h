// Layouts as small numbers, and what follows from two of them.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/strategy/layout.h"
#include "windlass/strategy/redistribute.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// Layouts of the operands of a forward op under its sharding; -1 for absent ones.
struct OpLayouts {
  std::vector<int32_t> inputs, outputs, auxiliaries, output_gradients, input_gradients;
  bool coupled = false, backward_coupled = false;  // its pieces exchange values
};

class CheckLayouts {
 public:
  explicit CheckLayouts(const TrainingGraph& training, const Strategy& strategy);

  const OpLayouts& of(OpId forward) const { return ops_[forward.index()]; }
  const Layout& operator[](int32_t id) const { return layouts_[static_cast<size_t>(id)]; }
  int32_t intern(const Layout& layout);

  bool partial(int32_t id) const { return (*this)[id].partial(); }
  // With copies instead of partial sums.
  int32_t settled(int32_t id);
  // Copies on all of `members`.
  int32_t copies(int64_t members);
  // Whether every member that holds `has` holds what `wants` asks of it.
  bool fits(const Shape& shape, int32_t has, int32_t wants, int64_t members);
  // Number of moves from one layout to another, in a group or to another one.
  int32_t moves(const Shape& shape, int32_t from, int64_t from_members, int32_t to,
                int64_t to_members, bool crosses);
  // Bytes of the member with most, as allocated.
  int64_t bytes(const TensorType& type, int32_t layout);
  int64_t elements(const Shape& shape, int32_t layout);
  // Members that hold a partial sum of the same, or the same.
  int64_t partial_parts(int32_t layout) const;
  int64_t replicas(int32_t layout) const;
  std::vector<MemberDigit> digits(int32_t layout, bool partial_only) const;

 private:
  OpLayouts make(const TrainingGraph& training, const Op& op, const Sharding& sharding);

  std::vector<Layout> layouts_;
  std::vector<OpLayouts> ops_;
  std::map<std::vector<int64_t>, int32_t> index_;
  std::map<int32_t, int32_t> settled_;
  std::map<std::tuple<Shape, int32_t, int32_t>, bool> fits_;
  std::map<std::tuple<Shape, int32_t, int64_t, int32_t, int64_t, bool>, int32_t> moves_;
  std::map<std::pair<Shape, int32_t>, int64_t> elements_;
};

// What is wrong with the pieces of an op, or nothing: along every loop they must tile it.
std::string check_tiling(const LoopNest& nest, const Sharding& sharding);

}  // namespace windlass
