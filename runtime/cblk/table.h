// SPDX-License-Identifier: Apache-2.0
// What an id stands for. Ids grow and are never used again; a look-up takes no lock.
//
//   top ── [ leaf ][ leaf ][ - ]...         leaf ── 1024 slots: { word: open? + users, object }
//
// A slot outlives its object, so a late look-up finds a closed word and touches nothing else. Whoever looked an object up
// *uses* it until it lets go; who closes it shuts the word first and then waits until nobody uses it.
// Threading: any. acquire and release neither lock, allocate nor call the kernel (release may wake one that closes).
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::cblk {

enum class Kind : uint8_t { kChunk, kMember, kGroup };   // kMember: a chunk of a group, not for calls of its own

struct Slot;

// What chunks and groups have in common: their place in the table and in the list that fork walks.
struct Handle {
  explicit Handle(Kind k) : kind(k) {}
  const Kind kind;
  int id = -1;
  Slot* slot = nullptr;
  Handle* next = nullptr;        // registry
  Handle* previous = nullptr;
};

struct Slot {
  static constexpr uint32_t kOpen = 1u << 31, kDraining = 1u << 30, kUsers = kDraining - 1;
  std::atomic<uint32_t> word{0};
  std::atomic<Handle*> handle{nullptr};
};

// Gives it an id (handle->id) that answers from now on. 0 or -ENOMEM. Allocates.
[[nodiscard]] int table_add(Handle* handle);
// The open object behind an id, in use until released; nullptr when there is none of that kind.
Handle* table_acquire(int id, Kind kind);
void table_release(Handle* handle);
// Shuts the id: look-ups fail from now on. Then waits until its last user but `mine` let go: 0, or -EBUSY after the deadline (it
// is open again). pre: one closer at a time.
[[nodiscard]] int table_shut(Handle* handle, uint32_t mine, uint64_t deadline_ns);

// Everything that is open, for fork. pre of next(): the lock is held.
sys::Mutex& registry_lock();
void registry_remove(Handle* handle);   // takes the lock
Handle* registry_first();
// In a forked child: nobody but the calling thread is there to use anything.
void table_forget_users();

}  // namespace lunar::cblk
