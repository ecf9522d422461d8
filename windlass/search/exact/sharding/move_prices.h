// What redistributions take, found fast for very many pairs of layouts: the times that lowering and
// the cost model would say, without building copies and traffic for each.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "windlass/base/hash.h"
#include "windlass/cost/routes.h"
#include "windlass/task/tables.h"

namespace windlass {

class MovePrices {
 public:
  // Moves among the members of `group`, an id of `tables`. Both must outlive this.
  MovePrices(const Machine& machine, Tables& tables, int32_t group);

  // Nanoseconds, when nobody else is there; layouts are ids of the tables. 0 between a layout and
  // itself.
  double time(const TensorType& type, int32_t from, int32_t to);
  // The same or less, much faster where pieces have to be copied: what the member that lacks most
  // takes to receive it, over the fastest link into it.
  double least_time(const TensorType& type, int32_t from, int32_t to);
  // Of a planned collective or copy.
  double time_of(int32_t traffic);

 private:
  // The pieces of a layout. Along each axis they are ranges; a piece is one range of each.
  struct Pieces {
    std::vector<std::vector<Range>> ranges;     // by axis
    std::vector<std::vector<int32_t>> indices;  // by member and axis: which range
    std::vector<std::vector<int32_t>> holders;  // by piece, row-major over the axes' ranges
    std::vector<int64_t> strides;               // of the axes in that order
  };
  struct Steps {
    double collectives = 0;
    bool pairwise = false;
    int32_t now = -1, to = -1;
    double least = -1, copied = -1;  // of the pairwise copies, once they were asked for
  };
  int32_t id_of(const TensorType& type);
  Steps& steps_of(const TensorType& type, int32_t from, int32_t to);
  double least_copy_time(const TensorType& type, const Pieces& from, const Pieces& to) const;
  const Pieces& pieces_of(const Shape& shape, int32_t layout);
  // Of copying pieces: what there is whatever the size, and what a byte of an element takes.
  struct CopyTime {
    double latency = 0;           // seconds
    double seconds_per_byte = 0;  // of an element
  };
  CopyTime copy_time(const Pieces& from, const Pieces& to);
  double copy_time(const TensorType& type, const Steps& steps);
  void load(size_t from, size_t to, double elements);

  const Machine& machine_;
  Tables& tables_;
  int32_t group_;
  size_t members_;
  struct RouteOf {
    uint32_t first = 0, last = 0;  // of directions_
    double latency = 0;            // seconds, start of the copy included
  };
  std::vector<uint32_t> directions_;      // of links, two a link, route after route
  std::vector<RouteOf> routes_;           // by pair of members
  std::vector<double> seconds_per_byte_;  // by direction
  std::vector<double> loads_;             // by direction, of the redistribution at hand
  std::vector<uint32_t> touched_;
  double latency_ = 0;
  std::map<std::pair<Shape, int32_t>, Pieces> pieces_;
  struct MoveKey {
    int32_t type = 0, from = 0, to = 0;  // type: of type_ids_
    bool operator==(const MoveKey&) const = default;
  };
  struct HashKey {
    size_t operator()(const MoveKey& key) const {
      return Hasher().add(key.type).add(key.from).add(key.to).result();
    }
  };
  std::unordered_map<MoveKey, Steps, HashKey> steps_;
  std::map<std::pair<Shape, DType>, int32_t> type_ids_;
  TensorType last_type_;  // that was asked for
  int32_t last_type_id_ = -1;
  // By shape and layouts in which every axis that is cut evenly has the least size that can be cut
  // so: most tensors of a network are alike then.
  std::map<std::tuple<Shape, int32_t, int32_t>, CopyTime> copies_;
  std::vector<double> least_seconds_per_byte_;  // by member: over the fastest link into it
  std::vector<double> times_;                   // by traffic
};

}  // namespace windlass
