// SPDX-License-Identifier: Apache-2.0
// The log, which holds the records. Its space is divided into segments. Records are appended to
// open segments, the *tails*. Each tail is for values of one age (placement.cpp).
//
//   segment   │ record │ record │ ...           │ unused │
//             free ─► open ─► sealed ─► (cleaned) retired ─► free
//
// Each segment counts its live records and their units: publishing a record adds to both, replacing
// or deleting one subtracts. The first count says whether any record is live, so the second may be
// a guess after damage. Cleaning takes a sealed segment with few live units, moves its live records
// to a tail (the store does that, because only the index knows which are live) and retires the
// segment: it is free again once no reader can look at it (epoch.h). kReserve segments are reserved
// for cleaning, so that it can always begin.
//
// A store in memory has all segments in DRAM. On a device only some segments are in DRAM, each in a
// *frame*: the tails, and before them the youngest ones. A sealed segment is written in one piece
// when another tail needs its frame; from then on it is read from the device, record by record,
// with checksums (log_device.cpp). Records that are read there, and those that were read while they
// were in a frame, go to the read cache (record_cache.h), which takes the DRAM that frames and
// index leave.
//
// On a device values of whole blocks lie on blocks, apart from their records, which gather before
// them:
//
//   │ record │ records of bodies 1, 2 │ mark, to the block's end │ body 1 │ body 2 │ record │ ...
//            └────────────────────── a group ────────────────────────────────────┘
//
// While a tail has a group open both of its parts grow: records of any kind up to the end of the
// block that the first one is in, bodies behind it. A mark that leads over the bodies ends it when
// a record finds no room, or the tail or its batch ends. Where the bodies of written records lie is
// known in DRAM (body_table.h).
//
// If sets are durable when they return, there is one tail, which is written in batches instead,
// each once (commit.cpp).
//
// Threading: any. allocate holds a spin lock for some instructions; calls that pick segments take a
// mutex; those on the device block. May not: call the store.
#pragma once
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "kv/body_table.h"
#include "kv/budget.h"
#include "kv/epoch.h"
#include "kv/record.h"
#include "kv/record_cache.h"
#include "kv/store_format.h"
#include "superpipe/device.h"
#include "sys/thread.h"

namespace lunar::kv {

class MutexLock {  // locks a mutex without blocking signals: no handler of ours runs here
 public:
  explicit MutexLock(sys::Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  sys::Mutex& mutex_;
};

// kDamaged: a record in it cannot be read, so it cannot be cleaned; its live records are read as
// before. kHeld: empty, but not free before a younger state is saved, because the saved state
// refers to it. kState: part of a saved state (saved_state.cpp). kNext: a future tail
// (store_format.h: BatchHeader::next).
enum class SegmentState : uint8_t {
  kFree,
  kReserved,
  kOpen,
  kSealed,
  kDamaged,
  kRetired,
  kHeld,
  kState,
  kNext
};
constexpr unsigned kSegmentStates = 9;

constexpr unsigned kTails = 8, kTailsFew = 4;

struct Segment {
  // Live units. Too many after a damaged record of unknown length was replaced.
  std::atomic<uint32_t> live{0};
  std::atomic<uint32_t> records{0};  // number of live records; exact
  std::atomic<uint32_t> used{0};     // bytes that records take, from the start
  // Records that are being filled, by side of their batch. Without batches the first counts all.
  std::atomic<uint32_t> filling[2] = {0, 0};
  // Start of its newest batch | the side of that batch. Without batches: where the last saved state
  // ends in it.
  std::atomic<uint32_t> batch{0};
  // Bytes, from the start. Used by the committing thread only; without batches under the mutex of
  // cleaning: bytes that are written.
  uint32_t durable = 0;
  uint64_t next_uncommitted = 0;  // number + 1. Under the tail's lock
  std::atomic<SegmentState> state{SegmentState::kFree};
  std::atomic<bool> written{false};  // written to the device
  bool saved = false;    // the saved state, or the log after it, refers to it. Under the mutex
  bool touched = false;  // in memory: its memory may be resident. Under the mutex
  // It was kRetired at the cut, so the state being saved does not refer to it.
  bool retired_at_cut = false;
  media::SegmentEntry at_cut = {};     // its entry in that state. Used by the saving thread only
  std::atomic<char*> memory{nullptr};  // its memory in DRAM; nullptr: it is only on the device
  std::atomic<uint64_t> life{0};       // number of this use of the segment, unique within the store
  std::atomic<uint64_t> set_at{0};     // mean Log::clock_ of its records. Under the tails' lock
  uint64_t opened_at = 0;              // Log::clock_. Under the mutex, like the next member
  unsigned tail = kTails - 1;          // the number of the tail that it was
  uint64_t retired = 0;                // epoch. Under the mutex, like the next member
  uint64_t next_retired = 0;           // number + 1
};

// The place of a log. segment_bits: 0: chosen by the size of the log and the budget.
struct LogPlace {
  uint64_t bytes = 0;
  Device* device = nullptr;  // nullptr: DRAM. Not owned
  // The limit of grow(), on a device that reserve() enlarges. 0: the log does not grow.
  uint64_t bytes_most = 0;
  uint64_t offset = 0;  // of segment 0
  unsigned segment_bits = 0;
  bool read_only = false;
};

// The body of a record that is allocated. bytes: its size, 0 for none. block: set by allocate() to
// its first block in the segment.
struct BodyRoom {
  uint64_t bytes = 0;
  uint32_t block = 0;
};

class Log {
 public:
  static constexpr uint64_t kReserve = 3, kAheadMost = 8, kSegmentsMin = 16, kSegmentsWanted = 1024;
  static constexpr uint64_t kFramesMin = 8, kFrameReserve = 2;
  static constexpr uint64_t kPaddingShare = 50, kFramesShare = 16, kTablesShare = 16,
                            kMarkBytes = 64;
  static constexpr uint64_t kDelayMostNs = 1'000'000, kSeenMost = 16'384;
  static constexpr uint64_t kSegmentBytesMin = 64 * kKiB, kSegmentBytesMax = kMiB,
                            kPieceBytesMin = 4 * kKiB;

  // The least budget, in whole MiB, for a log on a device: frames and tables fit, and a small
  // index.
  static uint64_t dram_least(const LogPlace& place);
  // Charges all DRAM to the budget at once; it is mapped lazily. On a device only the frames are
  // charged: a sixteenth of the budget, or frames for the whole log if that leaves a quarter of the
  // budget. 0, -EINVAL (larger than addresses reach), -ENOMEM.
  [[nodiscard]] int open(const LogPlace& place, Budget* budget, Epochs* epochs);
  void close();

  // Takes room for a record, in DRAM. The record counts as live from now on, and until published()
  // its segment is neither cleaned nor written. before: the live record that it replaces; {}: a new
  // key. padding: gets the units by which the record may be longer (block_padding()). body: takes
  // room for its body too, which counts as live with it. -EAGAIN: no segment is free except the
  // reserve (for cleaning: none at all), or no frame.
  [[nodiscard]] int allocate(uint64_t units, bool cleaning, Address before, Address* out,
                             uint64_t* padding = nullptr, BodyRoom* body = nullptr);
  void published(Address address) {
    Segment& segment = of(address);
    segment.filling[side_of(segment, address)].fetch_sub(1, std::memory_order_release);
  }
  // Whether the record may be changed in place, until published().
  // pre: the lock of its shard
  bool begin_change(Address address);
  // Returns whether the segment has no live record any more.
  bool drop_live(Address address, uint64_t units) {
    of(address).live.fetch_sub(static_cast<uint32_t>(units), std::memory_order_relaxed);
    live_units_.fetch_sub(units, std::memory_order_relaxed);
    return of(address).records.fetch_sub(1, std::memory_order_relaxed) == 1;
  }
  // The record at an address; nullptr: it is not in DRAM. It stays there while the caller is in the
  // epoch in which it got the address from the index, or between allocate or begin_change and
  // published. Use RecordReader in all other cases.
  Record* at(Address address) const {
    char* memory = segments_[segment_of(address)].memory.load(std::memory_order_acquire);
    return memory ? reinterpret_cast<Record*>(memory +
                                              (address.value * kUnitBytes & (segment_bytes() - 1)))
                  : nullptr;
  }
  // The same, or its copy in the read cache.
  // pre: in the epoch in which the index returned the address
  Record* in_dram(Address address) const {
    Record* record = at(address);
    return record ? record : cache_.find(address, life_of(address));
  }
  void note_read(const Record* record);  // pre: in_dram() returned it in the same epoch
  RecordCache& cache() { return cache_; }
  // Takes bytes from the budget, from the read cache if nothing else is left. False: nothing was
  // taken.
  bool take_memory(uint64_t bytes) {
    while (!budget_->take(bytes))
      if (!shrink()) return false;
    return true;
  }
  // Gives some of the read cache, or of the table of bodies, back to the budget.
  // pre: in no epoch
  bool shrink() { return cache_.shrink() || bodies_.shrink(); }
  // Callback: whether the index leads to a record. Called, in no epoch, for records that were read,
  // before their frame is taken.
  using Lives = bool (*)(void* owner, const Record* record, Address address);
  void ask_what_lives(Lives lives, void* owner) {
    lives_in_index_ = lives;
    index_owner_ = owner;
  }
  uint64_t segment_of(Address address) const { return address.value * kUnitBytes >> segment_bits_; }
  uint64_t life_of(Address address) const { return life(segment_of(address)); }
  uint64_t life(uint64_t number) const {
    return segments_[number].life.load(std::memory_order_acquire);
  }
  // The size limit of records. A larger pair lies in pieces.
  uint64_t inline_units_max() const { return segment_bytes() / 16 / kUnitBytes; }
  // The most bytes of a large pair that a piece holds. The end of a segment that is too small for a
  // piece is lost until the segment is cleaned: a 64th of the segment on average.
  uint64_t piece_bytes_max() const {
    return std::max(segment_bytes() / 32, kPieceBytesMin) - sizeof(Record) - sizeof(PieceKey);
  }
  // Of several pieces, all but the last hold at least piece_bytes_min(). So no pair has more than
  // pieces_most().
  uint64_t piece_bytes_min() const { return piece_bytes_max() / 2; }
  uint64_t pieces_most() const { return bytes() / piece_bytes_min() + 2; }
  // A value of whole blocks lies on blocks if its key is short, so that many records fit in a
  // block. The longest such value is as long as a piece, for the same reason.
  static constexpr uint64_t kBodyKeyMost = 512;
  static constexpr uint64_t kBodyRecordUnits =  // at most
      record_units(kBodyKeyMost, sizeof(Body)) + sizeof(ReplacedLarge) / kUnitBytes;
  uint64_t body_bytes_max() const { return std::max(segment_bytes() / 32, media::kBlockBytes); }
  bool lies_on_blocks(uint64_t key_bytes, uint64_t value_bytes) const {
    return device_ && value_bytes % media::kBlockBytes == 0 && value_bytes != 0 &&
           value_bytes <= body_bytes_max() && key_bytes <= kBodyKeyMost;
  }
  // The value of a record that at() or in_dram() returned; valid as long as the record.
  char* value_of(Record* record) const;
  const char* value_of(const Record* record) const { return value_of(const_cast<Record*>(record)); }
  // Whether the body of a sound record, if it has one, is what was written. `memory` holds the
  // record's segment up to byte `end`.
  bool body_is_sound(const Record* record, Address address, uint64_t life, const char* memory,
                     uint64_t end) const;
  // The offset of a body, in bytes from the start of its segment.
  // pre: the record has one
  static uint64_t body_at(const Record* record) {
    return uint64_t{record->body().at} * media::kBlockBytes;
  }
  // The value of a record in `segment`, the memory that holds the segment from its start.
  static const char* value_in(const Record* record, const char* segment) {
    return record->has_body() ? segment + body_at(record) : const_cast<Record*>(record)->value();
  }
  BodyTable& bodies() { return bodies_; }
  uint64_t body_offset(Address address, uint64_t block) const {  // of the log, in bytes
    return (segment_of(address) << segment_bits_) + block * media::kBlockBytes;
  }
  // Enlarges the table of bodies at the cost of the read cache, if it needs room.
  // pre: in no epoch
  void grow_bodies() {
    if (bodies_.wants_more() && bodies_.may_grow())
      while (!bodies_.grow() && cache_.shrink()) {}
  }
  // Whether a record can be in this log, that is, its lengths stay within the log. A checksum
  // proves that a store wrote a record, not that the record makes sense. room: bytes from the
  // record to the end of the memory.
  bool possible(const Record* record, uint64_t room) const;
  // Whether a record is possible, and is what was written at `address` in that life of its segment.
  // pre: `room` bytes can be read
  bool sound(const Record* record, Address address, uint64_t life, uint64_t room) const;

  // Retires a segment in which no record lives and none is being written; any other stays
  // (empty_segments.cpp).
  void retire_empty(uint64_t number);
  // Retires all sealed segments, with their live records.
  // pre: the cleaning mutex, the locks of all shards; the index is empty
  void retire_all();

  // The segment to clean next: sealed, with all its records published (placement.cpp). -ENOSPC: no
  // segment would free an eighth; -EAGAIN: one may, soon.
  [[nodiscard]] int victim(uint64_t* number);
  // The same for a segment with only a little dead space (1/64), if the dead space of all segments
  // adds up to more than two; otherwise -ENOSPC.
  [[nodiscard]] int poor_victim(uint64_t* number);
  // The records of a segment: its memory in DRAM, or memory of the cleaner that they are read into
  // from the device. -errno.
  [[nodiscard]] int segment_contents(uint64_t number, const char** memory);
  void set_damaged(uint64_t number);
  // Lets damaged segments be tried again, because a device may have failed only for a moment.
  // Returns whether there are any.
  bool retry_damaged();
  SegmentState state(uint64_t number) const {
    return segments_[number].state.load(std::memory_order_acquire);
  }
  uint32_t used(uint64_t number) const {
    return segments_[number].used.load(std::memory_order_relaxed);
  }
  uint32_t live(uint64_t number) const {
    const Segment& segment = segments_[number];
    const uint32_t units = segment.live.load(std::memory_order_relaxed);
    const bool any = segment.records.load(std::memory_order_relaxed) != 0;
    return any ? std::max(units, 1u) : 0;  // 0: no record lives
  }
  // Sets the number of index entries that lead to the segment.
  // pre: just loaded
  void restore_records(uint64_t number, uint32_t records) {
    segments_[number].records.store(records, std::memory_order_relaxed);
  }
  uint32_t records(uint64_t number) const {
    return segments_[number].records.load(std::memory_order_relaxed);
  }
  bool has_frame(uint64_t number) const {
    return segments_[number].memory.load(std::memory_order_acquire) != nullptr;
  }
  bool filling(uint64_t number) const {
    const Segment& segment = segments_[number];
    return segment.filling[0].load(std::memory_order_seq_cst) != 0 ||
           segment.filling[1].load(std::memory_order_seq_cst) != 0;
  }

  // Durable sets (commit.cpp). begin_commits: from now on the tail is written in batches; segments
  // that were written are held until a younger state is saved; and a state is wanted when the log
  // after the last one has grown to `bytes_most` (0: chosen by its size). -ENOSPC, -errno.
  // pre: keep(); nothing was allocated
  [[nodiscard]] int begin_commits(bool waits_for_company, uint64_t bytes_most);
  bool commits() const { return log_id_ != 0; }
  // Makes all records durable that were published before the call. Threads that call meanwhile
  // share the next commit. 0; -EIO: the device failed once, so nothing becomes durable until the
  // store is opened again.
  // pre: no lock
  [[nodiscard]] int commit();
  // The same for a sealed segment, which then counts as written. Returns 0 at once without batches.
  [[nodiscard]] int commit_segment(uint64_t number);
  [[nodiscard]] int flush_device();  // -EIO without a flush after a failure: see commit()
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether a state should be saved to limit how much an open has to replay.
  bool log_is_long() const;
  // Whether a state should be saved before writers have to wait for it: the log has three quarters
  // of its maximum length, or writers have few free segments left and saving a state would free a
  // sixteenth of all. As of the time when the last segment was taken.
  bool state_wanted() const { return state_wanted_.load(std::memory_order_relaxed); }
  void save_begins() { state_wanted_.store(false, std::memory_order_relaxed); }
  uint64_t commits_done() const { return commits_.load(std::memory_order_relaxed); }
  // Stores in *root where the log continues after all that was published.
  // pre: nothing writes
  void mark_start(media::Root* root);
  // For replay (replay.cpp), down to add_live(). The start of the batch that follows a batch that
  // ends at `end`.
  static uint64_t batch_end(uint64_t end);
  // `memory` holds the bytes of segment `number`. batch_at: the header of a batch of that log, or
  // nullptr. records_are_sound: whether all records in [from, to) are what was written.
  const media::BatchHeader* batch_at(uint64_t log, uint64_t number, const char* memory,
                                     uint64_t at) const;
  bool records_are_sound(uint64_t number, const char* memory, uint64_t from, uint64_t to,
                         uint64_t life) const;
  // Reads the first bytes of a segment into the cleaner's frame, as read_what_can_be(). Valid until
  // that frame is used again.
  [[nodiscard]] int read_to_replay(uint64_t number, uint64_t bytes, char** memory);
  // The segment belongs to the log, up to byte `used`.
  void replayed(uint64_t number, uint64_t life, uint32_t used);
  void add_live(Address address, uint64_t units) {
    of(address).live.fetch_add(static_cast<uint32_t>(units), std::memory_order_relaxed);
    live_units_.fetch_add(units, std::memory_order_relaxed);
    of(address).records.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t first_at(uint64_t number) const {  // 0 is not a valid address
    return number == 0 ? kUnitBytes : 0;
  }
  // Used bytes that a saved state would name; of an open segment only the durable part.
  uint32_t used_durable(uint64_t number) const {
    return state(number) == SegmentState::kOpen
               ? segments_[number].batch.load(std::memory_order_relaxed) & ~7u
               : used(number);
  }

  // The saved state (saved_state.cpp). One thread at a time saves, with the mutex of cleaning, so
  // nothing is reclaimed meanwhile. Writers continue, except during save_cut(), when all shards are
  // locked. keep: from now on space for a state is left free, and segments that a saved state
  // refers to are held. state_bytes returns how many bytes a state would take now.
  using StateBytes = uint64_t (*)(const void* owner);
  void keep(StateBytes state_bytes, const void* owner);
  // Records, for the state being saved, what each segment holds, and (with batches) where the log
  // continues. Records that the state refers to no longer change. They are durable after
  // commit_before(*root); no root may name the state before that.
  void save_cut(media::Root* root);
  // Returns 0 at once without batches.
  // pre: no lock
  [[nodiscard]] int commit_before(const media::Root& root);
  const media::SegmentEntry& at_cut(uint64_t number) const { return segments_[number].at_cut; }
  // Writes the unwritten part of sealed segments, without a flush. -errno.
  [[nodiscard]] int save_written();
  // Writes the unwritten part of the cut. Returns 0 at once with batches.
  // pre: the cleaning mutex
  [[nodiscard]] int save_cut_written();
  // Writes the oldest unwritten sealed segment. 1; 0: there is none.
  // pre: the cleaning mutex
  [[nodiscard]] int write_oldest();
  // Frees frames for writers, until a quarter of all frames has no owner.
  // pre: the cleaning mutex
  void spare_frames();
  // Takes a free segment for the state of that life. -ENOSPC.
  [[nodiscard]] int take_link(uint64_t life, uint64_t* number);
  // Frees the links of the new or of the previous state, and with kYes the segments that only the
  // previous state refers to. kUnknown: either state may be durable.
  enum class Saved : uint8_t { kYes, kNo, kUnknown };
  void save_end(Saved saved);
  // After kUnknown: the durable state is that of `life`. Frees the links of the other.
  void settle(uint64_t life);
  // Restores one segment of a state that is being loaded: kSealed or kState.
  // pre: just opened
  void restore(uint64_t number, SegmentState state, uint64_t life, uint32_t live, uint32_t used);
  void forget_restored();  // undoes all restore() calls
  uint64_t new_life() { return lives_.fetch_add(1, std::memory_order_relaxed) + 1; }
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }
  // Segments that writers may not use. reserve: free or held; free_reserve: the part that must be
  // free; state_reserve: the part of free_reserve that cleaning may not use.
  uint64_t reserve() const {
    return cleaning_reserve_.load(std::memory_order_relaxed) + free_reserve() - kReserve;
  }
  uint64_t held_wanted() const {  // before a save
    return cleaning_reserve_.load(std::memory_order_relaxed) / 4 * 3;
  }
  uint64_t free_reserve() const { return kReserve + state_reserve(); }
  uint64_t state_reserve() const { return state_reserve_.load(std::memory_order_relaxed); }
  // Whether writers may take `count` segments.
  bool room_for_writers(uint64_t count) const {
    const uint64_t free = free_.load(std::memory_order_relaxed);
    return free >= free_reserve() + count && free + held() >= reserve() + count;
  }
  // Whether saving a state now would give writers enough segments to be worth it: each save seals
  // the tail, and the rest of the tail is lost until the segment is cleaned.
  bool held_suffice() const {
    return held() != 0 &&
           free_.load(std::memory_order_relaxed) + held() > reserve() + held_wanted();
  }
  // Whether a writer should clean or save before writers have to wait. Set with each segment that
  // is opened.
  bool cleaning_wanted() const { return cleaning_wanted_.load(std::memory_order_relaxed); }
  enum class Ahead : uint8_t { kNothing, kClean, kSave };
  Ahead ahead() const;
  uint64_t delay_ns() const;  // of a writer, while another one cleans ahead
  void end_cleaning_ahead() { cleaning_wanted_.store(false, std::memory_order_relaxed); }
  char* cleaners_frame() const {  // pre: on a device, the cleaning mutex
    return frame_memory(frame_count_);
  }
  // Transfers bytes of the log; offset: from the start of the log.
  [[nodiscard]] int transfer(Op op, uint64_t offset, void* memory, uint64_t bytes);
  // Reads the first `bytes` of a segment, whole blocks. -errno: blocks that the device cannot read
  // are zeros, which no checksum fits.
  [[nodiscard]] int read_what_can_be(uint64_t number, char* memory, uint64_t bytes);

  // Reads of single records that a caller carries out by a context of the device, instead of
  // RecordReader::cold. take_block: a buffer of kColdBytes for one read; nullptr: all are in use,
  // or there is too little memory. cold_bytes: how much to read of a record, by a guess of its
  // length. cold_record: checks the bytes that were read; -EBADMSG as for RecordReader::cold;
  // -EAGAIN: the record is longer than the read.
  static constexpr uint64_t kColdBytes = 16 * kKiB;
  static constexpr unsigned kBlocksMax = 256;
  char* take_block();
  void give_block(char* block);
  char* blocks() const { return blocks_memory_; }
  uint64_t blocks_bytes() const { return block_count_ * kColdBytes; }
  uint64_t cold_bytes(Address address) const;
  bool fit_blocks() const {  // whether most records fit
    return usual_bytes_.load(std::memory_order_relaxed) < kColdBytes * 3 / 4;
  }
  void read_command(uint64_t offset, iovec* piece, Command* out);  // of the log
  void cold_command(Address address, iovec* piece, Command* out);  // pre: *piece
  [[nodiscard]] int cold_record(Address address, uint64_t life, char* block, uint64_t bytes,
                                Record** out);

  // Buffers that hold a record of any length with the blocks that it lies in. take_buffer waits for
  // one. A thread that has one may only call try_buffer, which returns nullptr if none is free.
  char* take_buffer();
  char* try_buffer();
  void give_buffer(char* buffer);
  // For a record of known length. span_bytes: the bytes to read from the beginning of its first
  // block (cold_command); 0: it would lead out of its segment. record_in_span: the record in these
  // bytes; nullptr: it is not what was written there in that life.
  uint64_t span_bytes(Address address, uint64_t units) const;
  const Record* record_in_span(Address address, uint64_t units, uint64_t life,
                               const char* buffer) const;

  // Frees retired segments that no reader looks at any more. Returns the number of free segments.
  uint64_t reclaim();
  bool has_room();          // for a writer's next segment
  uint64_t taken() const {  // segments that writers took so far
    return taken_.load(std::memory_order_relaxed);
  }
  bool any_retired() const { return retired_.load(std::memory_order_relaxed) != 0; }
  // Seals the open segments, so that they can be cleaned.
  void seal_tails();
  // frames: whether writers can get a frame now, soon (readers are still in it), or after
  // make_frame(). make_frame takes the frame of the oldest segment that has one, and first writes
  // the segment if necessary. One thread at a time. -EAGAIN: try again in a moment; -errno: the
  // device failed, and the segment stays in its frame.
  enum class Frames : uint8_t { kReady, kSoon, kWanted };
  Frames frames();
  [[nodiscard]] int make_frame();
  bool on_device() const { return device_ != nullptr; }
  // Adds at least `segments`, or a quarter more if there is space. 0; -ENOSPC: the log is as large
  // as it may be, or the device has no more (asked at most once a second); -errno.
  // pre: the cleaning mutex
  [[nodiscard]] int grow(uint64_t segments);
  bool may_grow() const { return count_ < count_most_; }
  // Adds exactly `more` segments, of which the first `held` stay unused.
  // pre: segments_most(), and as for grow()
  [[nodiscard]] int add_segments(uint64_t more, uint64_t held);
  uint64_t segments_most() const { return count_most_; }

  uint64_t segment_bytes() const { return uint64_t{1} << segment_bits_; }
  uint64_t segments() const { return count_; }
  uint64_t bytes() const { return count_ << segment_bits_; }
  uint64_t bytes_live() const { return live_units_.load(std::memory_order_relaxed) * kUnitBytes; }
  uint64_t bytes_in_use() const;  // in segments that are neither free nor empty
  // Whether a log in memory holds more than twice its live bytes, besides the tails.
  bool wastes_memory() const;
  uint64_t ios() const { return ios_.load(std::memory_order_relaxed); }

 private:
  friend class RecordReader;
  struct Frame {
    uint64_t owner = 0;    // segment + 1; 0: none
    uint64_t retired = 0;  // epoch when it was taken from its last owner
  };
  Segment& of(Address address) { return segments_[segment_of(address)]; }
  // The side of the batch that a record is in: the newest batch of its segment, or the one before,
  // which is not durable while a thread writes in it.
  unsigned side_of(const Segment& segment, Address address) const {
    const uint32_t batch = segment.batch.load(std::memory_order_relaxed);
    const uint64_t at = address.value * kUnitBytes & (segment_bytes() - 1);
    return at >= (batch & ~7u) ? batch & 1 : ~batch & 1;
  }
  struct Tail {
    uint64_t segment = 0, used = 0;  // not open: used == segment_bytes()
    bool open = false;
    uint64_t heads_end = 0, bodies_end = 0;  // of the open group; 0: none
    // It was taken from the reserve, so only cleaning uses it until more segments are free.
    bool reserved = false;
  };
  void seal_locked(Tail& tail);
  void cut_tails();
  void cut_locked(Tail& tail);
  int write_part(uint64_t number, uint64_t end);
  bool append(Tail& tail, uint64_t units, bool cleaning, Address before, Address* out,
              uint64_t* padding, BodyRoom* body);
  bool find_room(Tail& tail, uint64_t bytes, uint64_t body_bytes);
  void end_group(Tail& tail);
  // placement.cpp
  unsigned tail_count() const;
  unsigned tail_for(Address before) const;
  void note_set(Segment& segment, Address before, uint64_t units);
  double worth(uint64_t number) const;
  void note_span(uint64_t number);
  uint64_t reserve_for_states() const;
  // Bytes by which a record that ends there is made longer, so that it ends with a block of the
  // device: at most a 50th. A pair that is nearly as long as whole blocks then lies in as few
  // blocks as possible, so a cold get of 4000 bytes reads one block, not two. 0: it would be more,
  // or the log is in DRAM.
  uint64_t block_padding(uint64_t end, uint64_t bytes) const;
  // commit.cpp
  struct Uncommitted {
    // segments + 1 with content that is not durable, a chain. 0: none
    uint64_t first = 0, last = 0;
    uint32_t last_end = 0;  // of the last segment: the end of the part to write,
    unsigned sides = 3;     //   and the sides that must be filled first, one bit each
    uint64_t number = 0;    // of the last batch in it
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
  Uncommitted take_uncommitted();
  int write_uncommitted(const Uncommitted& part);
  int commit_once();
  void wait_for_company();
  void prepare(uint64_t number, uint64_t from, uint64_t to);
  template <class Done>
  int commit_until(Done done);
  int roll(Tail& tail, bool cleaning);
  uint64_t segments_ahead() const;
  bool take_one(bool cleaning, uint64_t* number);
  // on a device (log_device.cpp) How a budget is divided for a log on a device. blocks, frames:
  // their numbers; reading: bytes for buffers and blocks; own: bytes per frame.
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
  void retire_locked(uint64_t number, uint64_t epoch);
  bool is_empty(uint64_t number) const;
  void note_taken(uint64_t number);
  void note_free(uint64_t number);
  bool possible_size(const Record* record, uint64_t room) const;
  int read_record(Address address, uint64_t life, char* buffer);
  void note_body(const Record* record, Address address);
  void sum_body(Record* record, Address address, const char* memory);
  void learn_bodies(Address address, uint64_t life, const char* buffer, uint64_t bytes);
  uint64_t guess_bytes(uint64_t at) const;
  void note_record(uint64_t bytes);

  char* memory_ = nullptr;
  Segment* segments_ = nullptr;
  unsigned segment_bits_ = 0;
  std::atomic<uint64_t> count_{0};               // of segments; grows under the mutex
  uint64_t count_most_ = 0, grow_again_at_ = 0;  // the latter: ns, under the cleaning mutex
  Budget* budget_ = nullptr;
  Epochs* epochs_ = nullptr;

  Device* device_ = nullptr;
  uint64_t device_offset_ = 0;
  StateBytes state_bytes_ = nullptr;
  const void* state_owner_ = nullptr;
  // Larger in a persistent store, so that more writes share the cost of a saved state.
  std::atomic<uint64_t> cleaning_reserve_{kReserve};
  std::atomic<uint64_t> held_{0}, state_reserve_{0}, taken_{0};
  std::atomic<bool> state_wanted_{false}, cleaning_wanted_{false};
  char* frames_memory_ = nullptr;  // frames, one more for the cleaner, buffers
  Frame* frames_ = nullptr;        // under the mutex
  // One bit for each kMarkBytes of the frames: a record that begins there was read.
  std::atomic<uint64_t>* marks_ = nullptr;
  RecordCache cache_;
  BodyTable bodies_;
  Lives lives_in_index_ = nullptr;
  void* index_owner_ = nullptr;
  uint64_t frame_count_ = 0, frames_mapped_ = 0, buffer_bytes_ = 0;
  std::atomic<uint32_t> buffers_{0};  // one bit each: free
  char* blocks_memory_ = nullptr;
  uint64_t block_count_ = 0;
  std::atomic<uint64_t> blocks_[kBlocksMax / 64] = {};  // one bit each: free
  std::atomic<uint32_t> usual_bytes_{4096};  // usual size of a record that is read from the device
  std::atomic<uint64_t> ios_{0}, lives_{0};

  alignas(64) mutable sys::SpinLock tail_lock_;
  Tail tails_[kTails];
  Tail& tail_ = tails_[0];  // with batches the only one
  // The time in which a segment of each tail dies, in units of clock_. Under the mutex
  double spans_[kTails] = {};
  std::atomic<uint64_t> clock_{0};  // units that were set so far
  alignas(64) sys::Mutex mutex_;    // state changes
  std::atomic<uint64_t> free_{0}, retired_{0};
  std::atomic<uint64_t> live_units_{0};  // of all segments
  // in memory: the number of free segments that have memory, and the end of the last one
  uint64_t touched_free_ = 0, touched_end_ = 0;
  uint64_t links_ = 0;                             // segments that are kState
  uint64_t next_free_ = 0, next_victim_ = 0;       // where to look first
  uint64_t first_retired_ = 0, last_retired_ = 0;  // number + 1, oldest first

  // commit.cpp
  uint64_t log_id_ = 0;        // 0: no batches
  uint32_t next_[2] = {0, 0};  // segments + 1, kNext. Under the mutex and the tail's lock
  uint32_t fresh_ = 0;         //   and the segment after them. Under the mutex
  uint64_t first_uncommitted_ = 0, last_uncommitted_ = 0;  // segments + 1. Under the tail's lock
  uint64_t closed_ = 0;                                    // batches. Under the tail's lock
  uint64_t log_most_ = 0;                                  // bytes. 0: chosen by the log's size
  std::atomic<uint64_t> opened_{0};  // segments of the log since the last saved state
  uint64_t opened_at_cut_ = 0;
  bool waits_for_company_ = false;
  // Used by the committing thread only: threads that were there when the last commit ended, served
  // or not; threads served in all; ns that the last commit took.
  uint64_t company_ = 0, served_ = 0, commit_ns_ = 0;
  alignas(64) std::atomic<uint64_t> durable_{0};  // batches
  // number of calls of commit(), and of commits, so far
  std::atomic<uint64_t> arrived_{0}, commits_{0};
  std::atomic<uint32_t> ended_{0};  // futex: changes with the end of each commit
  std::atomic<bool> committing_{false}, failed_{false};
};

// The error of two that counts. Data that the device refused to read may be readable later; damaged
// data will not be.
inline int graver(int one, int other) { return one == 0 || one == -EBADMSG ? other : one; }

// Access to a record in DRAM, where an epoch keeps it, or in a buffer that it was read into. A
// thread has one at a time, and reads nothing else from the device during its lifetime. The caller
// is in no epoch. A call that failed may be repeated.
class RecordReader {
 public:
  explicit RecordReader(Log& log) : log_(log) {}
  ~RecordReader() { log_.give_buffer(buffer_); }
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;
  // Finds the record wherever it is. -EBADMSG: damaged; -errno of the device.
  // pre: the lock of its shard
  [[nodiscard]] int locked(Address address);
  // The same, tried three times; returns the graver of its errors.
  [[nodiscard]] int locked_again(Address address);
  // Reads a record of that life of its segment from the device. The index led to it in an epoch
  // that has ended. -EBADMSG: damaged, or moved; if it moved, the index now leads elsewhere.
  [[nodiscard]] int cold(Address address, uint64_t life);
  // As locked(), but ignores a wrong checksum, so the content may be anything. -EBADMSG: its
  // lengths are impossible; -errno of the device.
  [[nodiscard]] int unproven(Address address);
  // Reads a body where the table says that it lies, without its record. 0: the checksum proves that
  // it is the value of this key at that address in that life. -EBADMSG, -errno: the table forgets
  // the entry.
  [[nodiscard]] int known_body(const BodyPlace& place, Address address, uint64_t life, Bytes key);
  // Makes value() valid; reads a body that is only on the device. 0; -EBADMSG, -errno.
  // pre: the record was found
  [[nodiscard]] int find_value();
  Record* operator->() const { return record_; }
  Record* record() const { return record_; }
  const char* value() const { return value_; }

 private:
  int keep_pair();
  Log& log_;
  Record* record_ = nullptr;
  Address address_;  // of record_
  uint64_t life_ = 0;
  const char* value_ = nullptr;
  char* buffer_ = nullptr;
  std::optional<Reading> guard_;
};

}  // namespace lunar::kv
