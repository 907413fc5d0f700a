// SPDX-License-Identifier: Apache-2.0
// Maps ids to objects. Ids grow and are never reused; a lookup takes no lock.
//
//   top ── [ leaf ][ leaf ][ - ]...         leaf ── 1024 slots: { word: open? + users, object }
//
// A slot outlives its object, so a late lookup finds a closed word and touches nothing else. A
// thread that looked up an object *uses* it until it releases it. Closing first shuts the word,
// then waits for all users.
// Threading: any. acquire and release take no lock, allocate nothing and make no system call
// (release may wake a thread that closes).
#pragma once
#include <atomic>
#include <cstdint>

#include "capiblock.h"
#include "sys/thread.h"

namespace lunar::cblk {

// kMember: a chunk of a group; its id is only valid for fetching results.
enum Kind : uint8_t { kChunk = 1, kMember = 2, kGroup = 4 };

struct Slot;
struct Io;

// The common part of chunks and groups: the calls that both implement, and their links in the table
// and in the registry, the list that the fork handlers go through.
struct Handle {
  explicit Handle(Kind k) : kind(k) {}
  const Kind kind;
  int id = -1;
  Slot* slot = nullptr;
  Handle* next = nullptr;  // registry
  Handle* previous = nullptr;

  // Returns 0, and the object is freed; or -errno. pre: the caller uses it.
  [[nodiscard]] virtual int close(int flags) = 0;
  virtual uint64_t lun_blocks() const = 0;
  virtual uint64_t size_blocks() const = 0;
  [[nodiscard]] virtual int set_size(uint64_t blocks, int flags) = 0;
  virtual void stats(chunk_stats_t* out) = 0;
  virtual void attributes(chunk_attrs_t* out) = 0;
  [[nodiscard]] virtual int clone_after_fork(int mode) = 0;
  [[nodiscard]] virtual int64_t transfer(Io* io) = 0;  // blocks moved, or -errno
  // 0: issued (*tag is set; tag->tag only if the caller did not choose it); > 0: blocks moved at
  // once; -errno.
  [[nodiscard]] virtual int64_t issue(Io* io, cflsh_cg_tag_t* tag) = 0;
  // > 0: blocks; 0: not done; -errno. Blocking: for at most CFLSH_BLK_TIMEOUT.
  [[nodiscard]] virtual int64_t result(cflsh_cg_tag_t* tag, int flags) = 0;

 protected:
  ~Handle() = default;
};

struct Slot {
  static constexpr uint32_t kOpen = 1u << 31, kDraining = 1u << 30, kUsers = kDraining - 1;
  std::atomic<uint32_t> word{0};
  std::atomic<Handle*> handle{nullptr};
};

// Gives the object an id (handle->id), by which it can be looked up from now on. 0 or -ENOMEM.
// Allocates.
[[nodiscard]] int table_add(Handle* handle);
// The open object with that id and one of those kinds (Kind values, or'ed), in use until it is
// released; nullptr if there is no such object.
Handle* table_acquire(int id, unsigned kinds);
void table_release(Handle* handle);
// Shuts the id: lookups fail from now on. Then waits until all users but `mine` have released it.
// 0, or -EBUSY after the deadline (the id is open again). pre: one closer at a time.
[[nodiscard]] int table_shut(Handle* handle, uint32_t mine, uint64_t deadline_ns);

// After table_shut: lookups succeed again. pre: called by the closer
void table_reopen(Handle* handle);
// All open objects, for the fork handlers, which hold the lock while they go through the list.
sys::Mutex& registry_lock();
void registry_remove(Handle* handle);  // takes the lock
Handle* registry_first();
// In a forked child: forgets all users, because only the calling thread is left.
void table_forget_users();

}  // namespace lunar::cblk
