#include "windlass/search/harmony/stream_bounds.h"

#include <algorithm>

#include "windlass/search/harmony/partition.h"

namespace windlass {

double StreamBounds::forward_seconds(int64_t samples, int64_t size, int32_t end) {
  const auto at = static_cast<size_t>(end);
  double sum = static_cast<double>(samples / size) * chain_.forward(size).seconds[at];
  if (samples % size != 0) sum += chain_.forward(samples % size).seconds[at];
  return sum;
}

double StreamBounds::backward_seconds(int64_t samples, int64_t size) {
  double sum = static_cast<double>(samples / size) * chain_.backward(size).seconds.back();
  if (samples % size != 0) sum += chain_.backward(samples % size).seconds.back();
  return sum;
}

int64_t StreamBounds::pack_peak(const PassTable& table, Pack pack) const {
  return table.memory[static_cast<size_t>(pack.last) + 1] -
         table.memory[static_cast<size_t>(pack.first)];
}

int64_t StreamBounds::pack_bytes(const PassTable& table, Pack pack, int64_t samples,
                                 int64_t size) const {
  return pack_peak(table, pack) + 2 * chain_.input(pack.first, size) +
         chain_.input(pack.last + 1, samples) + chain_.input(pack.first, samples);
}

std::vector<Pack> StreamBounds::cut(int64_t samples, int64_t size, int64_t cap, bool large_loss) {
  const PassTable& table = chain_.backward(size);
  const int32_t layers = chain_.layers();
  const double swap = 1 / 6e9;
  const PackCosts costs(
      layers,
      [&](Pack pack) {
        if (pack_bytes(table, pack, samples, size) > cap) return kDoesNotFit;
        double sum = 1e-4 + swap * static_cast<double>(chain_.input(pack.first, samples));
        if (large_loss && pack.last + 1 == layers)
          sum -=
              forward_seconds(samples, size, layers) - forward_seconds(samples, size, pack.first);
        return sum;
      },
      [&](Pack pack) { return pack_peak(table, pack) > cap; });
  return min_sum_partition(costs);
}

StashPartition StreamBounds::cut_and_place(int64_t samples, int64_t size, int64_t cap,
                                           double byte_seconds) {
  const PassTable& table = chain_.backward(size);
  const int32_t layers = chain_.layers();
  return min_stash_partition(
      {.layers = layers,
       .cap = cap,
       .bytes =
           [&](Pack pack) {
             return pack_peak(table, pack) + chain_.input(pack.last + 1, samples) +
                    (pack.first > 0 ? chain_.input(pack.first, samples) : 0);
           },
       .hopeless = [&](Pack pack) { return pack_peak(table, pack) > cap; },
       .stash = [&](int32_t layer) { return chain_.input(layer, samples); },
       .room = [&](int32_t layer) { return 2 * chain_.input(layer, size); },
       .cost =
           [&](Pack pack) {
             // Weights of the next pack arrive with some delay.
             double sum = 1e-4;
             if (pack.last + 1 == layers)
               sum -= forward_seconds(samples, size, layers) -
                      forward_seconds(samples, size, pack.first);
             return sum;
           },
       .host_cost =
           [&](int32_t layer) {
             return byte_seconds * 2 * static_cast<double>(chain_.input(layer, samples));
           }});
}

double StreamBounds::least_seconds(int64_t samples, int64_t uf, int64_t ub, int32_t loss) {
  int32_t computed_twice = loss;
  if (uf == ub) {
    const PassTable& table = chain_.backward(ub);
    const int64_t parts = (samples + ub - 1) / ub;
    const auto kept = [&](int32_t first) {
      const Pack pack{first, loss - 1};
      return (pack_peak(table, pack) - 2 * chain_.weight_bytes(pack)) * parts;
    };
    while (computed_twice > 0 && kept(computed_twice - 1) <= limit_) --computed_twice;
  }
  return backward_seconds(samples, ub) + forward_seconds(samples, uf, computed_twice);
}

double StreamBounds::bound(PipelineShape shape, bool recompute) {
  const int64_t samples = shape.share(minibatch_);
  const MicroBatchSizes known = micro_batch_sizes(chain_.profile(), samples);
  const auto busy = [&](int64_t size) {
    return static_cast<double>(std::min<int64_t>(shape.depth, (samples + size - 1) / size));
  };
  double least = kDoesNotFit;
  for (int64_t ub : known.backward) {
    double seconds = backward_seconds(samples, ub) / busy(ub);
    if (recompute) {
      const PassTable& table = chain_.backward(ub);
      int32_t loss = chain_.layers() - 1;
      while (loss > 0 && pack_peak(table, {loss - 1, chain_.layers() - 1}) <= limit_) --loss;
      double forward = kDoesNotFit;
      for (int64_t uf : known.forward)
        forward = std::min(forward, forward_seconds(samples, uf, loss) / busy(uf));
      seconds += forward;
    }
    least = std::min(least, seconds);
  }
  return least;
}

}  // namespace windlass
