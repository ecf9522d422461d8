// Typed indices. Entities refer to each other by index into a vector, never by pointer.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace windlass {

// Index of an entity of type `Tag`; default-constructed means "none".
template <typename Tag>
struct Id {
  int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(int32_t v) : value(v) {}
  constexpr explicit Id(size_t v) : value(static_cast<int32_t>(v)) {}

  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }

  constexpr auto operator<=>(const Id&) const = default;
};

}  // namespace windlass

template <typename Tag>
struct std::hash<windlass::Id<Tag>> {
  size_t operator()(windlass::Id<Tag> id) const { return std::hash<int32_t>()(id.value); }
};
