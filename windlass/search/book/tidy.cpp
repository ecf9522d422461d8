#include "windlass/search/book/tidy.h"

#include <functional>
#include <vector>

namespace windlass {
namespace {

class Tidying {
 public:
  Tidying(Evaluator& evaluator, Candidate& best, int64_t simulations)
      : evaluator_(evaluator), best_(best), left_(simulations) {}

  void run() {
    saved(MemoryAction::Regather);
    weights([](Residency& weight) { weight.host = false; });
    weights([](Residency& weight) { weight.host_update = false; });
    weights([](Residency& weight) { weight.zero = 0; });
    const Strategy plain;
    change([&](Strategy& strategy) { strategy.prefetch = plain.prefetch; });
    change([&](Strategy& strategy) { strategy.bucket = plain.bucket; });
    saved(MemoryAction::Recompute);
    saved(MemoryAction::Offload);
  }

 private:
  bool change(const std::function<void(Strategy&)>& how) {
    if (left_ <= 0) return false;
    Strategy changed = best_.strategy;
    how(changed);
    --left_;
    const auto found = evaluator_.evaluate_below(changed, best_.time);
    if (!found || !found->fits || found->time > best_.time) return false;
    best_ = {std::move(changed), found->time};
    return true;
  }

  // The list as a whole, or its halves.
  void halves(const std::vector<size_t>& list, size_t begin, size_t end,
              const std::function<void(Strategy&, size_t)>& how) {
    constexpr size_t kParts = 8;  // of the list: smaller ones are left as they are
    if (begin == end || (end - begin) * kParts < list.size()) return;
    const bool done = change([&](Strategy& strategy) {
      for (size_t i = begin; i < end; ++i) how(strategy, list[i]);
    });
    if (done || end - begin == 1) return;
    const size_t middle = begin + (end - begin) / 2;
    halves(list, begin, middle, how);
    halves(list, middle, end, how);
  }

  void saved(MemoryAction action) {
    std::vector<size_t> list;
    for (size_t s = 0; s < best_.strategy.saved.size(); ++s)
      if (best_.strategy.saved[s] == action) list.push_back(s);
    halves(list, 0, list.size(),
           [](Strategy& strategy, size_t s) { strategy.saved[s] = MemoryAction::Keep; });
  }

  void weights(const std::function<void(Residency&)>& how) {
    std::vector<size_t> list;
    for (size_t u = 0; u < best_.strategy.weights.size(); ++u) {
      Residency changed = best_.strategy.weights[u];
      how(changed);
      if (changed != best_.strategy.weights[u]) list.push_back(u);
    }
    halves(list, 0, list.size(), [&](Strategy& strategy, size_t u) { how(strategy.weights[u]); });
  }

  Evaluator& evaluator_;
  Candidate& best_;
  int64_t left_;
};

}  // namespace

void tidy(Evaluator& evaluator, Candidate& best, int64_t simulations) {
  Tidying(evaluator, best, simulations).run();
}

}  // namespace windlass
