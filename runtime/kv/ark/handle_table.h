// SPDX-License-Identifier: Apache-2.0
// Maps the handles that programs hold (ARK*, ARC*, ARI*) to objects. A handle is a number in the form of a pointer, and
// is never looked through:
//
//   0 │ generation, 44 bits │ slot, 16 bits │ 000
//
// No two handles of a process have the same number, so a call with one that was closed finds that out and touches
// nothing. A slot outlives its object. A thread that looked an object up *uses* it until it releases it; the users of a
// slot are counted in several places, so that threads do not share a cache line for it.
// Threading: any. acquire and release neither lock nor allocate; acquire waits while the object's store is paused
// (ark_store.h).
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::ark {

struct ArkStore;

enum Kind : uint8_t { kMain = 1, kConnection = 2, kIterator = 4, kArk = kMain | kConnection };

struct Slot {
  static constexpr unsigned kCounts = 8;
  struct alignas(64) Users {
    std::atomic<uint32_t> count{0};
  };
  std::atomic<uint64_t> handle{0};  // 0: closed
  std::atomic<struct Object*> object{nullptr};
  uint64_t generation = 0;  // under the table's lock, as what follows
  uint32_t number = 0;
  Slot* next_free = nullptr;
  Users users[kCounts];
};

// The common part of what a handle stands for.
struct Object {
  Kind kind = kMain;
  Slot* slot = nullptr;
  ArkStore* store = nullptr;
  Object* next = nullptr;  // of the store's, under its lock
};

// Gives it a handle that answers from now on; 0: 65536 are open, or no memory. Allocates.
[[nodiscard]] uint64_t table_add(Object* object);
// The open object of one of these kinds behind a handle, in use until released; nullptr.
Object* table_acquire(const void* handle, unsigned kinds);
void table_release(Object* object);
// An object that the caller keeps from being freed in another way: as acquire, also when the handle is closed.
void table_use(Object* object);
// Closes the handle. False: it was. Look-ups fail from now on; users that are there go on.
bool table_shut(Object* object);
// Whether no thread uses it. Once true it stays so, when the handle is shut (and no Op is out) or the store is paused.
bool table_idle(const Object* object);
void table_drain(const Object* object);  // waits for that. Not with the store's lock: a user may want it
// The slot is free. Pre: shut and drained.
void table_free(Slot* slot);

// Around fork, by the forking thread: no other one changes the table meanwhile.
void table_before_fork();
void table_after_fork_in_parent();
// Handles of all stores but `kept` are closed, and the descriptors of their devices; no thread uses any.
void table_after_fork_in_child(const ArkStore* kept);

}  // namespace lunar::ark
