// Events of Harmony's estimate by name, and when they end.
//
// An event is named by (task, kind, micro-batch, layer) and says by name what it waits for; names
// that do not exist are dropped. Streams are lists of events. The head of any stream is dispatched
// as soon as what it waits for has ended. Time: events x streams.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace windlass {

class EventList {
 public:
  // Reads before what a task computes, writes after; Message is host to host.
  enum class Kind : uint8_t {
    Weights,
    Input,
    StashIn,
    Gradient,
    Forward,
    Recompute,
    Backward,
    StashOut,
    Output,
    StashMessage,
    OutputMessage,
    AllReduce,
    Free,
    WriteBack,
    Update,
  };
  enum Stream : uint8_t { SwapIn, PeerIn, Compute, PeerOut, SwapOut, Host };

  struct Name {
    int task = -1;
    Kind kind = Kind::Weights;
    int part = 0;   // micro-batch
    int layer = 0;  // first layer of a forward part, or the layer stashed
    auto operator<=>(const Name&) const = default;
  };

  struct Event {
    Name name;
    int device = 0;
    Stream stream = Compute;
    double seconds = 0;
    std::vector<Name> waits;
    Name twin = {};  // the other end of a peer transfer; task -1 if none
  };

  // At the end of the stream it is on.
  void add(Event event);
  // When the last event ends; infinity if events wait for each other in a circle.
  double dispatch();

 private:
  // False if something that the event waits for has not ended; else `begin` is no earlier than
  // that.
  bool ready(size_t event, double& begin) const;

  std::vector<Event> events_;
  std::map<Name, size_t> index_;
  std::map<std::pair<int, Stream>, std::vector<size_t>> streams_;
  std::vector<double> ends_;
};

}  // namespace windlass
