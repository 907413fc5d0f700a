// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

#include "sys/arena.h"

namespace lunar::kv {

// An array that grows, in a mapping of its own.
template <class T>
class GrowingArray {
 public:
  GrowingArray() = default;
  ~GrowingArray() { close(); }
  void close() {
    if (data_) unmap_private(data_, room_ * sizeof(T));
    data_ = nullptr;
    count_ = room_ = 0;
  }
  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;
  [[nodiscard]] bool reserve(uint64_t room) {
    if (room <= room_) return true;
    auto* data = static_cast<T*>(map_private(room * sizeof(T), ForkPolicy::kInherit));
    if (!data) return false;
    std::copy(begin(), end(), data);
    if (data_) unmap_private(data_, room_ * sizeof(T));
    data_ = data;
    room_ = room;
    return true;
  }
  [[nodiscard]] bool push(const T& value) {
    if (count_ == room_ && !reserve(room_ ? 2 * room_ : 512)) return false;
    data_[count_++] = value;
    return true;
  }
  [[nodiscard]] bool fill(uint64_t count) {  // with zeros. Pre: empty
    if (!reserve(count ? count : 1)) return false;
    count_ = count;
    return true;
  }
  void clear() { count_ = 0; }
  void pop() { --count_; }  // pre: not empty
  T* begin() const { return data_; }
  T* end() const { return data_ + count_; }
  T& operator[](uint64_t i) const { return data_[i]; }
  uint64_t count() const { return count_; }

 private:
  T* data_ = nullptr;
  uint64_t count_ = 0, room_ = 0;
};

}  // namespace lunar::kv
