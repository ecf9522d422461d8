// Random data: each value is a function of seed, slot, sample and place.

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/units.h"
#include "windlass/data/formats.h"

namespace windlass {
namespace {

// Tokens and the tokens after them are two views of one random text.
constexpr uint64_t kTextStream = 1;
constexpr uint64_t kFirstSlotStream = 16;

// The sum of four even numbers of 16 bits, near to a normal one: mean 0, variance 1, at most 3.5
// from 0. A step waits for its data, and logarithms and cosines would take a tenth of a small one.
float nearly_normal(uint64_t bits) {
  constexpr double kSteps = 65536;
  const auto sum = static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  // A single one has variance (kSteps^2 - 1) / 12.
  const double scale = std::sqrt(3 / (kSteps * kSteps - 1));
  return static_cast<float>((static_cast<double>(sum) - 2 * (kSteps - 1)) * scale);
}

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(std::vector<SlotSpec> slots, const DatasetOptions& options)
      : Dataset(std::move(slots)), seed_(options.seed) {
    if (options.samples < 1)
      fail_input("synthetic data of {} samples, expected at least 1", options.samples);
    int64_t begin = 0, end = options.samples;
    const PartRange part = part_range(options.samples, options);
    begin = part.begin, end = part.end;
    if (begin == end) fail_input("synthetic data of {} samples has no such part", options.samples);
    first_ = begin;
    size_ = end - begin;
    for (const SlotSpec& slot : this->slots()) {
      const bool ranged = slot.kind == SlotKind::Tokens || slot.kind == SlotKind::NextTokens ||
                          slot.kind == SlotKind::Label;
      if (slot.bound < (ranged ? 1 : 0))
        fail_input("synthetic: the range of an integer input is {}, expected at least 1",
                   slot.bound);
      if (slot.bound > 0 && slot.least >= slot.bound)
        fail_input("synthetic: an integer input must be at least {} and below {}", slot.least,
                   slot.bound);
      // Places are counted over all samples.
      checked_mul(options.samples, checked_add(slot_elements(slot), 1));
    }
  }

  int64_t size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("synthetic: {} samples", format_integer(size_));
  }

 protected:
  void fill_floats(int64_t sample, const SlotSpec& slot, size_t index,
                   std::span<float> out) const override {
    const uint64_t begin = static_cast<uint64_t>(first_ + sample) * out.size();
    const uint64_t stream = kFirstSlotStream + index;
    const bool even = slot.bound > 0 && slot.kind == SlotKind::Float;
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = even ? static_cast<float>(static_cast<double>(slot.bound) *
                                         random_uniform(seed_, stream, begin + i))
                    : nearly_normal(random_bits(seed_, stream, begin + i));
  }
  void fill_integers(int64_t sample, const SlotSpec& slot, size_t index,
                     std::span<int64_t> out) const override {
    if (slot.kind == SlotKind::Positions && fill_beside_data(slot, out)) return;
    if (slot.bound <= 0) return std::fill(out.begin(), out.end(), int64_t{1});
    // Numbers that count from the end are legal, but nobody means them.
    const int64_t least = std::max<int64_t>(0, slot.least);
    const bool text = slot.kind == SlotKind::Tokens || slot.kind == SlotKind::NextTokens;
    const uint64_t each = out.size() + (text ? 1 : 0);
    const uint64_t begin =
        static_cast<uint64_t>(first_ + sample) * each + (slot.kind == SlotKind::NextTokens ? 1 : 0);
    const uint64_t stream = text ? kTextStream : kFirstSlotStream + index;
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = least + static_cast<int64_t>(random_bits(seed_, stream, begin + i) %
                                            static_cast<uint64_t>(slot.bound - least));
  }

 private:
  uint64_t seed_;
  int64_t first_ = 0, size_ = 0;
};

}  // namespace

std::unique_ptr<Dataset> synthetic_dataset(std::vector<SlotSpec> slots,
                                           const DatasetOptions& options) {
  return std::make_unique<SyntheticDataset>(std::move(slots), options);
}

}  // namespace windlass
