// SPDX-License-Identifier: Apache-2.0
// The log: where records lie. Space is cut into segments; records are appended to the open one, the *tail*.
//
//   segment   │ record │ record │ ...           │ unused │     free ─► open ─► sealed ─► (cleaned) retired ─► free
//   run       │ key of a large pair │ value ...            │ free ─► large ─────────────► retired ─► free
//
// Each segment counts its live records and their units: publishing a record adds to them, replacing or deleting one
// subtracts. That no record lives is what the first count says, so the second may be a guess after damage. Cleaning
// takes the sealed segment with the fewest, moves its live records to the tail (the store does that, as only the index
// knows which live) and retires it: it is free again once no reader can look at it (epoch.h). kReserve segments are for
// cleaning alone, so that it can always begin.
//
// In memory all segments lie in DRAM. On a device only some do, each in a *frame*: the tail, and those behind it, the
// youngest first. A sealed segment is written in one piece when another tail needs its frame; from then on it is read
// from the device, record by record, with checksums (log_device.cpp). What is read there, and what was read while it
// lay in its frame, goes to the read cache (record_cache.h), which takes the DRAM that frames and index leave.
//
// Where sets are durable when they return, the tail is written in batches instead, each once (commit.cpp).
//
// Large pairs lie in runs of neighbouring segments; on a device in parts of 64 KiB, each with a checksum, and never in
// frames. Where no run is free, cleaning makes one: it reserves the window that is cheapest to empty, and moves what
// lives in it. Threading: any. allocate holds a spin lock for some instructions; calls that pick segments take a mutex;
// those on the device block. May not: call the store.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "kv/budget.h"
#include "kv/epoch.h"
#include "kv/record.h"
#include "kv/record_cache.h"
#include "kv/store_format.h"
#include "superpipe/device.h"
#include "sys/thread.h"

namespace lunar::kv {

class MutexLock {  // a mutex, without holding signals: no handler of ours runs here
 public:
  explicit MutexLock(sys::Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  sys::Mutex& mutex_;
};

// kDamaged: a record of it cannot be read, so it cannot be cleaned. Its live records are read as before.
// kHeld: free but for the saved state, which refers to it; kState: part of a saved state (saved_state.cpp).
// kNext: a tail to come (store_format.h: BatchHeader::next).
enum class SegmentState : uint8_t {
  kFree,
  kReserved,
  kOpen,
  kSealed,
  kDamaged,
  kLarge,
  kRetired,
  kHeld,
  kState,
  kNext
};
constexpr unsigned kSegmentStates = 10;

struct Segment {
  std::atomic<uint32_t> live{0};     // units; too many where a damaged record was replaced whose length was not known
  std::atomic<uint32_t> records{0};  // that live: exact
  std::atomic<uint32_t> used{0};     // bytes, from its start, that records take
  // Records in it that are being written: in batches of either side; without batches the first counts all.
  std::atomic<uint32_t> filling[2] = {0, 0};
  std::atomic<uint32_t> batch{0};  // where its newest batch begins | the side of that
  uint32_t durable = 0;            // bytes, from its start. The committing thread's
  uint64_t next_uncommitted = 0;   // number + 1. Under the tail's lock
  std::atomic<SegmentState> state{SegmentState::kFree};
  std::atomic<bool> written{false};  // to the device
  std::atomic<bool> pending{false};  // kLarge: no record leads to it yet
  // kLarge: Index::short_of the entry that leads to its record, which may be damaged later; 0: not known
  std::atomic<uint32_t> entry{0};
  bool saved = false;                  // the saved state, or the log behind it, refers to it. Under the mutex
  bool retired_at_cut = false;         // it was kRetired then, so the state that is being saved does not refer to it
  media::SegmentEntry at_cut = {};     // what that state says of it. The saving thread's
  std::atomic<char*> memory{nullptr};  // where it lies in DRAM; nullptr: only on the device
  std::atomic<uint64_t> life{0};       // which use of it this is: no two of a store have the same number
  uint64_t retired = 0;                // epoch. Under the mutex, as what follows
  uint64_t next_retired = 0;           // number + 1
};

// Where a log lies. segment_bits: 0: chosen by its size and the budget.
struct LogPlace {
  uint64_t bytes = 0;
  Device* device = nullptr;  // nullptr: DRAM. Not owned
  uint64_t offset = 0;       // of segment 0
  unsigned segment_bits = 0;
  bool read_only = false;
};

class Log {
 public:
  static constexpr uint64_t kReserve = 3, kAheadMost = 8, kSegmentsMin = 16, kFramesMin = 8, kFrameReserve = 2;
  static constexpr uint64_t kFramesShare = 16, kStatesShare = 24, kMarkBytes = 64;
  static constexpr uint64_t kDelayMostNs = 1'000'000, kSeenMost = 16'384;
  static constexpr uint64_t kSegmentBytesMin = 64 * kKiB, kSegmentBytesMax = kMiB, kPartBytes = 64 * kKiB;
  static constexpr uint64_t kPartData =
      kPartBytes - sizeof(uint64_t);  // a part: checksum, then so much of a large pair

  // The budget, in whole MiB, that a log on a device wants: frames and tables fit, and a small index.
  static uint64_t dram_least(const LogPlace& place);
  // All DRAM is charged to the budget at once, and mapped lazily. On a device only what frames take is: a sixteenth, or
  // what holds all of the log, when a quarter is left then. 0, -EINVAL (larger than an address reaches), -ENOMEM.
  [[nodiscard]] int open(const LogPlace& place, Budget* budget, Epochs* epochs);
  void close();

  // Room for a record, in DRAM. It counts as live from now on, and its segment is neither cleaned nor written before
  // published(). -EAGAIN: no free segment but the reserve (or, cleaning: none at all), or no frame.
  [[nodiscard]] int allocate(uint64_t units, bool cleaning, Address* out);
  void published(Address address) {
    Segment& segment = of(address);
    segment.filling[side_of(segment, address)].fetch_sub(1, std::memory_order_release);
  }
  // Whether the record may be changed in place, until published(). Pre: the lock of its shard.
  bool begin_change(Address address);
  void drop_live(Address address, uint64_t units) {
    of(address).live.fetch_sub(static_cast<uint32_t>(units), std::memory_order_relaxed);
    of(address).records.fetch_sub(1, std::memory_order_relaxed);
  }
  // nullptr: not in DRAM. The record stays there while the caller is in the epoch in which it got the address from the
  // index, or between allocate or begin_change and published. Look is for everything else.
  Record* at(Address address) const {
    char* memory = segments_[segment_of(address)].memory.load(std::memory_order_acquire);
    return memory ? reinterpret_cast<Record*>(memory + (address.value * kUnitBytes & (segment_bytes() - 1))) : nullptr;
  }
  // The same, or the copy that the read cache has. Pre: in the epoch in which the index gave the address.
  Record* in_dram(Address address) const {
    Record* record = at(address);
    return record ? record : cache_.find(address, life_of(address));
  }
  void note_read(const Record* record);  // pre: in_dram() gave it, and the same epoch
  RecordCache& cache() { return cache_; }
  // Takes so many bytes of the budget, of the read cache where nothing else is left. False: nothing is taken.
  bool take_memory(uint64_t bytes) {
    while (!budget_->take(bytes))
      if (!cache_.shrink()) return false;
    return true;
  }
  // Whether the index leads to it; asked of what has been read, before its frame is taken. Called in no epoch.
  using Lives = bool (*)(void* owner, const Record* record, Address address);
  void ask_what_lives(Lives lives, void* owner) { lives_in_index_ = lives, index_owner_ = owner; }
  uint64_t segment_of(Address address) const { return address.value * kUnitBytes >> segment_bits_; }
  uint64_t life_of(Address address) const { return life(segment_of(address)); }
  uint64_t life(uint64_t number) const { return segments_[number].life.load(std::memory_order_acquire); }
  // A record larger than that lies in a run, unless it is a descriptor.
  uint64_t inline_units_max() const { return segment_bytes() / 16 / kUnitBytes; }
  // Whether they can be what this log holds: no length or place leads out of it. A checksum proves that a store wrote a
  // record, not that it makes sense. room: bytes from the record to the end of what is there.
  bool possible(const Record* record, uint64_t room) const;
  // Possible, and what was written at `address` in that life of its segment. Pre: `room` bytes can be read.
  bool sound(const Record* record, Address address, uint64_t life, uint64_t room) const;
  bool possible(const LargePlace& place) const;

  // Runs. take: first segment of `count` free neighbours, where the fewest are that are enough, or -EAGAIN. retire:
  // reusable once no reader looks at them.
  uint64_t run_segments(uint64_t bytes) const;
  [[nodiscard]] int take_run(uint64_t count, uint64_t* first);
  // entry: Index::short_of that which leads to its record from now on. Pre: the lock of its shard.
  void run_published(const LargePlace& place, uint32_t entry);
  // The run whose record that entry leads to: where it lies. count 0: not known, or not one alone.
  LargePlace run_of(uint32_t entry) const;
  uint64_t run_bytes_least(uint64_t count) const {  // that take so many segments. Pre: on a device
    return ((count - 1) << segment_bits_) / kPartBytes * kPartData + 1;
  }
  bool pending(uint64_t number) const { return segments_[number].pending.load(std::memory_order_relaxed); }
  void retire(uint64_t first, uint64_t count);
  bool are_of_runs(uint64_t first, uint64_t count) const;
  bool is_run(const LargePlace& place) const;  // it lies there, and is used by nothing else. Pre: the lock of its shard
  // Where a run lies in DRAM. Pre: not on a device, and the caller in an epoch.
  char* run_memory(uint64_t first) const { return segments_[first].memory.load(std::memory_order_acquire); }
  [[nodiscard]] int write_run(const LargePlace& place, Bytes key, Bytes value);
  // Pre: on a device. Never from a frame, whatever lies at `first` by now. -EBADMSG: damaged, or no longer this pair's.
  [[nodiscard]] int read_run(const LargePlace& place, uint64_t offset, void* to, uint64_t bytes);

  // The segment to clean next: sealed, all of it published. -ENOSPC: none would free an eighth; -EAGAIN: one may, soon.
  [[nodiscard]] int victim(uint64_t* number);
  // The same of one with a little dead space (1/64), when that of all segments adds up to more than two: -ENOSPC.
  [[nodiscard]] int poor_victim(uint64_t* number);
  // Its records: where it lies in DRAM, or read from the device into a memory of the cleaner's. -errno.
  [[nodiscard]] int segment_contents(uint64_t number, const char** memory);
  void set_damaged(uint64_t number);
  // what was damaged may be tried again: a device may have failed for a moment. Whether there is any
  bool retry_damaged();
  // Reserves the window of `count` neighbours that is cheapest to empty: its free segments, those that become free in
  // it from now on, and elsewhere what its live records will take, which writers leave free until then. Large pairs,
  // and damaged segments in which something lives, alone cannot be moved. -ENOSPC: there is no such window; -EAGAIN:
  // what lives in it has no room elsewhere yet. One at a time, until take_reserved() makes a run of it (once all of it
  // is reserved: see next_in_window()) or release_window() gives it up.
  [[nodiscard]] int reserve_window(uint64_t count, uint64_t* first);
  // A segment of the window that is still in the way, and what it is; kReserved: there is none.
  SegmentState next_in_window(uint64_t* number) const;
  // The log goes on in another segment than the tail, or the next. -EAGAIN: none is free, or no frame.
  [[nodiscard]] int move_tail_on();
  void take_reserved();
  void release_window();
  SegmentState state(uint64_t number) const { return segments_[number].state.load(std::memory_order_acquire); }
  uint32_t used(uint64_t number) const { return segments_[number].used.load(std::memory_order_relaxed); }
  uint32_t live(uint64_t number) const {
    const Segment& segment = segments_[number];
    const uint32_t units = segment.live.load(std::memory_order_relaxed);
    return segment.records.load(std::memory_order_relaxed) == 0 ? 0 : units == 0 ? 1 : units;  // 0: no record lives
  }
  // As many entries of the index lead to it. Pre: just loaded.
  void restore_records(uint64_t number, uint32_t records) {
    segments_[number].records.store(records, std::memory_order_relaxed);
  }
  uint32_t records(uint64_t number) const { return segments_[number].records.load(std::memory_order_relaxed); }
  bool has_frame(uint64_t number) const { return segments_[number].memory.load(std::memory_order_acquire) != nullptr; }
  bool filling(uint64_t number) const {
    const Segment& segment = segments_[number];
    return segment.filling[0].load(std::memory_order_seq_cst) != 0 ||
           segment.filling[1].load(std::memory_order_seq_cst) != 0;
  }

  // Durable sets (commit.cpp). begin_commits: from now on the tail is written in batches, what was written is held
  // until a younger state is saved, and a state is wanted when the log behind the last one has grown to `bytes_most`
  // (0: as its size deserves). Pre: keep(); nothing was allocated. -ENOSPC, -errno.
  [[nodiscard]] int begin_commits(bool waits_for_company, uint64_t bytes_most);
  bool commits() const { return log_id_ != 0; }
  // What was published before is durable at return. Threads that come meanwhile share the next one. -EIO: the device
  // refused once, and nothing is durable any more until the store is opened again. Pre: no lock.
  [[nodiscard]] int commit();
  // The same of a sealed segment, which then is `written`. 0 at once where there are no batches.
  [[nodiscard]] int commit_segment(uint64_t number);
  [[nodiscard]] int flush_device();  // one that fails is the last: see commit()
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether a state should be saved so that an open has not to replay more.
  bool log_is_long() const;
  // Whether one should be saved before writers have to wait for it: the log has three quarters of its length, or what
  // is free for writers comes to its end and a state would free a sixteenth of all. As of the last segment or run
  // taken.
  bool state_wanted() const { return state_wanted_.load(std::memory_order_relaxed); }
  void save_begins() { state_wanted_.store(false, std::memory_order_relaxed); }
  uint64_t commits_done() const { return commits_.load(std::memory_order_relaxed); }
  // Where the log goes on behind all that was published. Pre: nothing writes.
  void mark_start(media::Root* root);
  // For replay (replay.cpp). Its frame, filled from the device; -errno. end_replayed: it belongs to the log, of that
  // life and so many bytes, or (0) it does not.
  // Where the batch behind one that ends at `end` begins.
  static uint64_t batch_end(uint64_t end);
  // Of the segment `number`, whose bytes are in `memory`: the header of a batch of that log, or nullptr; whether all
  // records in [from, to) are what was written.
  const media::BatchHeader* batch_at(uint64_t log, uint64_t number, const char* memory, uint64_t at) const;
  bool records_are_sound(uint64_t number, const char* memory, uint64_t from, uint64_t to, uint64_t life) const;
  [[nodiscard]] int replay_segment(uint64_t number, char** memory);
  void end_replayed(uint64_t number, uint64_t life, uint32_t used);
  void add_live(Address address, uint64_t units) {
    of(address).live.fetch_add(static_cast<uint32_t>(units), std::memory_order_relaxed);
    of(address).records.fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] int restore_run(const LargePlace& place);                            // -EBADMSG: not free
  uint64_t first_at(uint64_t number) const { return number == 0 ? kUnitBytes : 0; }  // address 0 is none
  // Of what is in the state: of the tail, what is durable.
  uint32_t used_durable(uint64_t number) const {
    return state(number) == SegmentState::kOpen ? segments_[number].batch.load(std::memory_order_relaxed) & ~7u
                                                : used(number);
  }

  // The saved state (saved_state.cpp). One thread saves at a time, with the mutex of cleaning, so nothing is reclaimed
  // meanwhile; writers go on, but for save_cut(): then all shards are locked.
  // keep: so many bytes the state would take now; from then on space for it is left free, and what a saved state refers
  // to is held.
  using StateBytes = uint64_t (*)(const void* owner);
  void keep(StateBytes state_bytes, const void* owner);
  // Of the state to come: what all segments hold, and (with batches) where the log goes on. What it refers to does not
  // change any more; it is durable after commit_before(*root), before which no root may say that the state counts.
  void save_cut(media::Root* root);
  [[nodiscard]] int commit_before(const media::Root& root);  // 0 at once where there are no batches. Pre: no lock
  const media::SegmentEntry& at_cut(uint64_t number) const { return segments_[number].at_cut; }
  // Writes what sealed segments have that is not on the device; no flush. -errno.
  [[nodiscard]] int save_written();
  [[nodiscard]] int write_oldest();  // of these, one. 1; 0: there is none. Pre, of both: the cleaning mutex
  // Frees frames for writers, until a quarter of all is unowned. Pre: the cleaning mutex.
  void spare_frames();
  [[nodiscard]] int take_link(uint64_t life, uint64_t* number);  // a free segment for the state of that life; -ENOSPC
  // What becomes of the links taken, and of what the state before refers to. kUnknown: either state may be durable.
  enum class Saved : uint8_t { kYes, kNo, kUnknown };
  void save_end(Saved saved);
  void settle(uint64_t life);  // it was unknown, and is the state of that life: the links of others are free again
  // One segment of a state that is loaded: kSealed, kLarge or kState. Pre: just opened.
  void restore(uint64_t number, SegmentState state, uint64_t life, uint32_t live, uint32_t used, uint32_t entry = 0);
  void forget_restored();  // all of it: as it was before
  void begin_lives(uint64_t from) { lives_.store(from, std::memory_order_relaxed); }
  uint64_t new_life() { return lives_.fetch_add(1, std::memory_order_relaxed) + 1; }
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }
  // Segments that are not for writers: free or held; of them, those that must be free; of these, not for cleaning
  // either.
  uint64_t reserve() const { return cleaning_reserve_ + free_reserve() - kReserve; }
  uint64_t free_reserve() const { return kReserve + state_reserve() + window_needs_.load(std::memory_order_relaxed); }
  uint64_t state_reserve() const { return state_reserve_.load(std::memory_order_relaxed); }
  // Whether writers may take `count` segments.
  bool room_for_writers(uint64_t count) const {
    const uint64_t free = free_.load(std::memory_order_relaxed);
    return free >= free_reserve() + count && free + held() >= reserve() + count;
  }
  // Whether a state that is saved now gives writers segments, and enough to be worth it: each save seals the tail, and
  // what that has left is lost until the segment is cleaned.
  bool held_suffice() const {
    return held() != 0 && free_.load(std::memory_order_relaxed) + held() > reserve() + count_ / 32;
  }
  // Whether a writer should clean, or save, before anyone has to wait for it: set with each segment that is opened.
  bool cleaning_wanted() const { return cleaning_wanted_.load(std::memory_order_relaxed); }
  enum class Ahead : uint8_t { kNothing, kClean, kSave };
  Ahead ahead() const;
  uint64_t delay_ns() const;  // of a writer, while another cleans ahead
  void end_cleaning_ahead() { cleaning_wanted_.store(false, std::memory_order_relaxed); }
  char* cleaners_frame() const { return frame_memory(frame_count_); }  // pre: on a device, the cleaning mutex
  // Of the log, from its beginning on.
  [[nodiscard]] int transfer(Op op, uint64_t offset, void* memory, uint64_t bytes);

  // Reads of single records that a caller carries out by a context of the device, in place of Look::cold. A block is
  // where one goes: at most kColdBytes; nullptr: all are taken, or memory is short. cold_bytes: how much to read of a
  // record, as far as its length can be guessed. cold_record: what to think of the bytes that came: -EBADMSG as
  // Look::cold; -EAGAIN: the record goes on behind them.
  static constexpr uint64_t kColdBytes = 16 * kKiB;
  static constexpr unsigned kBlocksMax = 256;
  char* take_block();
  void give_block(char* block);
  char* blocks() const { return blocks_memory_; }
  uint64_t blocks_bytes() const { return block_count_ * kColdBytes; }
  uint64_t cold_bytes(Address address) const;
  bool fit_blocks() const { return usual_bytes_.load(std::memory_order_relaxed) < kColdBytes * 3 / 4; }  // as a rule
  void read_command(uint64_t offset, iovec* piece, Command* out);                                        // of the log
  void cold_command(Address address, iovec* piece, Command* out);                                        // pre: *piece
  [[nodiscard]] int cold_record(Address address, uint64_t life, char* block, uint64_t bytes, Record** out);

  // Frees retired segments that no reader looks at any more. Returns how many are free.
  uint64_t reclaim();
  bool has_room();  // for a writer's next segment
  bool any_retired() const { return retired_.load(std::memory_order_relaxed) != 0; }
  // Seals the open segment, so that it can be cleaned.
  void seal_tail();
  // Whether writers may have a frame: now, soon (readers are still in it), or when make_frame() has made one. That
  // takes the frame of the oldest segment that has one, and writes this before, when it was not. One thread at a time.
  // -EAGAIN: in a moment; -errno: the device did not take it, and it stays where it is.
  enum class Frames : uint8_t { kReady, kSoon, kWanted };
  Frames frames();
  [[nodiscard]] int make_frame();
  bool on_device() const { return device_ != nullptr; }

  uint64_t segment_bytes() const { return uint64_t{1} << segment_bits_; }
  uint64_t segments() const { return count_; }
  uint64_t bytes() const { return count_ << segment_bits_; }
  uint64_t bytes_in_use() const { return (count_ - free_.load(std::memory_order_relaxed)) << segment_bits_; }
  uint64_t ios() const { return ios_.load(std::memory_order_relaxed); }

 private:
  friend class Look;
  struct Frame {
    uint64_t owner = 0;    // segment + 1; 0: none
    uint64_t retired = 0;  // epoch when it was taken from the last one
  };
  Segment& of(Address address) { return segments_[segment_of(address)]; }
  // Of which side the batch is that the record lies in: the newest of its segment, or the one before, which is not
  // durable while a thread writes in it.
  unsigned side_of(const Segment& segment, Address address) const {
    const uint32_t batch = segment.batch.load(std::memory_order_relaxed);
    const uint64_t at = address.value * kUnitBytes & (segment_bytes() - 1);
    return at >= (batch & ~7u) ? batch & 1 : ~batch & 1;
  }
  void seal_locked();
  // commit.cpp
  struct Cut {
    uint64_t first = 0, last = 0;  // segments + 1 that have what is not durable, a chain. 0: none
    uint32_t last_end = 0;         // of what is to be written of the last
    unsigned sides = 3;            //   and which sides must have been filled there, a bit each
    uint64_t number = 0;           // of the last batch in it
  };
  uint64_t log_segments_most() const;
  void note_next_state();
  void note_whether_state_is_wanted();
  bool take_announced(bool cleaning, uint64_t fresh, uint64_t* number);
  void open_log_segment(uint64_t number);
  void open_batch(uint32_t at, unsigned side);
  bool any_in_batch() const;  // pre, as of the next: the tail's lock
  bool finish_batch();
  bool close_batch(unsigned next_side);
  Cut cut();
  int commit_cut(const Cut& cut);
  int commit_once();
  void wait_for_company();
  void prepare(uint64_t number, uint64_t from, uint64_t to);
  template <class Done>
  int commit_until(Done done);
  int roll(bool cleaning);
  uint64_t segments_ahead() const;
  bool take_one(bool cleaning, uint64_t* number);
  uint64_t cost_in_window(uint64_t number) const;
  bool cheapest_window(uint64_t count, uint64_t* first) const;
  bool find_row(uint64_t count, uint64_t* first);
  // on a device (log_device.cpp)
  // What a budget gives a log on a device: the size of buffers, blocks, and segments that there is DRAM for.
  struct FramePlan {
    uint64_t buffer_bytes, blocks, reading, own, frames;
  };
  static FramePlan plan_frames(uint64_t limit, unsigned segment_bits, uint64_t count);
  static unsigned segment_bits_for(const LogPlace& place, uint64_t limit);
  int open_frames(uint64_t limit, bool read_only);
  static char* map_records(uint64_t bytes);
  void keep_what_was_read(uint64_t frame);
  std::atomic<uint64_t>& read_mark(uint64_t byte) const { return marks_[byte / kMarkBytes / 64]; }
  char* frame_memory(uint64_t frame) const { return frames_memory_ + (frame << segment_bits_); }
  bool take_frame(bool cleaning, uint64_t owner);
  void free_frame_of(uint64_t number);
  int oldest_frame(uint64_t* frame);
  int write_out(uint64_t number);
  void give_back(uint64_t number);
  bool possible_size(const Record* record, uint64_t room) const;
  int read_record(Address address, uint64_t life, char* buffer);
  uint64_t guess_bytes(uint64_t at) const;
  void note_record(uint64_t bytes);
  char* take_buffer();
  void give_buffer(char* buffer);

  char* memory_ = nullptr;
  Segment* segments_ = nullptr;
  unsigned segment_bits_ = 0;
  uint64_t count_ = 0;
  Budget* budget_ = nullptr;
  Epochs* epochs_ = nullptr;

  Device* device_ = nullptr;
  uint64_t device_offset_ = 0;
  StateBytes state_bytes_ = nullptr;
  const void* state_owner_ = nullptr;
  uint64_t cleaning_reserve_ = kReserve;  // kStatesShare where states are saved: what one costs is shared by so many
  std::atomic<uint64_t> held_{0}, state_reserve_{0};
  std::atomic<uint64_t> window_needs_{0};  // segments that what lives in the window moves to
  std::atomic<bool> state_wanted_{false}, cleaning_wanted_{false};
  char* frames_memory_ = nullptr;  // frames, one more for the cleaner, buffers
  Frame* frames_ = nullptr;        // under the mutex
  // A bit for each kMarkBytes of the frames: a record that begins there was read.
  std::atomic<uint64_t>* marks_ = nullptr;
  RecordCache cache_;
  Lives lives_in_index_ = nullptr;
  void* index_owner_ = nullptr;
  uint64_t frame_count_ = 0, frames_mapped_ = 0, buffer_bytes_ = 0;
  std::atomic<uint32_t> buffers_{0};  // a bit each: free
  char* blocks_memory_ = nullptr;
  uint64_t block_count_ = 0;
  std::atomic<uint64_t> blocks_[kBlocksMax / 64] = {};  // a bit each: free
  std::atomic<uint32_t> usual_bytes_{4096};             // of a record that was read from the device, as a rule
  std::atomic<uint64_t> ios_{0}, lives_{0};

  alignas(64) sys::SpinLock tail_lock_;
  // open segment and bytes used in it; tail_used_ == segment_bytes(): none is open
  uint64_t tail_ = 0, tail_used_ = 0;
  // opened out of the reserve: for cleaning alone, until there is more free again
  bool tail_reserved_ = false;
  alignas(64) sys::Mutex mutex_;  // state changes
  std::atomic<uint64_t> free_{0}, retired_{0};
  uint64_t links_ = 0;                                       // segments that are kState
  uint64_t next_free_ = 0, next_victim_ = 0, next_run_ = 0;  // where to look first
  uint64_t first_retired_ = 0, last_retired_ = 0;            // number + 1, oldest first
  uint64_t window_ = 0, window_count_ = 0;                   // held back; 0: none

  // commit.cpp
  uint64_t log_id_ = 0;                                    // 0: no batches
  uint32_t next_[2] = {0, 0};                              // segments + 1, kNext. Under the mutex and the tail's lock
  uint32_t fresh_ = 0;                                     //   and the one that comes after them. Under the mutex
  uint64_t first_uncommitted_ = 0, last_uncommitted_ = 0;  // segments + 1. Under the tail's lock
  uint64_t closed_ = 0;                                    // batches. Under the tail's lock
  uint64_t log_most_ = 0;                                  // bytes. 0: as its size deserves
  std::atomic<uint64_t> opened_{0};                        // segments of the log since the last saved state
  uint64_t opened_at_cut_ = 0;
  bool waits_for_company_ = false;
  // The committing thread's: how many were there when the last commit ended, served or not; how many were ever served;
  // ns.
  uint64_t company_ = 0, served_ = 0, commit_ns_ = 0;
  alignas(64) std::atomic<uint64_t> durable_{0};   // batches
  std::atomic<uint64_t> arrived_{0}, commits_{0};  // calls of commit(); commits; ever
  std::atomic<uint32_t> ended_{0};                 // futex: changes with the end of each commit
  std::atomic<bool> committing_{false}, failed_{false}, run_written_{false};
};

// A record to look at: in DRAM, kept there by an epoch, or in a buffer that it was read into. One a thread at a time;
// nothing else is read from the device while it lives. The caller is in no epoch. Each may be tried again after it
// failed.
class Look {
 public:
  explicit Look(Log& log) : log_(log) {}
  ~Look() { log_.give_buffer(buffer_); }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;
  // Wherever it lies, for the holder of its shard's lock. -EBADMSG: damaged; -errno of the device.
  [[nodiscard]] int locked(Address address);
  // On the device, where it lay in that life of its segment when the index led to it, under an epoch that is over.
  // -EBADMSG: damaged, or no longer there: then the index leads elsewhere now.
  [[nodiscard]] int cold(Address address, uint64_t life);
  // What stands there, whatever its checksum is; nullptr: it cannot be read, or its lengths are not possible. Its
  // content may be anything.
  [[nodiscard]] Record* unproven(Address address);
  Record* operator->() const { return record_; }
  Record* record() const { return record_; }

 private:
  int keep_pair();
  Log& log_;
  Record* record_ = nullptr;
  char* buffer_ = nullptr;
  std::optional<Reading> guard_;
};

}  // namespace lunar::kv
