// What devices do together.
#pragma once

#include <cstdint>

namespace windlass {

enum class Collective : uint8_t { AllReduce, ReduceScatter, AllGather, AllToAll, Broadcast };

}  // namespace windlass
