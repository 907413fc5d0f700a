// SPDX-License-Identifier: Apache-2.0
// Maps the handles of programs (ARK*, ARC*, ARI*) to objects. A handle is a number in the form of a
// pointer that is never dereferenced:
//
//   0 │ generation, 44 bits │ slot, 16 bits │ 000
//
// No two handles of a process have the same number, so a call with a closed handle is detected and
// touches nothing. A slot outlives its object. A thread that looked up an object *uses* it until it
// releases it; the users of a slot are counted in several places, so that threads do not share a
// cache line for it.
// Threading: any. acquire and release neither lock nor allocate; acquire waits while the object's
// store is paused (ark_store.h).
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
  uint64_t generation = 0;  // under the table's lock, like the members below
  uint32_t number = 0;
  Slot* next_free = nullptr;
  Users users[kCounts];
};

// The common part of all objects with handles.
struct Object {
  Kind kind = kMain;
  Slot* slot = nullptr;
  ArkStore* store = nullptr;
  Object* next = nullptr;  // in the store's list, under its lock
};

// Gives the object a handle, by which it can be looked up from now on; 0: 65536 are open, or there
// is no memory. Allocates.
[[nodiscard]] uint64_t table_add(Object* object);
// The open object of one of these kinds with that handle, in use until it is released; nullptr if
// there is none.
Object* table_acquire(const void* handle, unsigned kinds);
void table_release(Object* object);
// Uses an object that cannot be freed meanwhile for another reason. Works even if the handle is
// closed.
void table_use(Object* object);
// Closes the handle. False: it was closed already. Lookups fail from now on; present users are not
// affected.
bool table_shut(Object* object);
// Whether no thread uses the object. Once true, it stays true while the handle is shut (and no Op
// is in use) or the store is paused.
bool table_idle(const Object* object);
// Waits for table_idle(). The caller must not have the store's lock, because a user may need it.
void table_drain(const Object* object);
// Frees the slot.
// pre: shut and drained
void table_free(Slot* slot);

// Held while an engine is opened or closed. Its device then has descriptors that no object leads
// to, and that a child could not close, so forks wait. Waits for a fork that waits.
class EngineChange {
 public:
  EngineChange();
  ~EngineChange();
  EngineChange(const EngineChange&) = delete;
  EngineChange& operator=(const EngineChange&) = delete;
};

// Called around fork by the forking thread: no other thread changes the table meanwhile, nor opens
// or closes an engine.
void table_before_fork();
void table_after_fork_in_parent();
// Closes the handles of all stores except `forked`, and the descriptors of their devices. No thread
// uses any of them.
void table_after_fork_in_child(const ArkStore* forked);

}  // namespace lunar::ark
