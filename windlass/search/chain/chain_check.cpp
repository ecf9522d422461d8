#include "windlass/search/chain/chain_check.h"

#include <algorithm>

namespace windlass {
namespace {

class Walk {
 public:
  explicit Walk(const Chain& chain)
      : chain_(chain),
        count_(chain.blocks.size()),
        beside_(count_, 0),
        seen_(count_, false),
        stored_(count_, false),
        sent_(count_, false),
        option_(count_, -1),
        back_next_(static_cast<int64_t>(count_) - 1) {}

  std::optional<ChainCost> run(const std::vector<ChainStep>& steps) {
    for (const ChainStep& step : steps)
      if (!take(step)) return std::nullopt;
    if (back_next_ != -1) return std::nullopt;
    // All other micro-batches in flight hold what the first run keeps.
    return ChainCost{time_, std::max(chain_.floor, peak_ + (chain_.in_flight - 1) * held_first_)};
  }

 private:
  bool take(const ChainStep& step) {
    using Kind = ChainStep::Kind;
    const auto b = static_cast<size_t>(step.block);
    // Nothing but waiting helps if too much waits.
    if (step.kind != Kind::Wait && waiting_ > chain_.most_units) return false;
    switch (step.kind) {
      case Kind::Store:
        stored_[b] = true;
        held_ += chain_.blocks[b].input;
        if (!seen_[b]) held_first_ += chain_.blocks[b].input;
        starts_ = true;
        return true;
      case Kind::Send:
        if (seen_[b]) return false;
        sent_[b] = true;
        waiting_ += units(chain_.blocks[b].input);
        starts_ = true;
        return true;
      case Kind::Wait:
        time_ += 2 * waiting_ * chain_.unit_time;
        waiting_ = 0;
        return true;
      case Kind::Pass:
      case Kind::Keep: return forward(step, b);
      case Kind::Back: return backward(step, b);
    }
    return false;
  }

  bool forward(const ChainStep& step, size_t b) {
    const bool kept_before = b > 0 && option_[b - 1] >= 0;
    if (hand_ != b && b != 0 && !stored_[b] && !sent_[b] && !kept_before) return false;
    const ChainBlock& block = chain_.blocks[b];
    if (!seen_[b] && starts_) {
      group_beside_ = waiting_ * chain_.link_unit + (sent_[b] ? block.input : 0);
      starts_ = false;
    }
    const bool first = !seen_[b];
    if (first) beside_[b] = group_beside_;
    seen_[b] = true;
    hand_ = b + 1;
    if (step.kind == ChainStep::Kind::Pass) {
      note(held_ + beside_[b] + block.pass_bytes);
      time_ += block.pass;
      if (first) drain(block.pass);
      return true;
    }
    const ChainOption& option = block.options[static_cast<size_t>(step.option)];
    if (first ? !option.first : !option.again) return false;
    note(held_ + beside_[b] + option.kept + option.forward_bytes);
    time_ += option.forward;
    held_ += option.kept;
    option_[b] = step.option;
    if (!first) return true;
    held_first_ += option.kept;
    drain(block.pass);
    waiting_ += units(option.sent);
    starts_ = true;
    if (b + 1 < count_) {
      sent_[b + 1] = option.sends_output;
    } else {
      if (waiting_ > chain_.most_units) return false;
      time_ += 2 * waiting_ * chain_.unit_time;
      waiting_ = 0;
    }
    return true;
  }

  bool backward(const ChainStep& step, size_t b) {
    if (static_cast<int64_t>(b) != back_next_ || option_[b] != step.option) return false;
    const ChainOption& option = chain_.blocks[b].options[static_cast<size_t>(step.option)];
    note(held_ + beside_[b] + option.backward_bytes);
    time_ += option.backward;
    held_ -= option.kept;
    option_[b] = -1;
    if (stored_[b]) held_ -= chain_.blocks[b].input;
    stored_[b] = false;
    --back_next_;
    return true;
  }

  // The engine works while blocks run for the first time; what it moved is whole units of the time
  // since the start.
  void drain(int64_t time) {
    if (chain_.most_units == 0) return;
    const int64_t before = elapsed_ / chain_.unit_time;
    elapsed_ += time;
    waiting_ = std::max<int64_t>(0, waiting_ - (elapsed_ / chain_.unit_time - before));
  }
  int64_t units(int64_t bytes) const {
    if (bytes == 0) return 0;
    if (chain_.most_units == 0) return 1;
    return (bytes + chain_.link_unit - 1) / chain_.link_unit;
  }
  void note(int64_t bytes) { peak_ = std::max(peak_, bytes); }

  const Chain& chain_;
  const size_t count_;
  std::vector<int64_t> beside_;  // by block: live because of the copy engine while it is under way
  std::vector<bool> seen_, stored_, sent_;
  std::vector<int32_t> option_;  // by block: that it is held with
  int64_t back_next_;
  size_t hand_ = 0;     // the block whose input was made last
  bool starts_ = true;  // the next block starts a run of its own
  int64_t group_beside_ = 0;
  int64_t waiting_ = 0, elapsed_ = 0;
  int64_t time_ = 0, held_ = 0, held_first_ = 0, peak_ = 0;
};

}  // namespace

std::optional<ChainCost> cost_of_schedule(const Chain& chain, const std::vector<ChainStep>& steps) {
  return Walk(chain).run(steps);
}

}  // namespace windlass
