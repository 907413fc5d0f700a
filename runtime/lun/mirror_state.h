// SPDX-License-Identifier: Apache-2.0
// What all processes that have one mirror open know of it together: which member holds what, which region is being copied.
//
// It lies in a file of /dev/shm that all of them map (in plain memory for mirrors of sim: members, which one process has). The
// first who writes makes it under a random *session* number and writes that number into the labels; whoever comes later must find
// the file of the session the labels name, or is refused: so no two processes ever work by different states (another /dev/shm, as
// in a container, is refused too). Who is first is told by OFD locks on every member:
//
//   2^62 + 2^40      gate    exclusive, while somebody opens or closes; shared, while somebody opens it for reading only
//            + 1     open    shared by everybody who has it open for writing
//            + 2     read    shared by everybody who follows those who write, reading only
//
// Who is last is told by locks that go with the mapping of the file (mirror_memory.h): the last who writes flushes the members and
// says on the labels that all is clean, the last of all removes the file. A forked child takes part by the memory it inherits, used
// or not; one that ends without closing leaves the labels dirty, if it was the last.
//
// Who opens it read-only takes part as well, but for what makes a writer: he reads `states`, so he follows those who write. Where
// nobody writes he makes the file himself, under the number of the former session; the next who writes finds it in use and goes on
// with it in place of a new one. (Who writes and finds the read byte locked, but no file in use, is refused.)
//
// Why no process ever reads what missed an acknowledged write. Let A's write fail on member m.
//   - Before A acknowledges, fail() has (1) written "m is stale" to the labels of all members that stay, durable, and (2) stored it
//     in `states`. A read by any process that begins after the acknowledgement loads `states` after that store, and does not pick
//     m. (One that began before overlaps the write and may see either.) After a crash of everything the labels say it: the
//     label with the most events is the word, and every member that is in sync carries it.
//   - m is read again only after set_in_sync(), that is after every region was copied with its bucket locked, all writes
//     since having gone to m too (below), with no failure of m in between (the generation is compared under the lock).
//   - A member that cannot be opened is taken for stale only if the labels say so; else the mirror is refused, as it may be the
//     one that has more (the URI may say `missing` where it is known to be lost).
//
// Why a copy never undoes a write. Regions hash to 64 buckets. A writer counts itself into the buckets of its range (in its slot),
// then looks whether one of them is locked (then it counts itself out and waits), then reads `states` to see who is to be
// written. The copier locks a bucket, then waits until all slots count zero there, copies, unlocks. All of that is sequentially
// consistent: either the writer sees the lock, or the copier sees the count. So a copy runs beside no write of its region; and a
// write that had read `states` before m was to be written again is over before its region is copied, so the copy has it.
//
// A write counts until its response was made, which takes its owner's reap: so the copier waits for a bucket 5 to 160 ms, then lets
// everybody by for as long, and tries again. Whoever never reaps holds up the copy, and nothing else.
//
// A writer that dies (kill -9) leaves its slot counting; the copier finds its owner gone (pid and start time, within one pid
// namespace), waits kDeadGraceNs for what the kernel still has under way, and clears it. What that writer had not acknowledged may
// differ between the members; the labels then stay `dirty` at the last close, and the next open copies everything. A copier that
// dies leaves its lock, a robust mutex, to the next, which unlocks the bucket.
//
// Known limits. A reader who can use no file in /dev/shm (a warning says so) knows what the labels said when he opened it; so does one
// whose file those who write would not trust (mirror_memory.h), where nobody writes at that time. One who is in the memory of a set that is then
// formatted by force does not notice; nor does one with another /dev/shm where a reader with the writer's is there, too. While a reader of another user has it open, only that user and root
// may open it for writing.
//
// Threading: begin_write, end_write, states and the counters are lock-free and fit for the data path. The rest blocks.
#pragma once
#include <pthread.h>

#include <atomic>

#include "lun/member_label.h"
#include "lun/mirror_memory.h"
#include "superpipe/device_files.h"

namespace lunar {

constexpr unsigned kMirrorMembersMax = 4;
constexpr uint64_t kMirrorRegionBytes = 256 * kKiB;
constexpr unsigned kMirrorBuckets = 64;
constexpr unsigned kMirrorSlots = 512;

enum class CopyState : uint8_t {
  kInSync,   // read and written
  kStale,    // written; a copy is under way, or is to be
  kUnsure,   // as kStale, but holds all that was acknowledged: takes over when no other is left
  kFailed,   // neither read nor written; stale on the labels
};

// Shared memory layout, version 2. Zeros are its beginning.
struct MirrorSlot {
  std::atomic<uint64_t> owner;      // pid << 32 | start time (low bits); 0: free
  std::atomic<uint32_t> name_space; // of pids; 0: not written yet
  std::atomic<uint32_t> blocked;    // counts: begin_write had to wait for the copier
  std::atomic<uint16_t> writes[kMirrorBuckets];
};
struct MirrorCounters {
  std::atomic<uint64_t> ios, errors, failovers, reserved;
};
struct MirrorShared {
  char magic[8];                    // "LunMirr2"
  uint32_t bytes;                   // sizeof(MirrorShared)
  std::atomic<uint32_t> ready;
  uint8_t uuid[16];
  uint64_t session;
  uint32_t present;                 // bit a member that was there at the first open
  std::atomic<uint32_t> states;     // a byte a member: CopyState
  std::atomic<uint32_t> change;     // counts; a futex of the service threads
  std::atomic<int32_t> locked;      // the bucket that is being copied; -1: none
  std::atomic<uint64_t> events;
  std::atomic<uint64_t> generation; // counts failures: 16 bits a member
  std::atomic<uint64_t> copied;     // bytes, of the resync under way
  std::atomic<uint64_t> resyncs, repairs;
  std::atomic<uint32_t> unclean;    // a writer died in a write
  std::atomic<uint32_t> ahead;      // bit a member that labels may call in sync already, while `states` does not
  MirrorCounters member[kMirrorMembersMax];
  pthread_mutex_t states_lock;      // robust: changes of states and labels
  pthread_mutex_t copy_lock;        // robust: the one who copies
  alignas(64) MirrorSlot slot[kMirrorSlots];
};
static_assert(sizeof(MirrorSlot) == 144 && offsetof(MirrorSlot, writes) == 16);
static_assert(offsetof(MirrorShared, uuid) == 16 && offsetof(MirrorShared, states) == 44);
static_assert(offsetof(MirrorShared, events) == 56 && offsetof(MirrorShared, member) == 104);

class MirrorState {
 public:
  // Takes part in the set (its members stay the caller's): reads the labels (formatting as told), decides what each holds. Members
  // that the others do not have are closed and nulled. `missing`: bit a member that the URI says is lost. 0 or -errno.
  [[nodiscard]] int open(const char* uri, MemberSet* set, uint32_t missing, Format format, bool read_only, ErrorText* why);
  // The last one who writes clears the dirty flag. By a forked child too.
  void close();
  // `fd`, another open file description of a member's file, keeps the mirror open too. 0 or -errno.
  [[nodiscard]] static int hold(int fd);

  uint64_t data_bytes() const { return label_[any_].data_bytes; }
  MirrorShared& shared() { return *shared_; }
  // Of all processes; of this one alone, where another user's memory may only be read.
  MirrorCounters& counters(unsigned member) { return seen_only_ ? own_counters_[member] : shared_->member[member]; }
  CopyState state(unsigned member) const {
    return static_cast<CopyState>(shared_->states.load(std::memory_order_seq_cst) >> member * 8 & 0xff);
  }
  uint32_t states() const { return shared_->states.load(std::memory_order_seq_cst); }
  // Bit a member: in that state.
  uint32_t mask(CopyState state) const;
  uint32_t mask_of(uint32_t states, CopyState state) const;

  // ---- writers ----
  // A slot for one user (a context). -1: all are taken.
  int claim_slot();
  void free_slot(int slot);
  // Counts a write of [offset, offset + length) in. False: a bucket of it is locked; try again.
  bool begin_write(int slot, uint64_t offset, uint64_t length);
  void end_write(int slot, uint64_t offset, uint64_t length);
  // A write has been waiting long: frees a bucket whose copier died. Never blocks.
  void rescue();

  // ---- changes of states; blocking ----
  // Members of `bad` failed a write that those of `good` took: they are out, on the labels and in memory, before this returns 0.
  // -EIO: nobody in sync (or unsure) would be left who has it, nothing was changed, or it cannot be recorded.
  [[nodiscard]] int fail(uint32_t bad, uint32_t good);
  // A failed member answers again: written from now on, to be copied to.
  void revive(unsigned member);
  uint32_t generation(unsigned member) const {
    return static_cast<uint32_t>(shared_->generation.load(std::memory_order_seq_cst) >> member * 16 & 0xffff);
  }
  // All is copied: in sync, unless it failed since `generation` was read. 0, -ESTALE, or -EIO when it cannot be recorded.
  [[nodiscard]] int set_in_sync(unsigned member, uint32_t generation);

  // ---- the copier ----
  bool copy_trylock();   // one process at a time. Frees what a dead one left locked
  void copy_unlock();
  // Locks the bucket of a region and waits for the writes there. False: *stop was set meanwhile (nothing is locked).
  bool lock_region(uint64_t offset, const std::atomic<bool>* stop);
  void unlock_region();

  // As read, brought up to date by this process' changes.
  const MemberLabel& label(unsigned member) const { return label_[member]; }

 private:
  int decide(const char* uri, const MemberSet& set, uint32_t missing, uint32_t* states, bool* dirty, ErrorText* why);
  int open_shared(const char* uri, MemberSet* set, uint32_t missing, Format format, ErrorText* why);
  int open_local(const char* uri, MemberSet* set, uint32_t missing, Format format, ErrorText* why);
  int take_labels(const char* uri, MemberSet* set, Format format, ErrorText* why);
  int begin_session(const char* uri, const MemberSet& set, uint32_t missing, bool anew, ErrorText* why);
  int join_session(const char* uri, MemberSet* set, ErrorText* why);
  int make_memory(const char* uri, const MemberLabel& label, bool anew, SessionFile* file, uint64_t* session, bool* joined, ErrorText* why);
  int make_plain(const char* uri, int reason, ErrorText* why);
  int lock_gate(bool shared, bool again);
  void unlock_gate();
  int alone();
  bool followed();
  bool leave(bool settle);
  void settle_labels();
  void close_local();
  int write_labels(uint32_t states, uint32_t required, uint32_t* failed, bool dirty);
  void store_states(uint32_t states);
  bool drained(unsigned bucket, uint64_t end, uint64_t* looked, const std::atomic<bool>* stop);
  void lock_states();

  Device* device_[kMirrorMembersMax] = {};
  MemberLabel label_[kMirrorMembersMax] = {};
  unsigned count_ = 0, any_ = 0;
  MirrorShared* shared_ = nullptr;
  SessionRights rights_;
  bool local_ = false;        // no member has a descriptor: plain memory, found by the set's uuid
  bool read_only_ = false;
  bool plain_ = false;        // read-only, and no memory to share
  bool seen_only_ = false;    // read-only, and the memory is another user's
  unsigned gate_files_[kMirrorMembersMax] = {};
  int gate_fd_[kMirrorMembersMax][kLockFilesMax] = {};     // while the gate is held
  bool gate_own_[kMirrorMembersMax][kLockFilesMax] = {};   // that is a description of its own
  MirrorCounters own_counters_[kMirrorMembersMax] = {};
};

}  // namespace lunar
