// SPDX-License-Identifier: Apache-2.0
// See mapping_table.h. Every change is: make its ends boundaries, drop what lies between, put the new interval, join
// neighbours that are alike.
#include "mapping_table.h"

#include <errno.h>

#include <cstring>

#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar::preload {

constexpr size_t kFirstCapacity = 1024;
constexpr size_t kPerOperation = 8;  // splits at both ends, the new interval, with room to spare

int MappingTable::reserve() {
  if (count_ + kPerOperation <= capacity_) return 0;
  size_t capacity = capacity_ == 0 ? kFirstCapacity : 2 * capacity_;
  void* memory = map_private(capacity * sizeof(Mapping), ForkPolicy::kInherit);
  if (memory == nullptr) return -ENOMEM;
  if (items_ != nullptr) {
    memcpy(memory, items_, count_ * sizeof(Mapping));
    unmap_private(items_, capacity_ * sizeof(Mapping));
  }
  items_ = static_cast<Mapping*>(memory);
  capacity_ = capacity;
  return 0;
}

size_t MappingTable::lower(const char* address) const {
  size_t low = 0, high = count_;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (items_[middle].end > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

void MappingTable::insert_at(size_t index, const Mapping& mapping) {
  LUNAR_CHECK(count_ < capacity_, "mapping table: no room was reserved");
  memmove(items_ + index + 1, items_ + index, (count_ - index) * sizeof(Mapping));
  items_[index] = mapping;
  ++count_;
}

void MappingTable::remove_range(size_t first, size_t last) {
  memmove(items_ + first, items_ + last, (count_ - last) * sizeof(Mapping));
  count_ -= last - first;
}

void MappingTable::split(char* at) {
  size_t index = lower(at);
  if (index == count_ || items_[index].begin >= at) return;
  Mapping head = items_[index];
  head.end = at;
  items_[index].begin = at;
  insert_at(index, head);
}

void MappingTable::merge_around(size_t index) {
  if (index + 1 < count_ && items_[index].end == items_[index + 1].begin && items_[index].alike(items_[index + 1])) {
    items_[index].end = items_[index + 1].end;
    remove_range(index + 1, index + 2);
  }
  if (index > 0 && items_[index - 1].end == items_[index].begin && items_[index - 1].alike(items_[index])) {
    items_[index - 1].end = items_[index].end;
    remove_range(index, index + 1);
  }
}

void MappingTable::erase(char* begin, char* end) {
  split(begin);
  split(end);
  size_t first = lower(begin), last = first;
  while (last < count_ && items_[last].begin < end) ++last;
  if (last > first) remove_range(first, last);
}

void MappingTable::set(char* begin, char* end, const Mapping& like) {
  erase(begin, end);
  Mapping mapping = like;
  mapping.begin = begin;
  mapping.end = end;
  size_t index = lower(begin);
  insert_at(index, mapping);
  merge_around(index);
}

bool MappingTable::is_free(const char* begin, const char* end) const {
  size_t i = lower(begin);
  return i == count_ || items_[i].begin >= end;
}

char* MappingTable::find_free(char* from, char* limit, size_t bytes) const {
  for (size_t i = lower(from); i < count_ && items_[i].begin < limit; ++i) {
    if (items_[i].begin > from && static_cast<size_t>(items_[i].begin - from) >= bytes) break;
    if (items_[i].end > from) from = items_[i].end;
  }
  return from <= limit && static_cast<size_t>(limit - from) >= bytes ? from : nullptr;
}

char* MappingTable::piece(char* begin, char* end, const Mapping** mapping) const {
  size_t i = lower(begin);
  *mapping = nullptr;
  if (i == count_) return end;
  if (items_[i].begin > begin) return items_[i].begin < end ? items_[i].begin : end;
  *mapping = &items_[i];
  return items_[i].end < end ? items_[i].end : end;
}

}  // namespace lunar::preload
