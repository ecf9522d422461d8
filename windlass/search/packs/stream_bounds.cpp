#include "windlass/search/packs/stream_bounds.h"

#include <algorithm>

#include "windlass/cost/traffic.h"
#include "windlass/search/packs/partition.h"

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

int32_t StreamBounds::first_of_loss(int64_t size) {
  const PassTable& table = chain_.backward(size);
  int32_t loss = chain_.layers() - 1;
  while (loss > 0 && pack_peak(table, {loss - 1, chain_.layers() - 1}) <= limit_) --loss;
  return loss;
}

// What keeping activations of the first layers saves of recomputing, by bytes: those layers first
// that save most for a byte, a part of the last one.
class StreamBounds::Savings {
 public:
  Savings(ChainTables& chain, int64_t samples, int64_t size, int32_t layers) {
    const PassTable& table = chain.backward(size);
    // A smaller micro-batch at the end takes less of both: no bytes, but all seconds.
    const auto whole = static_cast<double>(samples / size);
    const auto parts = static_cast<double>((samples + size - 1) / size);
    std::vector<Sum> each;
    for (int32_t l = 0; l < layers; ++l) {
      const Pack layer{l, l};
      const auto at = static_cast<size_t>(l);
      const int64_t saved = table.memory[at + 1] - table.memory[at] - chain.weight_bytes(layer) -
                            chain.state_bytes(layer);
      each.push_back({whole * static_cast<double>(std::max<int64_t>(saved, 0)),
                      parts * ChainTables::seconds(chain.forward(size), layer)});
    }
    std::ranges::sort(
        each, [](const Sum& a, const Sum& b) { return a.seconds * b.bytes > b.seconds * a.bytes; });
    for (const Sum& layer : each)
      sums_.push_back({sums_.back().bytes + layer.bytes, sums_.back().seconds + layer.seconds});
  }

  double all() const { return sums_.back().seconds; }
  double seconds(double bytes) const {
    const auto after = std::ranges::upper_bound(sums_, std::max(bytes, 0.0), {}, &Sum::bytes);
    if (after == sums_.end()) return all();
    const auto before = std::prev(after);
    const double part = (bytes - before->bytes) / (after->bytes - before->bytes);
    return before->seconds + part * (after->seconds - before->seconds);
  }
  // Whether, for some saving of at least `least`, bytes + rate * saving suffice. What they save
  // falls more and more slowly: the best saving is found by halving.
  bool reaches(double least, double bytes, double rate) const {
    const auto more = [&](double saving) { return seconds(bytes + rate * saving) - saving; };
    double low = least, high = all();
    if (low > high) return false;
    for (int i = 0; i < 40 && more(low) < 0; ++i) {
      const double middle = (low + high) / 2, step = (high - low) * 1e-6;
      (more(middle + step) > more(middle) ? low : high) = middle;
    }
    return more(low) >= 0 || more(high) >= 0;
  }

 private:
  struct Sum {
    double bytes = 0, seconds = 0;
  };
  std::vector<Sum> sums_ = {{}};  // of the first layers
};

double StreamBounds::to_host(PipelineShape shape) const {
  const EndpointId host = machine_.nodes.front().endpoint;
  constexpr Bytes kEach(1'000'000'000);
  double most = 0, into_host = 0;
  std::vector<Copy> copies;
  for (const Device& device : machine_.devices) {
    most = std::max(most, find_route(machine_, device.endpoint, host).bandwidth.value);
    if (copies.size() < static_cast<size_t>(shape.replicas))
      copies.push_back({device.endpoint, host, kEach});
  }
  for (const Link& link : machine_.links)
    if (link.a == host || link.b == host) into_host += link.bandwidth.value;
  if (shape.depth > 1) return std::min(shape.depth * most, into_host / shape.replicas);
  double seconds = static_cast<double>(kEach.value) / most;
  for (const LinkLoad& load : plan_copies(machine_, copies).loads)
    seconds = std::max(seconds, static_cast<double>(load.bytes.value) /
                                    machine_[load.direction.link].bandwidth.value);
  return static_cast<double>(kEach.value) / seconds;
}

double StreamBounds::least_step(PipelineShape shape, const MicroBatchSizes& sizes) {
  const int64_t samples = shape.share(minibatch_);
  const auto depth = static_cast<double>(shape.depth);
  const auto memory = static_cast<double>(limit_);
  const double rate = to_host(shape);
  // From the update of the first layer with weights to the next one.
  int32_t first = 0;
  while (first < chain_.layers() && chain_.weight_bytes({first, first}) == 0) ++first;
  const auto way_through = [&](const PassTable& table, int32_t end) {
    return first < end ? ChainTables::seconds(table, {first, end - 1}) : 0;
  };
  double least = kDoesNotFit;
  for (int64_t backward_size : sizes.backward) {
    const int64_t ub = std::min(backward_size, samples);
    const int32_t loss = first_of_loss(ub);
    const double backward = backward_seconds(samples, ub);  // with all of the forward pass once
    const double way_back =
        way_through(chain_.backward(ub), chain_.layers()) - way_through(chain_.forward(ub), loss);
    for (int64_t forward_size : sizes.forward) {
      const int64_t uf = std::min(forward_size, samples);
      const double twice = backward + forward_seconds(samples, uf, loss);
      const double way = way_back + way_through(chain_.forward(uf), loss);
      double step = std::max(twice / depth, way);
      if (uf == ub && loss > 0 && std::max(backward / depth, way) < least) {
        const Savings savings(chain_, samples, ub, loss);
        double low = std::max((twice - savings.all()) / depth, way), high = step;
        for (int i = 0; i < 40; ++i) {
          const double middle = (low + high) / 2;
          const double leaves = rate * (middle - backward / depth);
          (savings.reaches(twice - depth * middle, depth * memory + leaves, rate / depth) ? high
                                                                                          : low) =
              middle;
        }
        step = low;
      }
      least = std::min(least, step);
    }
  }
  return least;
}

}  // namespace windlass
