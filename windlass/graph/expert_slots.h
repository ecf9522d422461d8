// Mixtures of experts with rows in slots (SlotAttrs), so that experts can be on different devices
// and only the rows of an expert travel to it: an all-to-all of slots.
#pragma once

#include <cstdint>

#include "windlass/graph/graph.h"

namespace windlass {

// Slots of an expert are this many times its share of the rows, if choices are even.
constexpr double kExpertCapacity = 1.5;

// Experts of the mixtures of a network: the greatest number that divides that of each of them; 0 if
// it has none.
int64_t experts_of(const Graph& network);
// Whether its mixtures have their rows in slots.
bool has_expert_slots(const Graph& network);

// The same network with the rows of its mixtures in slots, of which an expert has `capacity` times
// its even share for the tokens of each sample, at most as many as those are: then no choice is too
// uneven. Loss and gradients are the same, up to rounding, as long as no expert is chosen more
// often than it has slots; running it is an error otherwise. Throws Error{Input} if there are no
// mixtures, or capacity is below 1; Error{Unsupported} if something else is done to their rows than
// elementwise functions and products.
Graph with_expert_slots(const Graph& network, double capacity);

}  // namespace windlass
