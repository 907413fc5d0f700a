// SPDX-License-Identifier: Apache-2.0
// Foreign ranges: parts of regions that are the kernel's, because the program has put something
// else there (a file, shared memory) or executes them. They are not registered, have no page words,
// and are left alone by forks. A range ends with region_reclaim: then its place is the region's
// again.
//
//   [begin, end) addresses, sorted, disjoint, neighbours joined; of all regions of the process
//
// Threading: read by any thread without a lock (under a sequence counter), also on the fault path.
// Changes exclude each other, and forks: the owner of the maps holds its lock around them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar {

class ForeignRanges {
 public:
  // Makes room for one more change. -ENOMEM: there is none.
  [[nodiscard]] int reserve();
  void add(const void* begin, size_t bytes);
  void remove(const void* begin, size_t bytes);

  // The end of the run of bytes, all foreign or all not, that begins at `at`; at most `end`.
  char* run(char* at, char* end, bool* foreign) const;
  bool overlaps(const void* begin, size_t bytes) const;

 private:
  struct Range {
    std::atomic<uintptr_t> begin, end;
  };
  void replace(size_t first, size_t last, const uintptr_t (&put)[2][2], size_t puts);
  size_t lower(uintptr_t at) const;  // the first range that ends above `at`

  std::atomic<uint32_t> sequence_{0};  // odd while it changes
  std::atomic<Range*> ranges_{nullptr};
  std::atomic<size_t> count_{0};
  size_t capacity_ = 0;
};

// Calls visit(from, bytes) for the parts of [from, end) that are not foreign, up to the first
// error.
template <class Visit>
int for_own(const ForeignRanges& ranges, char* from, char* end, Visit visit) {
  int rc = 0;
  while (from < end && rc >= 0) {
    bool foreign = false;
    char* const stop = ranges.run(from, end, &foreign);
    if (!foreign) rc = visit(from, static_cast<size_t>(stop - from));
    from = stop;
  }
  return rc;
}

// As sys::present_pages; foreign pages count as not present.
[[nodiscard]] int present_own(const ForeignRanges& ranges, char* at, uint64_t pages,
                              uint8_t* present);

}  // namespace lunar
