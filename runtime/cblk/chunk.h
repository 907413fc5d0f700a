// SPDX-License-Identifier: Apache-2.0
// A chunk: a device that a program opened through the block library.
//
//   cblk_read  ───────────────────────────────► lane (one ring per thread, lanes.h)
//   cblk_aread ─► command table ─► backlog ─► Context (ring) ─┐
//   cblk_aresult ◄─ done ◄──────── harvest ◄──────────────────┘
//
// cblk_read runs on the caller's thread and takes no lock; the others run under the chunk's lock,
// in which no thread sleeps.
//
// Waiting (wait.cpp): a thread that needs a completion takes those that the ring has. If its own is
// not among them, one of the waiting threads, the *leader*, sleeps in the ring, without the lock;
// each of the others sleeps on its own word. The harvester wakes exactly those whose command is
// done. A leader that leaves designates another. While there is a leader no other thread harvests,
// because it could take the leader's own completion, and the leader would sleep on.
//
// A command: free ─► active (backlog, then ring) ─► done ─► free, by cblk_aresult. A command with
// the caller's status goes from active to free.
//
// Time limit (CFLSH_BLK_TIMEOUT): an I/O that is not done by then fails with ETIMEDOUT. It cannot
// be withdrawn from the device: it is *lost*. So that it never touches the caller's memory
// afterwards, every I/O under a limit moves through a buffer of the library (bounce.h), and only a
// call that reports success copies to the caller's buffer. The place of a lost I/O in the table (or
// its lane) and its buffer stay parked until the device releases them. A lost write may still reach
// the device (late_writes.h): writes and discards of the same blocks, through any chunk of a group
// on one LUN, wait for it, while others overtake them; set_size and close fail with EBUSY. Without
// a limit, and on devices whose I/O is a copy (Capabilities::instant), I/O uses the caller's own
// buffer, and blocking I/O uses Device::transfer.
//
// A late command: active ─► done with ETIMEDOUT, `lost` ─► (fetched) orphaned ─► free, when the
// ring delivers it. The thread that waits for it or polls it notices that it is late; for a command
// with the caller's status the completer does.
//
// Parts: CommandTable (command_table.h), WaitQueue (wait_queue.h), Completer (completer.h), Lanes,
// Cache, BouncePool. The chunk has what they share: the lock, the ring, the leader. Files:
// chunk.cpp: open and close; issue.cpp, harvest.cpp, wait.cpp: the ring; result.cpp; late.cpp;
// sync.cpp; listio.cpp; fork_handlers.cpp.
// Threading: public calls from any thread unless they say otherwise. Data path: no allocation.
#pragma once
#include "capiblock.h"
#include "cblk/bounce.h"
#include "cblk/cache.h"
#include "cblk/chunk_counters.h"
#include "cblk/command_table.h"
#include "cblk/completer.h"
#include "cblk/environment.h"
#include "cblk/finished.h"
#include "cblk/id_table.h"
#include "cblk/io.h"
#include "cblk/lanes.h"
#include "cblk/late_writes.h"
#include "cblk/open_device.h"
#include "cblk/wait_queue.h"
#include "lun/volume/virtual_lun.h"
#include "superpipe/device.h"
#include "sys/phases.h"

namespace lunar::cblk {

constexpr int kRequestsDefault = 64, kRequestsMax = 8192;
constexpr uint64_t kTransferBlocksMax = 4096;  // of a physical chunk; a virtual one moves 1
constexpr uint64_t kCloseWaitNs = 5'000'000'000;

// A blocking I/O between begin() and end(), which the same thread calls. `io` stays valid.
struct Blocking {
  explicit Blocking(Io& of) : io(of) {}
  Io& io;
  enum State : uint8_t { kAnswered, kStarted } state = kAnswered;
  unsigned phase = 0;
  int64_t blocks = 0;  // answered: the result
  int64_t bytes = 0;   // started, without a lane: bytes moved, or -errno
  Bounce bounce;
  Underway underway;  // started, with a lane
  void reset() {
    state = kAnswered;
    blocks = bytes = 0;
    underway = {};
  }
};

class Chunk;

// The chunks of a group on one LUN. A late write of one may change blocks that another accesses.
struct Siblings {
  LateWrites late;
  Chunk* const* chunk = nullptr;
  unsigned count = 0;  // set before the first I/O
};

class Chunk final : public Handle {
 public:
  struct Options {
    const char* path = nullptr;
    int requests = 0;
    int mode = 0;
    int flags = 0;
    Kind kind = Kind::kChunk;
    std::atomic<uint64_t>* sequence = nullptr;  // the group's
    Finished* finished = nullptr;               // likewise
    Siblings* siblings = nullptr;
    bool further = false;  // another chunk of the group has the LUN open already
  };
  // 0 or -errno. The chunk is in the table.
  [[nodiscard]] static int open(const Options& options, Chunk** out);
  // -EBUSY: commands are in progress, or results not fetched; the chunk stays open.
  [[nodiscard]] int close(int flags) override;
  // The steps of close(), for groups.
  bool drain(uint64_t deadline_ns);
  bool late_end(uint64_t deadline_ns);
  void reopen();
  void end(int flags);

  [[nodiscard]] int set_size(uint64_t blocks, int flags) override;
  // The size that a virtual chunk can grow to now, if `sharers` chunks share the rest of their
  // device.
  uint64_t most_blocks(unsigned sharers);
  bool is_on_device_of(const Chunk& other) const;
  uint64_t size_blocks() const override { return size_blocks_.load(std::memory_order_acquire); }
  uint64_t lun_blocks() const override { return lun_blocks_; }
  uint64_t transfer_blocks_max() const { return transfer_blocks_max_; }
  bool is_virtual() const { return virtual_ != nullptr; }
  void stats(chunk_stats_t* out) override;
  void attributes(chunk_attrs_t* out) override;
  [[nodiscard]] int clone_after_fork(int mode) override;

  [[nodiscard]] int64_t transfer(Io* io) override;
  // The same in two steps, for several I/Os at a time. False: not begun, because it must not wait
  // for a lane and none is free. Each I/O that was begun must be ended.
  [[nodiscard]] bool begin(Blocking* one);
  [[nodiscard]] int64_t end(Blocking* one);
  [[nodiscard]] int64_t issue(Io* io, cflsh_cg_tag_t* tag) override;
  [[nodiscard]] int64_t result(cflsh_cg_tag_t* tag, int flags) override {
    return result(&tag->tag, flags, kForever);
  }
  // > 0: blocks; 0: not done; -errno: the command failed (-ETIMEDOUT: not done in time), or does
  // not exist. Blocking: until it is over, or the deadline. `like`, if given, has the parameters of
  // the command: if the tag is wrong, the command that was issued with these parameters is used,
  // and *tag becomes its tag.
  [[nodiscard]] int64_t result(int* tag, int flags, uint64_t deadline_ns, const Io* like = nullptr);
  [[nodiscard]] int list(cblk_io_t** issue, int issues, cblk_io_t** pending, int pendings,
                         cblk_io_t** wait, int waits, cblk_io_t** completion, int* completions,
                         uint64_t timeout_us, int flags);

  // For groups and lists.
  uint64_t deadline_of_a_new_one() const;  // of an I/O that begins now; kForever: none
  uint64_t deadline_of_a_new_one(uint64_t* left) const;
  uint64_t oldest_done(bool harvests);          // its sequence; kForever if none is done
  uint64_t oldest_active();                     // kForever: none can be fetched
  void wakeups(Wakeups* out);                   // wakes the caller when a command may be done
  void harvest();                               // takes the completions that the ring has
  [[nodiscard]] int check(const Io& io) const;  // 0 or -EINVAL, -EPROTONOSUPPORT

  // fork_handlers.cpp; pre of all three: the registry's lock is held.
  void before_fork() { lock_.lock(); }
  void after_fork_in_parent() {
    shared_by_fork_.store(is_virtual(), std::memory_order_relaxed);
    lock_.unlock();
  }
  void after_fork_in_child();

 private:
  explicit Chunk(Kind kind) : Handle(kind) {}
  // chunk.cpp
  int open_device(const Options& options);
  int open_one(const char* path, Claim claim, Device** out, ErrorText* why);
  static Claim claim_of(const Options& options);
  void find_limits(const Environment& environment);
  void destroy();
  int attach();
  int scrub(uint64_t from, uint64_t to);
  bool can_shrink();
  bool drain_io();
  // issue.cpp
  int64_t prepare(Io* io);
  void drop(Io* io);
  int64_t admit(Io* io, uint32_t* index);  // lock held
  void await_free(uint64_t deadline_ns);   // lock held
  void push_backlog();                     // lock held
  int start_completer();                   // lock held
  void complete_background();              // on the completer's thread
  // harvest.cpp; lock held
  bool reap();
  bool take_completions();
  void finish(uint32_t index, int64_t bytes);
  void report(uint32_t index, int64_t blocks);
  void give_free(uint32_t index);
  bool idle() const { return in_ring_ == 0 && commands_.backlog() == 0; }
  int64_t do_again(const Entry& entry);     // without the lock
  void copy_out(const Response& response);  // without the lock
  void count(const Io& io, int64_t blocks);
  // Commands that were issued and are not fetched yet.
  Gauge& asynchronous(Op op) {
    return op == Op::kRead ? counters_.act_areads : counters_.act_awrites;
  }
  // wait.cpp; lock held
  template <class Done>
  int wait_until(Waiter* waiter, uint64_t deadline_ns, Done done);
  bool may_lead(Waiter::Kind kind) const;
  void sleep(Waiter* waiter, int64_t left_ns);
  void unlock();  // also wakes the signalled threads, and designates a leader if one is needed
  // late.cpp; lock held
  uint64_t poll_clock_ns() const;
  bool expire(uint32_t index);
  void expire_late_from(uint32_t oldest, uint64_t now_ns);
  void expire_late(uint64_t now_ns);
  void expire_if_overtaken();
  uint64_t expire_late_background();
  void end_lost(Entry& entry);
  bool blocked_by_late(const Io& io) {
    return io.op != Op::kRead && late_->reach(static_cast<uint64_t>(io.lba), io.blocks);
  }
  void take_back_late();                                // without the lock
  int wait_for_lost(const Io& io, Transfer* transfer);  // without the lock
  // result.cpp; lock held
  int64_t fetch(uint32_t index, int* tag);
  int64_t next_result(int* tag, int flags, uint64_t deadline_ns);
  // sync.cpp
  void enter(Blocking* one);
  void leave(Blocking* one);
  int start(Blocking* one);
  int begin_by_lane(Blocking* one);
  int64_t move(const Blocking& one);
  int64_t finish_blocking(Blocking* one);
  // listio.cpp
  friend class ListRun;

  Device* device_ = nullptr;
  VirtualLun* virtual_ = nullptr;  // device_, if it is virtual
  // Attached by the first asynchronous command, so that an open alone costs no ring.
  Context* context_ = nullptr;
  int access_ = 0;  // O_RDONLY, O_WRONLY, O_RDWR
  int flags_ = 0;
  bool can_unmap_ = false;
  uint32_t buffer_align_ = 1;
  uint64_t lun_blocks_ = 0;
  uint64_t transfer_blocks_max_ = kTransferBlocksMax;
  std::atomic<uint64_t> size_blocks_{0};
  std::atomic<bool> being_closed_{false};
  std::atomic<bool> inherited_{false};  // virtual, in a child that has not cloned it
  // The chunk is virtual, and another process may use it. Never reset, because the end of that use
  // is not reported.
  std::atomic<bool> shared_by_fork_{false};
  bool active_at_fork_ = false;
  bool forked_ = false;  // in a child: nothing from before the fork belongs to it
  sys::Mutex resize_;
  uint64_t timeout_ns_ = 0;          // of an I/O; 0: no limit, or the device needs none
  uint64_t command_timeout_ns_ = 0;  // for a free command
  size_t mapping_bytes_ = 0;
  std::atomic<uint64_t>* sequence_ = nullptr;  // number of the next issue
  std::atomic<uint64_t> own_sequence_{0};
  Finished* finished_ = nullptr;  // of the group, if any
  BouncePool bounces_;
  Siblings* siblings_ = nullptr;
  LateWrites* late_ = &own_late_;  // or the siblings'
  LateWrites own_late_;
  Lanes lanes_;
  Cache cache_;
  Counters counters_;
  sys::Phases phases_;  // of blocking I/O of a virtual chunk
  sys::PhaseCount phase_count_;

  // The asynchronous side. Under lock_ unless stated otherwise.
  alignas(64) sys::Mutex lock_;
  CommandTable commands_;
  WaitQueue waiters_;
  Completer completer_;
  uint32_t depth_ = 0;    // of the ring
  uint32_t in_ring_ = 0;  // handed to the context, not yet finished
  uint32_t lost_ = 0;     // of in_ring_
  // Part of the backlog waits for a late write. The end of that write does not wake a thread that
  // waits in the ring.
  bool backlog_blocked_ = false;
  bool leader_ = false;      // a thread harvests or sleeps in the ring
  bool designated_ = false;  // a thread was woken to become the leader
  bool closing_ = false;
};

}  // namespace lunar::cblk
