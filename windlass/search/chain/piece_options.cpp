#include "windlass/search/chain/piece_options.h"

#include <algorithm>
#include <limits>

namespace windlass {
namespace {

constexpr size_t kMostForAll = 8;      // tensors of a piece, for all sets to be tried
constexpr size_t kMostForGreedy = 64;  // for greedy walks that price each change

struct Priced {
  Actions actions;
  int64_t time = 0, kept = 0, peak = 0;
};

class Choosing {
 public:
  Choosing(const PieceModel& model, const PieceChoices& choices)
      : model_(model), choices_(choices) {
    for (size_t s = 0; s < model.size(); ++s) {
      kept_.push_back(model.keep(s));
      if (static_cast<int32_t>(s) != model.output() && model.bytes(s) > 0) open_.push_back(s);
    }
  }

  std::vector<Actions> run() {
    drop();
    select();
    std::vector<Actions> result;
    for (const Priced& priced : found_) result.push_back(priced.actions);
    const std::vector<Actions> recomputed = result;
    if (choices_.send) add_sent(recomputed, result);
    add_compressed(recomputed, result);
    return result;
  }

 private:
  Priced priced(const Actions& actions) const {
    const ChainOption option = model_.price(actions);
    return {actions, option.forward + option.backward, option.kept,
            option.kept + std::max(option.forward_bytes, option.backward_bytes)};
  }

  void drop() {
    found_.push_back(priced(kept_));
    if (open_.size() <= kMostForAll) {
      for (size_t set = 1; set < (size_t{1} << open_.size()); ++set) {
        Actions actions = kept_;
        for (size_t k = 0; k < open_.size(); ++k)
          if ((set >> k & 1) != 0) actions[open_[k]] = MemoryAction::Recompute;
        found_.push_back(priced(actions));
      }
      return;
    }
    Actions none = kept_;
    for (size_t s : open_) none[s] = MemoryAction::Recompute;
    if (open_.size() <= kMostForGreedy) {
      walk(kept_, true);
      walk(none, false);
    } else {
      walk_in_order();
    }
    found_.push_back(priced(none));
  }

  // Changes one tensor after the other, each time the one that gives most for what it costs.
  void walk(Actions actions, bool dropping) {
    Priced now = priced(actions);
    std::vector<size_t> left = open_;
    while (!left.empty()) {
      double best = -1;
      size_t best_at = 0;
      Priced best_priced;
      for (size_t k = 0; k < left.size(); ++k) {
        Actions changed = now.actions;
        changed[left[k]] = dropping ? MemoryAction::Recompute : model_.keep(left[k]);
        Priced next = priced(changed);
        const double bytes = static_cast<double>(std::abs(now.kept - next.kept)) +
                             static_cast<double>(dropping ? now.peak - next.peak : 0);
        const double time = static_cast<double>(std::abs(next.time - now.time)) + 1;
        const double worth = dropping ? bytes / time : time / (bytes + 1);
        if (worth <= best) continue;
        best = worth;
        best_at = k;
        best_priced = std::move(next);
      }
      if (best < 0) return;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best_at));
      now = std::move(best_priced);
      found_.push_back(now);
    }
  }

  // Those first whose op is cheap for their bytes.
  void walk_in_order() {
    std::vector<size_t> order = open_;
    std::ranges::stable_sort(order, {}, [&](size_t s) {
      return static_cast<double>(model_.producer_time(s)) / static_cast<double>(model_.bytes(s));
    });
    Actions actions = kept_;
    for (size_t s : order) {
      actions[s] = MemoryAction::Recompute;
      found_.push_back(priced(actions));
    }
  }

  // Without those that another one beats in everything; if too many are left, those that are
  // spread over the bytes kept.
  void select() {
    std::ranges::stable_sort(found_, [](const Priced& a, const Priced& b) {
      if (a.time != b.time) return a.time < b.time;
      return a.kept != b.kept ? a.kept < b.kept : a.peak < b.peak;
    });
    std::vector<Priced> good;
    for (Priced& next : found_) {
      const bool beaten = std::ranges::any_of(good, [&](const Priced& other) {
        return other.kept <= next.kept && other.peak <= next.peak;
      });
      if (!beaten) good.push_back(std::move(next));
    }
    if (good.size() > choices_.most) {
      // A point is dropped where its neighbours do nearly as well.
      while (good.size() > std::max<size_t>(2, choices_.most)) {
        size_t least = 1;
        double least_loss = std::numeric_limits<double>::max();
        for (size_t k = 1; k + 1 < good.size(); ++k) {
          const double loss = static_cast<double>(good[k + 1].time - good[k].time + 1) *
                              (static_cast<double>(std::abs(good[k - 1].kept - good[k].kept)) +
                               static_cast<double>(std::abs(good[k - 1].peak - good[k].peak)) + 1);
          if (loss >= least_loss) continue;
          least_loss = loss;
          least = k;
        }
        good.erase(good.begin() + static_cast<std::ptrdiff_t>(least));
      }
    }
    found_ = std::move(good);
  }

  // What is not computed again goes to the host: all, with and without the output, and the largest.
  void add_sent(const std::vector<Actions>& recomputed, std::vector<Actions>& result) const {
    const int32_t output = model_.output();
    for (const Actions& base : recomputed) {
      Actions actions = base;
      size_t count = 0, largest = 0;
      for (size_t s : open_) {
        if (actions[s] == MemoryAction::Recompute) continue;
        actions[s] = MemoryAction::Offload;
        if (count++ == 0 || model_.bytes(s) > model_.bytes(largest)) largest = s;
      }
      if (count > 0) result.push_back(actions);
      if (output >= 0) {
        actions[static_cast<size_t>(output)] = MemoryAction::Offload;
        result.push_back(actions);
      }
      if (count > 1) {
        actions = base;
        actions[largest] = MemoryAction::Offload;
        result.push_back(actions);
      }
    }
    drop_beaten(result);
  }

  // The first stays in any case.
  void drop_beaten(std::vector<Actions>& list) const {
    std::vector<ChainOption> prices;
    for (const Actions& actions : list) prices.push_back(model_.price(actions));
    const auto beats = [](const ChainOption& a, const ChainOption& b) {
      return a.forward + a.backward <= b.forward + b.backward && a.kept <= b.kept &&
             a.sent <= b.sent && a.sends_output <= b.sends_output &&
             a.kept + a.forward_bytes <= b.kept + b.forward_bytes &&
             a.kept + a.backward_bytes <= b.kept + b.backward_bytes;
    };
    std::vector<Actions> good;
    for (size_t k = 0; k < list.size(); ++k) {
      bool beaten = false;
      for (size_t other = 0; other < list.size() && k > 0; ++other)
        beaten = beaten || (other != k && beats(prices[other], prices[k]) &&
                            (other < k || !beats(prices[k], prices[other])));
      if (!beaten) good.push_back(list[k]);
    }
    list = std::move(good);
  }

  void add_compressed(const std::vector<Actions>& recomputed, std::vector<Actions>& result) const {
    for (const MemoryAction action : compressions(choices_.compress))
      for (const Actions* base : {&recomputed.front(), &recomputed.back()}) {
        Actions actions = *base;
        for (size_t s = 0; s < model_.size(); ++s)
          if (actions[s] != MemoryAction::Recompute && model_.compressible(s)) actions[s] = action;
        result.push_back(actions);
        if (recomputed.size() == 1) break;
      }
  }

  const PieceModel& model_;
  const PieceChoices& choices_;
  Actions kept_;
  std::vector<size_t> open_;  // saved tensors but for the output
  std::vector<Priced> found_;
};

}  // namespace

std::vector<Actions> piece_actions(const PieceModel& model, const PieceChoices& choices) {
  return Choosing(model, choices).run();
}

}  // namespace windlass
