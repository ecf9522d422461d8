// Layouts and sets of digits as small numbers, what follows from them, and what each op wants.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/strategy/layout.h"
#include "windlass/strategy/redistribute.h"
#include "windlass/strategy/strategy.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// The part of a tensor that a member has: along each axis, ranges that do not touch.
using Part = std::vector<std::vector<Range>>;
Part member_part(const Layout& layout, const Shape& shape, int64_t member);
int64_t volume(const Part& part);
// Elements that both have.
int64_t common(const Part& a, const Part& b);
// Whether what the parts have together along each axis covers what is wanted. Of parts that are
// all combinations of some parts of the axes, this is whether they cover it.
bool cover(const std::vector<const Part*>& parts, const Part& wanted);
// The digits of a member over which an axis is cut, or over which results are partial, as a number:
// members with equal ones have the same part, or share of a sum.
int64_t digits_of_kind(const Layout& layout, int64_t member, Digit::Kind kind);

// An operand of an op, as its sharding wants or leaves it.
struct CheckOperand {
  UseKind kind = UseKind::Input;
  uint32_t index = 0;
  TensorId tensor;
  int32_t layout = -1;
  bool write = false;
  bool gradient = false;  // that the op gives: where parts overlap, each has a share of the sum
};

// An op of the forward or backward pass under its sharding.
struct CheckOp {
  std::vector<CheckOperand> reads, results;
  // What its pieces exchange before it ends, among the members that differ in these digits only:
  // bytes of statistics, of the member with most. 0: nothing.
  int64_t exchanged = 0;
  // By member: bytes of statistics that it has room for. Those of the member with most, but where
  // parts are unequal, of those with the same sizes.
  std::vector<int64_t> exchanged_of;
  int32_t digits = 0;
};

class CheckLayouts {
 public:
  CheckLayouts(const TrainingGraph& training, const Strategy& strategy);

  // What is asked from now on is asked of this micro-batch: where they are unequal, ops and tensors
  // have its sizes. At first, and with -1, of a larger one.
  void turn_to(int32_t micro_batch) {
    sized_ = &training_.of(micro_batch);
    smaller_ = sized_ != &training_ ? 1 : 0;
  }
  // The step of that micro-batch.
  const TrainingGraph& sized() const { return *sized_; }

  // An op of the forward pass, or its backward op.
  const CheckOp& of(OpId op) const { return ops_[smaller_][op.index()]; }
  // The gradient of an input of a forward op, as its backward op leaves it.
  int32_t input_gradient(OpId forward, size_t input);

  int32_t intern(const Layout& layout);
  const Layout& operator[](int32_t id) const { return layouts_[static_cast<size_t>(id)]; }
  bool partial(int32_t id) const { return (*this)[id].partial(); }
  // With copies instead of partial sums.
  int32_t settled(int32_t id) { return intern(windlass::settled((*this)[id])); }
  // The digits over which it holds partial sums.
  int32_t partial_digits(int32_t layout);

  // Sets of digits. Equal sets of members have equal numbers; 0 is the empty set.
  int32_t intern(std::vector<MemberDigit> digits);
  const std::vector<MemberDigit>& digits(int32_t set) const {
    return sets_[static_cast<size_t>(set)];
  }
  int64_t parts(int32_t set) const;
  // Whether the numbers of so many members have these digits.
  bool among(int32_t set, int64_t members) const;
  // Whether they have, and those that differ in them only hold the same.
  bool alike(int32_t layout, int32_t set, int64_t members);

  // Tensors of the same shape have the same number.
  int32_t shape(TensorId id) const { return shapes_[smaller_][id.index()]; }
  // Whether it is a layout of the tensor over so many members.
  bool suits(TensorId tensor, int32_t layout, int64_t members);
  // Whether every member that holds `has` holds what `wants` asks of it.
  bool fits(TensorId tensor, int32_t has, int32_t wants, int64_t members);
  // Whether members have parts that differ and overlap, or leave elements out.
  bool loose(TensorId tensor, int32_t layout, int64_t members);
  // Elements of the member with most; of those with the same sizes as `member`.
  int64_t elements(TensorId tensor, int32_t layout);
  int64_t elements(TensorId tensor, int32_t layout, int64_t member);

 private:
  // Ops and shapes of the micro-batches of one size, to which it turns.
  void list(const TrainingGraph& training, size_t smaller, std::map<Shape, int32_t>& shapes);
  void list_forward(const Op& op, const LoopNest& nest, const Sharding& sharding, CheckOp& made);
  void list_backward(const Op& op, const LoopNest& nest, const Sharding& sharding, CheckOp& made);
  void list_exchange(const Op& op, const LoopNest& nest, const Sharding& sharding, CheckOp& made);
  int32_t layout_for(const LoopNest& nest, const Sharding& sharding, const OperandMap& map,
                     TensorId tensor, Access access);
  const Shape& sizes(TensorId id) const { return sized_->graph[id].type.shape; }

  const TrainingGraph& training_;
  const TrainingGraph* sized_;
  size_t smaller_ = 0;  // 1: of the smaller micro-batches
  const Strategy& strategy_;
  std::vector<CheckOp> ops_[2];  // by size
  std::vector<Layout> layouts_;
  std::map<std::vector<int64_t>, int32_t> index_;
  std::vector<std::vector<MemberDigit>> sets_ = {{}};
  std::vector<int32_t> shapes_[2];  // by size and tensor
  // By shape, layouts and members.
  std::map<std::tuple<int32_t, int32_t, int64_t>, bool> suits_, loose_, alike_;
  std::map<std::tuple<int32_t, int32_t, int32_t, int64_t>, bool> fits_;
  std::map<std::pair<int32_t, int32_t>, int64_t> elements_;
  std::map<std::tuple<int32_t, int32_t, int64_t>, int64_t> elements_of_;  // and member
};

// What is wrong with the pieces of an op, or nothing: along every loop they must tile it.
std::string check_tiling(const LoopNest& nest, const Sharding& sharding);

}  // namespace windlass
