// SPDX-License-Identifier: Apache-2.0
// MappingTable: what the program has mapped inside the tiered address space (the kernel's VMAs, as the program sees
// them). A sorted array of disjoint intervals; equal neighbours are merged. It is in private maps, never on a heap.
//
//   kTiered    the pager owns it; committed or not (a PROT_NONE reservation is not, until it is made accessible)
//   kForeign   the program put something else there with MAP_FIXED (a file, shared memory); the kernel owns it
//   kDead      was foreign and is unmapped now: the pager has lost it, so it is never given out again
// Addresses in no interval are free.
//
// Threading: none; the owner (tiered_maps) holds a lock. Blocking: only to grow (mmap).
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::preload {

enum class MappingKind : uint8_t { kTiered, kForeign, kDead };

struct Mapping {
  char* begin = nullptr;
  char* end = nullptr;
  int prot = 0;  // as for mprotect
  MappingKind kind = MappingKind::kTiered;
  bool committed = false;
  int key = 0;  // of pkey_mprotect
  bool alike(const Mapping& other) const {
    return prot == other.prot && kind == other.kind && committed == other.committed && key == other.key;
  }
  size_t bytes() const { return static_cast<size_t>(end - begin); }
};

class MappingTable {
 public:
  // Makes room for one more operation, which adds at most a few intervals. -ENOMEM: do not start the operation.
  [[nodiscard]] int reserve();

  // Index of the first interval that ends above `address`; count() if there is none.
  size_t lower(const char* address) const;
  size_t count() const { return count_; }
  const Mapping& at(size_t index) const { return items_[index]; }

  // set: all of [begin, end) becomes like `like` (whose begin and end are ignored). erase: it becomes free.
  void set(char* begin, char* end, const Mapping& like);
  void erase(char* begin, char* end);

  bool is_free(const char* begin, const char* end) const;
  // Lowest free place of `bytes` in [from, limit), or nullptr.
  char* find_free(char* from, char* limit, size_t bytes) const;
  // Returns the end of the interval, or gap, that contains `begin`, but at most `end`; *mapping: the interval (nullptr:
  // free).
  char* piece(char* begin, char* end, const Mapping** mapping) const;

 private:
  void split(char* at);  // makes `at` a boundary if it is inside an interval
  void insert_at(size_t index, const Mapping& mapping);
  void remove_range(size_t first, size_t last);
  void merge_around(size_t index);

  Mapping* items_ = nullptr;
  size_t count_ = 0, capacity_ = 0;
};

}  // namespace lunar::preload
