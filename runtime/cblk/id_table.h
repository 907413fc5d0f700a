// SPDX-License-Identifier: Apache-2.0
// Maps ids to objects. Ids grow and are never reused; a lookup takes no lock.
//
//   top ── [ leaf ][ leaf ][ - ]...         leaf ── 1024 slots: { word: open? + users, object }
//
// A slot outlives its object, so a late lookup finds a closed word and touches nothing else. A thread that looked an
// object up *uses* it until it releases it; close shuts the word first and then waits for all users.
// Threading: any. acquire and release neither lock, allocate nor call the kernel (release may wake one that closes).
#pragma once
#include <atomic>
#include <cstdint>

#include "capiblock.h"
#include "sys/thread.h"

namespace lunar::cblk {

// kMember: a chunk of a group, which has only its results fetched
enum Kind : uint8_t { kChunk = 1, kMember = 2, kGroup = 4 };

struct Slot;
struct Io;

// The common part of chunks and groups: the calls that both answer, their place in the table and in the list that fork
// goes through.
struct Handle {
  explicit Handle(Kind k) : kind(k) {}
  const Kind kind;
  int id = -1;
  Slot* slot = nullptr;
  Handle* next = nullptr;  // registry
  Handle* previous = nullptr;

  // 0, and the object is gone; or -errno. pre: the caller uses it.
  [[nodiscard]] virtual int close(int flags) = 0;
  virtual uint64_t lun_blocks() const = 0;
  virtual uint64_t size_blocks() const = 0;
  [[nodiscard]] virtual int set_size(uint64_t blocks, int flags) = 0;
  virtual void stats(chunk_stats_t* out) = 0;
  virtual void attributes(chunk_attrs_t* out) = 0;
  [[nodiscard]] virtual int clone_after_fork(int mode) = 0;
  [[nodiscard]] virtual int64_t transfer(Io* io) = 0;  // blocks moved, or -errno
  // 0: issued (*tag set; tag->tag unless it is the caller's); > 0 done already; -errno.
  [[nodiscard]] virtual int64_t issue(Io* io, cflsh_cg_tag_t* tag) = 0;
  // > 0 blocks; 0 not done; -errno. Blocking: as long as CFLSH_BLK_TIMEOUT says.
  [[nodiscard]] virtual int64_t result(cflsh_cg_tag_t* tag, int flags) = 0;

 protected:
  ~Handle() = default;
};

struct Slot {
  static constexpr uint32_t kOpen = 1u << 31, kDraining = 1u << 30, kUsers = kDraining - 1;
  std::atomic<uint32_t> word{0};
  std::atomic<Handle*> handle{nullptr};
};

// Gives it an id (handle->id) that answers from now on. 0 or -ENOMEM. Allocates.
[[nodiscard]] int table_add(Handle* handle);
// The open object behind an id, in use until released; nullptr when there is none of those kinds (Kind, or'ed).
Handle* table_acquire(int id, unsigned kinds);
void table_release(Handle* handle);
// Shuts the id: lookups fail from now on. Then waits until its last user but `mine` has released it: 0, or -EBUSY after
// the deadline (it is open again). pre: one closer at a time.
[[nodiscard]] int table_shut(Handle* handle, uint32_t mine, uint64_t deadline_ns);

void table_reopen(Handle* handle);  // after table_shut: look-ups find it again. pre: the closer's
// Everything that is open, for fork. pre of next(): the lock is held.
sys::Mutex& registry_lock();
void registry_remove(Handle* handle);  // takes the lock
Handle* registry_first();
// In a forked child: only the calling thread is left to use anything.
void table_forget_users();

}  // namespace lunar::cblk
