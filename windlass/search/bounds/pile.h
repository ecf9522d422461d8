// A list that is filled and emptied again and again.
#pragma once

#include <cstddef>
#include <vector>

namespace windlass {

template <typename T>
class Pile {
 public:
  // One more, as an earlier use has left it: all of it is to be set.
  T& add() {
    if (size_ == room_) grow();
    return list_[size_++];
  }
  void clear() { size_ = 0; }

  size_t size() const { return size_; }
  T& operator[](size_t i) { return list_[i]; }
  const T& operator[](size_t i) const { return list_[i]; }
  const T* begin() const { return list_.data(); }
  const T* end() const { return list_.data() + size_; }

 private:
  [[gnu::noinline]] void grow() {
    constexpr size_t kLeast = 64;
    room_ = 2 * room_ + kLeast;
    list_.resize(room_);
  }

  std::vector<T> list_;
  size_t size_ = 0, room_ = 0;
};

}  // namespace windlass
