// What moves do to the parts of a tensor, member by member, and the traffic that takes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "windlass/cost/traffic.h"
#include "windlass/plan/check_layouts.h"

namespace windlass {

// A tensor that goes from one layout to another.
struct CheckedMove {
  TensorId tensor;
  int64_t element_size = 0;
  bool pairwise = false, sums = false;
  Collective collective = Collective::AllReduce;
  int32_t digits = 0;  // the numbers of CheckLayouts
  int32_t from = -1, to = -1;
  int32_t from_group = -1, to_group = -1;
  auto operator<=>(const CheckedMove&) const = default;
};

// What is to be known of it.
struct MoveFacts {
  std::string wrong;      // why it does not turn the one into the other; empty if it does
  bool overlaps = false;  // pairwise: parts that are sent overlap
  bool gaps = false;      // pairwise: nobody has some of what is wanted
  int32_t traffic = -1;   // that it takes
};

class CheckMoves {
 public:
  // Groups are those of a strategy.
  CheckMoves(const Machine& machine, const std::vector<std::vector<DeviceId>>& groups,
             CheckLayouts& layouts)
      : machine_(machine), groups_(groups), layouts_(layouts) {}

  const MoveFacts& facts(const CheckedMove& move);

  // Traffic of a collective over a set of digits; of copies of so many bytes between each of the
  // members and its host.
  int32_t collective(Collective collective, int32_t group, int32_t digits, int64_t bytes);
  int32_t host_copies(int32_t group, const std::vector<int64_t>& members, bool to_host,
                      int64_t bytes);
  const Traffic& traffic(int32_t id) const { return traffics_[static_cast<size_t>(id)]; }

 private:
  void check_collective(const CheckedMove& move, MoveFacts& facts);
  void check_pairwise(const CheckedMove& move, MoveFacts& facts);
  std::vector<Part> parts(const CheckedMove& move, bool target) const;
  const std::vector<DeviceId>& group(int32_t id) const { return groups_[static_cast<size_t>(id)]; }
  int32_t add(Traffic traffic);

  const Machine& machine_;
  const std::vector<std::vector<DeviceId>>& groups_;
  CheckLayouts& layouts_;
  std::vector<Traffic> traffics_;
  std::map<CheckedMove, MoveFacts> moves_;
  std::map<std::tuple<Collective, int32_t, int32_t, int64_t>, int32_t> collectives_;
  std::map<std::tuple<int32_t, std::vector<int64_t>, bool, int64_t>, int32_t> copies_;
};

}  // namespace windlass
