#include "windlass/graph/reference/piece_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "windlass/graph/reference/region.h"

namespace windlass::reference {
namespace {

constexpr double kRunTolerance = 1e-10;

double combined_by(CombineFn fn, double a, double b) {
  switch (fn) {
    case CombineFn::Sum: return a + b;
    case CombineFn::Max: return std::max(a, b);
    case CombineFn::Min: return std::min(a, b);
  }
  return 0;
}

const Region& saved_region_of(const OpPiece& piece, const SavedRef& ref) {
  const auto index = static_cast<size_t>(ref.index);
  return ref.source == SavedRef::Source::Input    ? piece.input_regions[index]
         : ref.source == SavedRef::Source::Output ? piece.output_regions[index]
                                                  : piece.auxiliary_regions[index];
}

}  // namespace

PieceRun::PieceRun(const Subject& subject, std::vector<Cut> cuts)
    : s_(subject),
      cuts_(std::move(cuts)),
      members_(cut_pieces(subject.signature, subject.nest, cuts_)) {}

template <class Function>
auto PieceRun::with_operands(const Wishes& wishes, const OpPiece* piece,
                             const Function& function) const {
  std::vector<Array> arriving, saved;
  std::vector<const Array*> gradient_inputs, saved_inputs;
  for (size_t o = 0; o < wishes.gradients.size(); ++o) {
    const Array& whole = wishes.gradients[o];
    const bool cut = piece != nullptr && !whole.values.empty();
    arriving.push_back(cut ? take_region(whole, piece->output_regions[o]) : whole);
  }
  for (const SavedRef& ref : wishes.rule.saved)
    saved.push_back(piece != nullptr ? take_region(saved_array(ref), saved_region_of(*piece, ref))
                                     : saved_array(ref));
  for (size_t o = 0; o < arriving.size(); ++o)
    gradient_inputs.push_back(wishes.gradients[o].values.empty() ? nullptr : &arriving[o]);
  for (const Array& array : saved) saved_inputs.push_back(&array);
  return function(gradient_inputs, saved_inputs);
}

std::vector<std::vector<Array>> PieceRun::cut_inputs() const {
  std::vector<std::vector<Array>> result(members_.size());
  for (size_t m = 0; m < members_.size(); ++m)
    for (size_t i = 0; i < s_.c.inputs.size(); ++i)
      result[m].push_back(take_region(s_.c.inputs[i].array, members_[m].piece.input_regions[i]));
  return result;
}

void PieceRun::check_types() const {
  // These relate operands of which one is here in part, as only their facts say.
  if (s_.c.kind == OpKind::LocalResponseNorm) return;
  for (const Member& member : members_) {
    const Signature local = member.piece.signature();
    ASSERT_EQ(op_info(local.kind).infer(local), local.outputs);
    if (op_info(local.kind).auxiliaries != nullptr) {
      ASSERT_EQ(op_info(local.kind).auxiliaries(local), local.auxiliaries);
    }
  }
}

void PieceRun::check_forward() {
  exchange_label_counts();
  const std::vector<std::vector<Array>> arrays = cut_inputs();
  std::vector<std::vector<const Array*>> inputs(arrays.size());
  for (size_t m = 0; m < arrays.size(); ++m)
    for (size_t i = 0; i < arrays[m].size(); ++i)
      inputs[m].push_back(s_.present(i) ? &arrays[m][i] : nullptr);
  const std::vector<Array> statistics = exchange(Pass::Forward, {}, [&](size_t m) {
    const OpPiece& piece = members_[m].piece;
    return interpret_statistics(piece.signature(), inputs[m], s_.c.random, piece.facts);
  });
  std::vector<std::vector<Array>> outputs(s_.whole.outputs.size());
  std::vector<std::vector<Array>> auxiliaries(s_.whole.auxiliaries.size());
  std::vector<std::vector<Array>> written;
  for (size_t m = 0; m < members_.size(); ++m) {
    const OpPiece& piece = members_[m].piece;
    const ForwardResult found =
        interpret_forward(piece.signature(), inputs[m], s_.c.random, piece.facts,
                          statistics.empty() ? nullptr : &statistics[m]);
    for (size_t o = 0; o < outputs.size(); ++o) outputs[o].push_back(found.outputs[o]);
    for (size_t a = 0; a < auxiliaries.size(); ++a) auxiliaries[a].push_back(found.auxiliaries[a]);
    written.push_back(interpret_writes(piece.signature(), inputs[m], found, piece.facts));
  }
  for (size_t o = 0; o < outputs.size(); ++o)
    expect_result(outputs[o], s_.nest.outputs[o], &OpPiece::output_regions, o, s_.whole.outputs[o],
                  "output");
  for (size_t a = 0; a < auxiliaries.size(); ++a)
    expect_result(auxiliaries[a], s_.nest.auxiliaries[a], &OpPiece::auxiliary_regions, a,
                  s_.whole.auxiliaries[a], "auxiliary");
  expect_writes(written);
}

void PieceRun::check_backward(Rng& rng) {
  if (op_info(s_.c.kind).gradient == nullptr) return;
  const Wishes wishes = choose_wishes(rng);
  const auto& [wanted, gradients, rule] = wishes;
  if (std::ranges::find(wanted, true) == wanted.end()) return;
  // Instead of the count of all labels there may be the saved one, which is their sum as well.
  if (s_.c.kind == OpKind::CrossEntropy && rng.chance(0.5))
    for (Member& member : members_) member.piece.facts.mean_count = -1;
  const std::vector<Array> expected =
      with_operands(wishes, nullptr, [&](const auto& arriving, const auto& saved) {
        return interpret_backward(s_.signature, wishes.rule, wishes.wanted, arriving, saved,
                                  s_.c.random);
      });
  const std::vector<Array> statistics = exchange(Pass::Backward, wanted, [&](size_t m) {
    const OpPiece& piece = members_[m].piece;
    return with_operands(wishes, &piece, [&](const auto& arriving, const auto& saved) {
      return interpret_gradient_statistics(piece.signature(), wishes.rule, wishes.wanted, arriving,
                                           saved, s_.c.random, piece.facts);
    });
  });
  std::vector<std::vector<Array>> found(expected.size());
  for (size_t m = 0; m < members_.size(); ++m) {
    const OpPiece& piece = members_[m].piece;
    const std::vector<Array> own =
        with_operands(wishes, &piece, [&](const auto& arriving, const auto& saved) {
          return interpret_backward(piece.signature(), wishes.rule, wishes.wanted, arriving, saved,
                                    s_.c.random, piece.facts,
                                    statistics.empty() ? nullptr : &statistics[m]);
        });
    for (size_t i = 0; i < own.size(); ++i) found[i].push_back(own[i]);
  }
  for (size_t i = 0; i < expected.size(); ++i)
    if (wanted[i]) expect_gradient(found[i], i, expected[i]);
}

std::vector<Array> PieceRun::exchange(Pass pass, const std::vector<bool>& wanted,
                                      const std::function<Array(size_t)>& begin) const {
  if (!exchange_of(members_[0].piece, pass, wanted).needed()) return {};
  std::map<Key, std::vector<Array>> groups;
  std::vector<Key> keys(members_.size());
  for (size_t m = 0; m < members_.size(); ++m) {
    for (size_t c = 0; c < cuts_.size(); ++c)
      if (!couples(s_.nest.loops[cuts_[c].loop])) keys[m].push_back(members_[m].index[c]);
    expect_priced(members_[m], pass, exchange_of(members_[m].piece, pass, wanted).type);
    groups[keys[m]].push_back(begin(m));
  }
  std::vector<Array> result;
  for (size_t m = 0; m < members_.size(); ++m)
    result.push_back(
        merge_statistics(exchange_of(members_[m].piece, pass, wanted), groups[keys[m]]));
  return result;
}

void PieceRun::expect_priced(const Member& member, Pass pass, const TensorType& type) const {
  std::vector<int64_t> sizes;
  std::vector<bool> cut(s_.nest.loops.size(), false);
  for (const LoopDim& loop : s_.nest.loops) sizes.push_back(loop.size);
  for (size_t c = 0; c < cuts_.size(); ++c) {
    sizes[cuts_[c].loop] = cuts_[c].ranges[member.index[c]].size() * cuts_[c].blocks;
    cut[cuts_[c].loop] = true;
  }
  EXPECT_EQ(element_count(type.shape), exchanged_scalars(s_.nest, sizes, cut, pass));
}

void PieceRun::exchange_label_counts() {
  if (s_.c.kind != OpKind::CrossEntropy) return;
  const auto& attrs = std::get<CrossEntropyAttrs>(s_.c.attrs);
  double count = 0;
  for (const Member& member : members_)
    if (member.piece.facts.rows.range.begin == 0)
      count +=
          counted_labels(attrs, take_region(s_.c.inputs[1].array, member.piece.input_regions[1]));
  for (Member& member : members_) member.piece.facts.mean_count = count;
}

PieceRun::Key PieceRun::place_of(const Member& member, const OperandMap& map) const {
  Key place;
  for (size_t c = 0; c < cuts_.size(); ++c)
    if (follows_loop(map, cuts_[c].loop)) place.push_back(member.index[c]);
  return place;
}

const OpPiece& PieceRun::piece_at(const OperandMap& map, const Key& place) const {
  for (const Member& member : members_)
    if (place_of(member, map) == place) return member.piece;
  return members_[0].piece;
}

std::map<PieceRun::Key, Array> PieceRun::settle(
    const std::vector<Array>& arrays, const OperandMap& map,
    const std::function<std::optional<CombineFn>(size_t)>& partial, const std::string& what) const {
  std::map<std::pair<Key, Key>, Array> shares;
  for (size_t m = 0; m < members_.size(); ++m) {
    Key copy;
    std::optional<CombineFn> fn;
    for (size_t c = 0; c < cuts_.size(); ++c) {
      if (follows_loop(map, cuts_[c].loop)) continue;
      const auto found = partial(cuts_[c].loop);
      if (found) fn = found;
      if (!found) copy.push_back(members_[m].index[c]);
    }
    const auto [entry, fresh] = shares.try_emplace({place_of(members_[m], map), copy}, arrays[m]);
    for (size_t e = 0; !fresh && e < arrays[m].values.size(); ++e)
      entry->second.values[e] = combined_by(*fn, entry->second.values[e], arrays[m].values[e]);
  }
  std::map<Key, Array> settled;
  for (const auto& [key, array] : shares) {
    const auto [entry, fresh] = settled.try_emplace(key.first, array);
    if (!fresh) expect_equal(array, entry->second, what + " of two members");
  }
  return settled;
}

PieceRun::Wishes PieceRun::choose_wishes(Rng& rng) const {
  const OpInfo& info = op_info(s_.c.kind);
  Wishes result;
  for (const Operand& input : s_.c.inputs) result.wanted.push_back(is_float(input.dtype));
  result.rule = info.gradient(s_.signature, result.wanted);
  const bool all = rng.chance(0.5);
  for (size_t i = 0; i < result.wanted.size(); ++i)
    result.wanted[i] =
        result.rule.inputs[i] == GradientSource::Computed && (all || rng.chance(0.6));
  result.rule = info.gradient(s_.signature, result.wanted);
  bool any = false;
  for (const TensorType& type : s_.signature.outputs) {
    result.gradients.emplace_back();
    if (!is_float(type.dtype) || (any && rng.chance(0.3))) continue;
    any = true;
    result.gradients.back() = Array(type.shape);
    for (double& value : result.gradients.back().values) value = rng.uniform(-1, 1);
  }
  return result;
}

const Array& PieceRun::saved_array(const SavedRef& ref) const {
  const auto index = static_cast<size_t>(ref.index);
  return ref.source == SavedRef::Source::Input    ? s_.c.inputs[index].array
         : ref.source == SavedRef::Source::Output ? s_.whole.outputs[index]
                                                  : s_.whole.auxiliaries[index];
}

void PieceRun::expect_result(const std::vector<Array>& arrays, const OperandMap& map,
                             std::vector<Region> OpPiece::*regions, size_t index,
                             const Array& expected, const std::string& kind) const {
  const std::string what = fmt::format("{} {}", kind, index);
  Array whole(expected.shape, std::nan("")), owners(expected.shape);
  const auto partial = [&](size_t loop) {
    const LoopDim& dim = s_.nest.loops[loop];
    return dim.role == LoopRole::Reduced ? std::optional(dim.combine) : std::nullopt;
  };
  for (const auto& [place, array] : settle(arrays, map, partial, what)) {
    const Region& region = (piece_at(map, place).*regions)[index];
    put_region(array, region, whole);
    add_region(Array(array.shape, 1), region, owners);
  }
  for (double count : owners.values) ASSERT_EQ(count, 1) << what;
  expect_equal(whole, expected, what);
}

void PieceRun::expect_writes(const std::vector<std::vector<Array>>& written) const {
  const std::vector<Array> expected = interpret_writes(s_.signature, s_.c.arrays(), s_.whole);
  for (size_t w = 0; w < expected.size(); ++w) {
    const auto input = static_cast<size_t>(op_info(s_.c.kind).writes(s_.signature)[w]);
    for (size_t m = 0; m < members_.size(); ++m)
      expect_equal(written[m][w], take_region(expected[w], members_[m].piece.input_regions[input]),
                   fmt::format("written input {}", input));
  }
}

void PieceRun::expect_gradient(const std::vector<Array>& arrays, size_t input,
                               const Array& expected) const {
  const std::string what = fmt::format("gradient of input {}", input);
  const OperandMap& map = s_.nest.inputs[input];
  Array whole(expected.shape);
  const auto partial = [&](size_t loop) {
    return partial_gradient(s_.c.kind, s_.nest, input, loop) ? std::optional(CombineFn::Sum)
                                                             : std::nullopt;
  };
  for (const auto& [place, array] : settle(arrays, map, partial, what))
    add_region(array, piece_at(map, place).input_regions[input], whole);
  expect_equal(whole, expected, what);
}

void PieceRun::expect_equal(const Array& found, const Array& expected,
                            const std::string& what) const {
  const bool exact = s_.c.kind == OpKind::Dropout || s_.c.kind == OpKind::Random;
  ASSERT_EQ(found.shape, expected.shape) << what;
  for (size_t e = 0; e < expected.values.size(); ++e) {
    const double a = found.values[e], b = expected.values[e];
    if (a == b) continue;
    ASSERT_FALSE(exact) << what << ", element " << e;
    ASSERT_NEAR(a, b, kRunTolerance * (1 + std::abs(b))) << what << ", element " << e;
  }
}

}  // namespace windlass::reference
