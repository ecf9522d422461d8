// Token files and text: sample i is the run of tokens from i * stride on.

#include <algorithm>
#include <utility>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/units.h"
#include "windlass/data/formats.h"

namespace windlass {
namespace {

class TokenDataset final : public Dataset {
 public:
  TokenDataset(MappedFiles files, TokenRun run, std::vector<SlotSpec> slots,
               const DatasetOptions& options)
      : Dataset(std::move(slots)), files_(std::move(files)), run_(std::move(run)) {
    int64_t sequence = 0, needed = 0;
    for (const SlotSpec& slot : this->slots()) {
      const int64_t length = slot_elements(slot);
      if (fill_beside_data(slot, {})) continue;
      if (slot.kind != SlotKind::Tokens && slot.kind != SlotKind::NextTokens)
        fail_input(
            "{}: holds tokens, but the model takes something else, too; give it images with "
            "labels, a .safetensors file with a tensor for each input, or synthetic data",
            run_.where);
      if (length < 1 || (sequence > 0 && length != sequence))
        fail_input("{}: the model takes sequences of {} and {} tokens at once", run_.where,
                   sequence, length);
      sequence = length;
      needed =
          std::max(needed, slot.kind == SlotKind::NextTokens ? checked_add(length, 1) : length);
    }
    if (sequence == 0) fail_input("{}: the model takes no tokens", run_.where);
    const PartRange part = part_range(run_.size(), options);
    run_.bytes = run_.bytes.subspan(static_cast<size_t>(part.begin * run_.width),
                                    static_cast<size_t>((part.end - part.begin) * run_.width));
    run_.first = part.begin;
    if (options.stride < 0) fail_input("the stride is {}, expected at least 1", options.stride);
    stride_ = options.stride > 0 ? options.stride : sequence;
    if (run_.size() < needed)
      fail_input("{}: {} tokens{}, one sample needs {}; take a shorter sequence or more data",
                 run_.where, run_.size(), options.part == DataPart::All ? "" : " in this part",
                 needed);
    size_ = (run_.size() - needed) / stride_ + 1;
  }

  int64_t size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("{}: {} {} in {} samples", run_.where, format_integer(run_.size()),
                       run_.width == 1 ? "bytes of text" : "tokens", format_integer(size_));
  }

 protected:
  void fill_floats(int64_t, const SlotSpec&, size_t, std::span<float>) const override {
    throw Error(ErrorKind::Internal, "internal error: token data has no floats");
  }
  void fill_integers(int64_t sample, const SlotSpec& slot, size_t,
                     std::span<int64_t> out) const override {
    if (fill_beside_data(slot, out)) return;
    const int64_t begin = sample * stride_ + (slot.kind == SlotKind::NextTokens ? 1 : 0);
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t place = begin + static_cast<int64_t>(i), token = run_[place];
      if (slot.bound > 0 && token >= slot.bound)
        fail_input("{}: token {} at position {} is outside the model's vocabulary of {}",
                   run_.where, token, run_.first + place, slot.bound);
      out[i] = token;
    }
  }

 private:
  MappedFiles files_;
  TokenRun run_;
  int64_t stride_ = 1;
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<Dataset> token_dataset(MappedFiles files, TokenRun run, std::vector<SlotSpec> slots,
                                       const DatasetOptions& options) {
  return std::make_unique<TokenDataset>(std::move(files), std::move(run), std::move(slots),
                                        options);
}

}  // namespace windlass
