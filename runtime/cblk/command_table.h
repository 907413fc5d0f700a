// SPDX-License-Identifier: Apache-2.0
// The commands of a chunk: the free ones, the backlog (admitted, not yet in the ring), and the
// fetchable ones in the order of their issue, found by their tags.
//
//   free ─► active (backlog, then ring) ─► done ─► free, when its result is fetched
//                    └► free at once, if the caller gave a status; orphaned first, if the device
//                       still has it
//
// Threading: under the owner's lock, except Entry::state, which may be read without it. Allocates
// nothing.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "cblk/io.h"
#include "cblk/late_writes.h"

namespace lunar::cblk {

constexpr uint32_t kNone = UINT32_MAX;  // no command

struct Waiter;

struct Entry {
  // kOrphaned: over for the caller, not yet for the device.
  enum State : uint8_t { kFree, kActive, kDone, kOrphaned };
  std::atomic<uint8_t> state{kFree};
  bool lost = false;       // timed out while the device had it
  bool delivered = false;  // its completion is being copied out: it can no longer time out
  uint32_t life = 0;
  uint32_t next = kNone;                  // free stack or backlog
  uint32_t newer = kNone, older = kNone;  // neighbours in a Line
  uint32_t same_hash = kNone;             // chain of user tags
  iovec part{};
  uint64_t sequence = 0;
  uint64_t deadline_ns = UINT64_MAX;
  int64_t result = 0;                // blocks or -errno
  struct Waiter* waiters = nullptr;  // threads that wait for this command
  LateWrite late;                    // of a lost write or discard
  Io io;

  bool is(State wanted) const { return state.load(std::memory_order_relaxed) == wanted; }
  // There is nothing to fetch: it is over for the caller, or never began.
  bool is_over() const { return is(kFree) || is(kOrphaned); }
};

class CommandTable {
 public:
  // The bytes of memory, 64-byte aligned, that a table of `count` commands needs.
  static size_t bytes_of(uint32_t count);
  void init(char* memory, uint32_t count);  // all free
  void reset();  // all free: for a child, because the commands belong to the parent

  uint32_t size() const { return count_; }
  Entry& operator[](uint64_t index) { return entries_[index]; }
  const Entry& operator[](uint64_t index) const { return entries_[index]; }

  bool any_free() const { return free_ != kNone; }
  uint32_t take_free();  // kNone: no command is free
  // False: the device still has the command, which is an orphan until release() is called for it
  // again.
  bool release(uint32_t index);

  // enter_fetchable: a new active command. move_to_done: its result has arrived. leave_fetchable:
  // its result was fetched; pre: it is done.
  void enter_fetchable(uint32_t index);
  void move_to_done(uint32_t index);
  void leave_fetchable(uint32_t index);
  // The same for a command with the caller's status, which is never fetched.
  void enter_background(uint32_t index);
  void leave_background(uint32_t index);
  uint32_t oldest_background() const { return background_line_.oldest; }
  uint32_t fetchable() const { return fetchable_; }
  uint32_t done() const { return done_; }  // of the fetchable ones
  uint32_t oldest_active() const { return active_line_.oldest; }
  uint32_t oldest_done() const { return done_line_.oldest; }
  // Finds the command that a tag identifies. 0; -ENOMSG: the tag is free; -EINVAL: there is no such
  // tag.
  [[nodiscard]] int find_tag(int tag, bool user, uint32_t* index) const;
  // Finds the fetchable command with the operation, buffer, blocks and kind of tag of `like` (and,
  // if it has a user tag, with that tag). Of several, it prefers the one with `tag`; then the one
  // issued after the last that was found this way, because lists mostly name commands in that
  // order; then the one issued first. 0 or -ENOMSG. Looks at all of them if necessary.
  [[nodiscard]] int find_like(int tag, const Io& like, uint32_t* index);

  // The backlog: first in, first out, except that commands that wait for a late write are
  // overtaken.
  void append_backlog(uint32_t index);
  uint32_t backlog() const { return backlog_; }
  // The command after `before`; before == kNone: the first one.
  uint32_t backlog_after(uint32_t before) const {
    return before == kNone ? backlog_first_ : entries_[before].next;
  }
  uint32_t take_backlog_after(uint32_t before);  // removes backlog_after(before); pre: there is one
  bool take_from_backlog(uint32_t index);        // false: it is not in the backlog

 private:
  // Commands in the order of their issue.
  struct Line {
    uint32_t oldest = kNone, newest = kNone;
  };
  void enter(Line* line, uint32_t index);
  void leave(Line* line, uint32_t index);
  template <class Is>  // bool(uint32_t index); the fetchable ones
  uint32_t oldest_of(Is is) const;

  Entry* entries_ = nullptr;
  uint32_t count_ = 0;
  uint32_t free_ = kNone;
  uint32_t backlog_first_ = kNone, backlog_last_ = kNone, backlog_ = 0;
  Line active_line_, done_line_, background_line_;
  uint32_t fetchable_ = 0, done_ = 0;
  uint32_t next_like_ = kNone;  // the command after the last that find_like found; it may be over,
  uint64_t next_like_sequence_ = 0;  //   and its entry in use for another one
  uint32_t* hash_ = nullptr;         // user tags: hash_mask_ + 1 chains
  uint32_t hash_mask_ = 0;
};

}  // namespace lunar::cblk
