// Every op in pieces: loops are cut at random, each piece runs on arrays that hold its regions and
// nothing else, and what the pieces make is put together and compared with the op that is not cut.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "windlass/graph/reference/pieces.h"

namespace windlass::reference {
namespace {

constexpr double kRunTolerance = 1e-10;

// One loop cut into ranges, of each of its blocks.
struct Cut {
  size_t loop = 0;
  int64_t blocks = 1;
  std::vector<Range> ranges;
};

struct PieceMember {
  std::vector<size_t> index;  // by cut
  OpPiece piece;
};

Array take_region(const Array& whole, const Region& region) {
  Array part(local_shape(region));
  for_each_run(region, [&](int64_t local, int64_t from, int64_t count) {
    std::copy_n(whole.values.begin() + from, count, part.values.begin() + local);
  });
  return part;
}

double combine(CombineFn fn, double a, double b) {
  switch (fn) {
    case CombineFn::Sum: return a + b;
    case CombineFn::Max: return std::max(a, b);
    case CombineFn::Min: return std::min(a, b);
  }
  return 0;
}

// How many seeds to run: more than a few when asked for.
uint64_t seed_count() {
  const char* text = std::getenv("WINDLASS_PIECE_SEEDS");
  return text == nullptr ? 4 : std::strtoull(text, nullptr, 10);
}

class PieceRun {
 public:
  PieceRun(const Subject& subject, std::vector<Cut> cuts) : s_(subject), cuts_(std::move(cuts)) {
    size_t count = 1;
    for (const Cut& cut : cuts_) count *= cut.ranges.size();
    for (size_t m = 0; m < count; ++m) {
      std::vector<LoopPart> parts = whole_parts(s_.nest);
      PieceMember member;
      size_t rest = m;
      for (const Cut& cut : cuts_) {
        member.index.push_back(rest % cut.ranges.size());
        parts[cut.loop] = {cut.ranges[member.index.back()], cut.blocks};
        rest /= cut.ranges.size();
      }
      member.piece = piece_of(s_.signature, s_.nest, parts);
      members_.push_back(std::move(member));
    }
  }

  void forward() {
    exchange_label_counts();
    std::vector<ForwardResult> found;
    for (const PieceMember& member : members_) {
      std::vector<Array> arrays;
      std::vector<const Array*> inputs;
      for (size_t i = 0; i < s_.c.inputs.size(); ++i)
        arrays.push_back(s_.present(i)
                             ? take_region(s_.c.inputs[i].array, member.piece.input_regions[i])
                             : Array());
      for (size_t i = 0; i < arrays.size(); ++i)
        inputs.push_back(s_.present(i) ? &arrays[i] : nullptr);
      found.push_back(
          interpret_forward(member.piece.signature(), inputs, s_.c.random, member.piece.facts));
    }
    const auto collect = [&](const auto& of, size_t i) {
      std::vector<Array> arrays;
      for (const ForwardResult& result : found) arrays.push_back(of(result)[i]);
      return arrays;
    };
    for (size_t o = 0; o < s_.whole.outputs.size(); ++o)
      expect_result(collect([](const ForwardResult& r) { return r.outputs; }, o),
                    s_.nest.outputs[o], &OpPiece::output_regions, o, s_.whole.outputs[o], "output");
    for (size_t a = 0; a < s_.whole.auxiliaries.size(); ++a)
      expect_result(collect([](const ForwardResult& r) { return r.auxiliaries; }, a),
                    s_.nest.auxiliaries[a], &OpPiece::auxiliary_regions, a, s_.whole.auxiliaries[a],
                    "auxiliary");
  }

  void backward(Rng& rng) {
    const OpInfo& info = op_info(s_.c.kind);
    if (info.gradient == nullptr) return;
    const std::vector<bool> wanted = choose_wanted(rng);
    if (std::ranges::find(wanted, true) == wanted.end()) return;
    const GradientRule rule = info.gradient(s_.signature, wanted);
    const std::vector<Array> gradients = choose_gradients(rng);
    const auto run = [&](const Signature& signature, const PieceFacts& facts,
                         const auto& cut_output, const auto& cut_saved) {
      std::vector<Array> arriving, saved;
      std::vector<const Array*> gradient_inputs, saved_inputs;
      for (size_t o = 0; o < gradients.size(); ++o) arriving.push_back(cut_output(o));
      for (const SavedRef& ref : rule.saved) saved.push_back(cut_saved(ref));
      for (size_t o = 0; o < gradients.size(); ++o)
        gradient_inputs.push_back(gradients[o].values.empty() ? nullptr : &arriving[o]);
      for (const Array& array : saved) saved_inputs.push_back(&array);
      return interpret_backward(signature, rule, wanted, gradient_inputs, saved_inputs, s_.c.random,
                                facts);
    };
    const std::vector<Array> expected = run(
        s_.signature, {}, [&](size_t o) { return gradients[o]; },
        [&](const SavedRef& ref) { return saved_array(ref); });
    std::vector<std::vector<Array>> found;
    for (const PieceMember& member : members_) {
      const OpPiece& piece = member.piece;
      found.push_back(run(
          piece.signature(), piece.facts,
          [&](size_t o) {
            return gradients[o].values.empty() ? Array()
                                               : take_region(gradients[o], piece.output_regions[o]);
          },
          [&](const SavedRef& ref) {
            return take_region(saved_array(ref), saved_region(piece, ref));
          }));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!wanted[i]) continue;
      std::vector<Array> arrays;
      for (const std::vector<Array>& gradient : found) arrays.push_back(gradient[i]);
      expect_gradient(arrays, i, expected[i]);
    }
  }

 private:
  using Key = std::vector<size_t>;

  // What the members made, combined over the cuts for which `partial` says how, and otherwise the
  // same on all members that differ only in cuts that the operand lacks.
  template <class Partial>
  std::map<Key, Array> settle(const std::vector<Array>& arrays, const OperandMap& map,
                              const Partial& partial, const std::string& what) const {
    std::map<std::pair<Key, Key>, Array> shares;
    for (size_t m = 0; m < members_.size(); ++m) {
      Key place, copy;
      std::optional<CombineFn> fn;
      for (size_t c = 0; c < cuts_.size(); ++c) {
        if (follows_loop(map, cuts_[c].loop)) {
          place.push_back(members_[m].index[c]);
        } else if (const auto found = partial(cuts_[c].loop)) {
          fn = found;
        } else {
          copy.push_back(members_[m].index[c]);
        }
      }
      const auto [entry, fresh] = shares.try_emplace({place, copy}, arrays[m]);
      for (size_t e = 0; !fresh && fn && e < arrays[m].values.size(); ++e)
        entry->second.values[e] = combine(*fn, entry->second.values[e], arrays[m].values[e]);
    }
    std::map<Key, Array> settled;
    for (const auto& [key, array] : shares) {
      const auto [entry, fresh] = settled.try_emplace(key.first, array);
      if (!fresh) expect_equal(array, entry->second, what + " of two members");
    }
    return settled;
  }

  // A member at the given places of the cuts that the operand has.
  const OpPiece& piece_at(const OperandMap& map, const Key& place) const {
    for (const PieceMember& member : members_) {
      Key own;
      for (size_t c = 0; c < cuts_.size(); ++c)
        if (follows_loop(map, cuts_[c].loop)) own.push_back(member.index[c]);
      if (own == place) return member.piece;
    }
    return members_[0].piece;
  }

  void expect_result(const std::vector<Array>& arrays, const OperandMap& map,
                     std::vector<Region> OpPiece::*regions, size_t index, const Array& expected,
                     const std::string& kind) const {
    const std::string what = fmt::format("{} {}", kind, index);
    Array whole(expected.shape, std::nan(""));
    std::vector<int> owners(whole.values.size(), 0);
    const auto partial = [&](size_t loop) {
      const LoopDim& dim = s_.nest.loops[loop];
      return dim.role == LoopRole::Reduced ? std::optional(dim.combine) : std::nullopt;
    };
    for (const auto& [place, array] : settle(arrays, map, partial, what)) {
      for_each_run((piece_at(map, place).*regions)[index],
                   [&](int64_t local, int64_t to, int64_t count) {
                     for (int64_t i = 0; i < count; ++i) {
                       whole.values[to + i] = array.values[local + i];
                       ++owners[to + i];
                     }
                   });
    }
    for (size_t e = 0; e < owners.size(); ++e) ASSERT_EQ(owners[e], 1) << what << " element " << e;
    expect_equal(whole, expected, what);
  }

  void expect_gradient(const std::vector<Array>& arrays, size_t input,
                       const Array& expected) const {
    const std::string what = fmt::format("gradient of input {}", input);
    const OperandMap& map = s_.nest.inputs[input];
    Array whole(expected.shape);
    const auto partial = [&](size_t loop) {
      return partial_gradient(s_.c.kind, s_.nest, input, loop) ? std::optional(CombineFn::Sum)
                                                               : std::nullopt;
    };
    for (const auto& [place, array] : settle(arrays, map, partial, what)) {
      for_each_run(piece_at(map, place).input_regions[input],
                   [&](int64_t local, int64_t to, int64_t count) {
                     for (int64_t i = 0; i < count; ++i)
                       whole.values[to + i] += array.values[local + i];
                   });
    }
    expect_equal(whole, expected, what);
  }

  void expect_equal(const Array& found, const Array& expected, const std::string& what) const {
    const bool exact = s_.c.kind == OpKind::Dropout || s_.c.kind == OpKind::Random;
    ASSERT_EQ(found.shape, expected.shape) << what;
    for (size_t e = 0; e < expected.values.size(); ++e) {
      const double a = found.values[e], b = expected.values[e];
      if (a == b) continue;
      ASSERT_FALSE(exact) << what << ", element " << e;
      ASSERT_NEAR(a, b, kRunTolerance * (1 + std::abs(b))) << what << ", element " << e;
    }
  }

  // What pieces of a cross-entropy do before they run: the labels that count, added up over the
  // pieces that have different ones.
  void exchange_label_counts() {
    if (s_.c.kind != OpKind::CrossEntropy) return;
    const auto& attrs = std::get<CrossEntropyAttrs>(s_.c.attrs);
    double count = 0;
    for (const PieceMember& member : members_) {
      const bool first = member.piece.facts.rows.range.begin == 0;
      if (first)
        count +=
            counted_labels(attrs, take_region(s_.c.inputs[1].array, member.piece.input_regions[1]));
    }
    for (PieceMember& member : members_) member.piece.facts.mean_count = count;
  }

  std::vector<bool> choose_wanted(Rng& rng) const {
    std::vector<bool> wanted;
    for (const Operand& input : s_.c.inputs) wanted.push_back(is_float(input.dtype));
    const GradientRule rule = op_info(s_.c.kind).gradient(s_.signature, wanted);
    const bool all = rng.chance(0.5);
    for (size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = rule.inputs[i] == GradientSource::Computed && (all || rng.chance(0.6));
    return wanted;
  }

  // Without values where no gradient arrives.
  std::vector<Array> choose_gradients(Rng& rng) const {
    std::vector<Array> gradients;
    bool any = false;
    for (const TensorType& type : s_.signature.outputs) {
      gradients.emplace_back();
      if (!is_float(type.dtype) || (any && rng.chance(0.3))) continue;
      any = true;
      gradients.back() = Array(type.shape);
      for (double& value : gradients.back().values) value = rng.uniform(-1, 1);
    }
    return gradients;
  }

  const Array& saved_array(const SavedRef& ref) const {
    const auto index = static_cast<size_t>(ref.index);
    return ref.source == SavedRef::Source::Input    ? s_.c.inputs[index].array
           : ref.source == SavedRef::Source::Output ? s_.whole.outputs[index]
                                                    : s_.whole.auxiliaries[index];
  }
  static const Region& saved_region(const OpPiece& piece, const SavedRef& ref) {
    const auto index = static_cast<size_t>(ref.index);
    return ref.source == SavedRef::Source::Input    ? piece.input_regions[index]
           : ref.source == SavedRef::Source::Output ? piece.output_regions[index]
                                                    : piece.auxiliary_regions[index];
  }

  const Subject& s_;
  std::vector<Cut> cuts_;
  std::vector<PieceMember> members_;
};

// Two to four uneven parts of a loop, at times of each of several blocks.
Cut random_cut(const LoopNest& nest, size_t loop, bool in_blocks, Rng& rng) {
  Cut cut;
  cut.loop = loop;
  int64_t size = nest.loops[loop].size;
  if (in_blocks)
    for (int64_t blocks : {2, 3, 4})
      if (size % blocks == 0 && size / blocks >= 2 && rng.chance(0.6)) cut.blocks = blocks;
  size /= cut.blocks;
  std::vector<int64_t> ends;
  for (int64_t i = 1; i < size; ++i) ends.push_back(i);
  const auto parts = rng.integer(2, std::min<int64_t>(4, size));
  while (static_cast<int64_t>(ends.size()) > parts - 1)
    ends.erase(ends.begin() + rng.integer(0, static_cast<int64_t>(ends.size()) - 1));
  ends.push_back(size);
  int64_t begin = 0;
  for (int64_t end : ends) {
    cut.ranges.push_back({begin, end});
    begin = end;
  }
  return cut;
}

bool can_cut(const LoopDim& loop) {
  return loop.role != LoopRole::Whole && loop.role != LoopRole::Coupled && loop.size >= 2;
}

std::string format_cuts(const LoopNest& nest, const std::vector<Cut>& cuts) {
  std::string text;
  for (const Cut& cut : cuts) {
    text += fmt::format(" {} x{}:", nest.loops[cut.loop].name, cut.blocks);
    for (const Range& range : cut.ranges) text += fmt::format(" {}-{}", range.begin, range.end);
  }
  return text;
}

void run_cut(const Subject& subject, std::vector<size_t> loops, Rng& rng) {
  std::vector<Cut> cuts;
  for (size_t loop : loops) {
    Cut cut = random_cut(subject.nest, loop, rng.chance(0.4), rng);
    if (cut.blocks > 1) {
      try {
        PieceRun(subject, {cut});
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::Unsupported) << error.what();
        cut = random_cut(subject.nest, loop, false, rng);
      }
    }
    cuts.push_back(std::move(cut));
  }
  SCOPED_TRACE(format_cuts(subject.nest, cuts));
  PieceRun run(subject, cuts);
  run.forward();
  run.backward(rng);
}

void run_case(const OpCase& c, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} (seed {})", c.name, seed));
  Rng rng(seed, c.random.seed);
  try {
    const Subject subject(c);
    std::vector<size_t> loops;
    for (size_t l = 0; l < subject.nest.loops.size(); ++l)
      if (can_cut(subject.nest.loops[l])) loops.push_back(l);
    for (size_t a = 0; a < loops.size(); ++a) {
      run_cut(subject, {loops[a]}, rng);
      for (size_t b = 0; b < a; ++b) run_cut(subject, {loops[b], loops[a]}, rng);
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(RunPieces, MakeTheNumbersOfTheWholeOp) {
  for (uint64_t seed = 1; seed <= seed_count(); ++seed)
    for (const auto& cases : {op_cases(seed), hard_op_cases(seed), tied_op_cases(seed)})
      for (const OpCase& c : cases) run_case(c, seed);
}

}  // namespace
}  // namespace windlass::reference
