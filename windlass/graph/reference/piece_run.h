// An op run in pieces, for the tests: each piece on arrays that hold its regions and nothing else.
// What the pieces make is put together by the conventions of op_piece.h and compared with the op
// that is not cut.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "windlass/graph/reference/pieces.h"
#include "windlass/graph/reference/random_cuts.h"

namespace windlass::reference {

class PieceRun {
 public:
  // Throws as piece_of does. Every combination of ranges of the cuts is a member.
  PieceRun(const Subject& subject, std::vector<Cut> cuts);

  // Whether the op table takes the local signatures and infers their outputs.
  void check_types() const;
  // Outputs, auxiliaries and running statistics.
  void check_forward();
  // Some of the gradients, for some of the output gradients.
  void check_backward(Rng& rng);

 private:
  using Key = std::vector<size_t>;
  using Member = CutPiece;
  // Gradients that arrive (without values where none does) and the rule for those that are wanted.
  struct Wishes {
    std::vector<bool> wanted;
    std::vector<Array> gradients;
    GradientRule rule;
  };

  std::vector<std::vector<Array>> cut_inputs() const;
  // What every member has after an exchange with those that differ from it only in loops that
  // couple; empty if there is none. `begin` makes the statistics of a member.
  std::vector<Array> exchange(Pass pass, const std::vector<bool>& wanted,
                              const std::function<Array(size_t)>& begin) const;
  void expect_priced(const Member& member, Pass pass, const TensorType& type) const;
  // Labels of a cross-entropy that count, added up over the members that have different ones.
  void exchange_label_counts();
  // What the members made, combined over the cuts for which `partial` says how, and otherwise the
  // same on all members that differ only in cuts that the operand lacks. By place in the cuts that
  // it has.
  std::map<Key, Array> settle(const std::vector<Array>& arrays, const OperandMap& map,
                              const std::function<std::optional<CombineFn>(size_t)>& partial,
                              const std::string& what) const;
  Key place_of(const Member& member, const OperandMap& map) const;
  // A member at that place.
  const OpPiece& piece_at(const OperandMap& map, const Key& place) const;

  Wishes choose_wishes(Rng& rng) const;
  // Calls function(gradients, saved) with the regions of a piece, or with all for null.
  template <class Function>
  auto with_operands(const Wishes& wishes, const OpPiece* piece, const Function& function) const;
  const Array& saved_array(const SavedRef& ref) const;

  void expect_result(const std::vector<Array>& arrays, const OperandMap& map,
                     std::vector<Region> OpPiece::*regions, size_t index, const Array& expected,
                     const std::string& kind) const;
  void expect_writes(const std::vector<std::vector<Array>>& written) const;
  void expect_gradient(const std::vector<Array>& arrays, size_t input, const Array& expected) const;
  void expect_equal(const Array& found, const Array& expected, const std::string& what) const;

  const Subject& s_;
  std::vector<Cut> cuts_;
  std::vector<Member> members_;
};

}  // namespace windlass::reference
