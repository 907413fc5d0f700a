// SPDX-License-Identifier: Apache-2.0
// The store: keys and values are arbitrary bytes, up to 100 GiB each; keys are found by hash.
// runtime/kv/README.md has the design.
//
//   hash of the key ──► shard ──► index (index.h) ──► address ──► record in the log (record_log.h)
//
//   get, exists    no lock: an epoch (epoch.h), the index, the record
//   set, del       the lock of the key's shard. A value that fits into the old one's record
//                  replaces it there; otherwise a new record goes to the tail of the log, and the
//                  index entry is switched to it. A writer that finds no free segment cleans one
//                  first
//
// Operations on one key take effect one after the other. Lengths may be 0.
// Threading: any thread may make all calls, except close(), which must be the last. set and del may
// map memory (for growth of the index) and may wait for another writer's cleaning; get and exists
// block only for the device, if the record is not in DRAM.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "kv/index.h"
#include "kv/rebuild.h"
#include "kv/record_log.h"
#include "kv/store_format.h"
#include "lun/volume/atomic_image.h"

namespace lunar::kv {

// Scratch stores end with their process; the others are persistent.
enum class Contents : uint8_t {
  kScratch,   // nothing remains after close()
  kNew,       // persistent. The device is formatted; its old content is lost
  kExisting,  // persistent, with what the last flush() of the store on the device wrote
};

// When a set or del of a persistent store is durable. It may also be durable before it returns.
enum class Durability : uint8_t {
  kFlush,  // with the next flush()
  kGroup,  // when it returns; waits a little for others, to share one write and one flush with them
  kEach,   // when it returns; shares only with calls that came during the previous write
};

struct StoreOptions {
  // The device of the log while the store is open. The store takes it over in any case: it is
  // closed with the store, or at once on failure. nullptr: in DRAM.
  Device* device = nullptr;
  // kNew, kExisting: only on a device; the caller ensures that nothing else uses it
  Contents contents = Contents::kScratch;
  // kGroup, kEach: not with kScratch. May differ with each open
  Durability durability = Durability::kFlush;
  bool says_when_full = false;  // logs one line, once, that says what makes room
  // kGroup, kEach: a state is saved (as by flush()) when the log after the last one has grown to
  // this size, so that an open need not read more. 0: 1 GiB, or 8 times the state if that is more
  uint64_t replay_bytes_most = 0;
  // bytes for records, rounded to segments (at least 16). 0: the whole device. kExisting: as when
  // the store was created
  uint64_t log_bytes = kGiB;
  // kScratch, on a device that reserve() enlarges: the log grows to this as it fills with live
  // pairs. 0: it does not. kExisting: only for a store that is opened for grow_place()
  uint64_t log_bytes_most = 0;
  // of the log, a power of two from 64 KiB to 1 MiB; 0: chosen by the size of the log and the DRAM.
  // kExisting: as when the store was created
  uint64_t segment_bytes = 0;
  // all DRAM that the store may use, a hard limit. In DRAM: the log, and the rest for the index (0:
  // a third more than log_bytes). On a device: a sixteenth for the tail of the log, what the index
  // needs, the rest for the read cache; never 0
  uint64_t dram_bytes = 0;
  // a hint: the index starts with room for a quarter of them, and grows
  uint64_t expected_keys = 1 << 20;
  // rounded up to a power of two, 1..256: how many writers can be busy at a time. kExisting: as
  // when the store was created
  unsigned shards = 16;
  // kExisting: nothing is written, not even to repair what a crash left; set and del return -EROFS,
  // flush does nothing. The store may be open read-only several times at once
  bool read_only = false;
  // With read_only: open the store in spite of damage that would otherwise make the open fail.
  // Superblocks are found by the roots (store_head.h). The newest valid root counts; if a newer one
  // may be gone, all pairs are doubtful. A damaged saved state is reconstructed from its sound
  // parts and the records (rebuild.h, also for the memory that this takes). If a log of durable
  // sets is damaged in the middle, the store is as it was before the first damaged batch. sweep()
  // reports all damage.
  bool salvage = false;
};

struct StoreInfo;
struct Sweep;
struct CheckReport;

struct Shard;

// A get whose record is being read from the device (Store::cold_begin). Must not be moved
// meanwhile.
struct ColdGet {
  Command command;  // for a context of Store::device() to carry out
  iovec piece = {};
  Bytes key;
  void* buffer = nullptr;
  uint64_t bytes = 0, offset = 0, hash = 0, life = 0;
  Address address;
  BodyPlace body = {};  // blocks != 0: this body is read, without its record
};

class Store {
 public:
  // 0, -EINVAL, -ENOMEM (also if dram_bytes is too small), -ENOSPC (the device is too small, or has
  // no room), with *why; kExisting also -ENOENT (there is no store on the device),
  // -EPROTONOSUPPORT, -EBADMSG (damaged).
  [[nodiscard]] static int open(const StoreOptions& options, Store** out, ErrorText* why);
  void close();  // pre: not nullptr, no longer in use
  // In a forked child that will not use the store: closes the descriptors of the device and the
  // rings of walks, because they would keep others from using the device, and a deleted file from
  // freeing its space. No other call may follow.
  void abandon_in_child();

  // kGroup, kEach: a get may return a value that is not durable yet. If set, del or flush returns
  // -EIO, the device failed to make something durable. It is not known whether that is on the
  // device, and each further call of these returns -EIO until the store is opened again.
  //
  // On a device, all of these calls except count and other counters may block for it, and return
  // its errors (-EIO, ...) or -EBADMSG: the stored bytes are not those that were written. No call
  // ever returns a damaged byte, and damage of one key does not affect the others.
  //
  // set: 0; -EINVAL: longer than kPairBytesMax; -ENOSPC: the log, or (for a new key) the index, has
  // no room. On failure nothing has changed. Deleted pairs free their space. The store reserves
  // segments for cleaning: 3; with kExisting and kNew up to a 24th of all, by the size of a saved
  // state. With kExisting and kNew it also reserves those of two saved states (each: the segments
  // that it fills and one more), and with kGroup and kEach two future tails. A pair that replaces
  // another needs its own room until it is complete.
  [[nodiscard]] int set(Bytes key, Bytes value);
  // Copies up to `bytes` bytes of the value, from `offset` on. Returns the length of the whole
  // value. -ENOENT.
  [[nodiscard]] int64_t get(Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  [[nodiscard]] int64_t exists(Bytes key) { return get(key, nullptr, 0, 0); }
  // Returns the length of the deleted value. -ENOENT. -ENOSPC: only with kGroup and kEach, if the
  // store is completely full. -EBADMSG: a record that may be the key's is damaged, and its readable
  // part does not name the key. Nothing has changed, because it may be another key's; a set
  // replaces it.
  [[nodiscard]] int64_t del(Bytes key);
  // As get() and set(), but -EAGAIN without effect if the call needs the device, cleaning or a
  // large pair.
  [[nodiscard]] int64_t get_now(Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  [[nodiscard]] int set_now(Bytes key, Bytes value);
  bool on_device() const { return log_.on_device(); }
  // get() in two steps, for a thread that has many in progress. If cold_begin returns -EINPROGRESS,
  // the caller carries out get->command and calls cold_finish() exactly once, with the bytes moved
  // or -errno. Both return the result; or -EAGAIN: the caller must use get() (a large pair, several
  // candidates, a record that moved or is damaged). -ENOBUFS: no buffer is free.
  [[nodiscard]] int64_t cold_begin(ColdGet* get, Bytes key, void* buffer, uint64_t bytes,
                                   uint64_t offset);
  [[nodiscard]] int64_t cold_finish(ColdGet* get, int64_t moved);
  // Whether cold_begin() can carry out most gets.
  bool reads_in_steps() const { return log_.on_device() && log_.fit_blocks(); }
  // The device of these commands, and the memory they read into; nullptr in DRAM.
  Device* device() const { return device_; }
  iovec read_window() const { return {log_.blocks(), log_.blocks_bytes()}; }
  // Makes the content of the store durable: after any crash, a later open with kExisting finds it,
  // until another flush is complete. Writers are paused only for a moment. A flush writes all data
  // that is not on the device yet, then the index (some 10 bytes per key), and flushes the device
  // twice. After a device flush has failed, flush() returns -EIO without another try. A writer that
  // needs space to which the durable state still refers flushes by itself. 0 (also if contents is
  // kScratch); -ENOSPC, -EIO and others: the durable state is the previous one, or this one.
  [[nodiscard]] int flush();
  // Deletes all pairs at once, as one change: no call sees a part of them. -EOPNOTSUPP: the store
  // is persistent.
  [[nodiscard]] int clear();
  bool is_persistent() const { return persistent_; }
  // Makes a persistent store take all of its place, which has become larger. The store may only be
  // closed afterwards. After a crash the store is as it was, or larger. 0; -ENODATA: the place is
  // no larger; -ENOMEM: the larger store needs more DRAM; -EINVAL; -errno: the store is as it was,
  // or larger.
  // pre: opened with log_bytes_most, and durability kFlush
  [[nodiscard]] int grow_place();
  // Cleans as long as that frees segments, then flushes if the store is persistent. 0; -errno of
  // the device, -EROFS.
  [[nodiscard]] int compact();
  // Returns the length of a key and copies up to `bytes` of it. Successive calls return all keys in
  // the order of a walk by the index, then begin again. A key that was deleted meanwhile is
  // skipped. -ENOENT: the store is empty. -ENOMEM; -EIO, -EBADMSG: a key could not be read and was
  // skipped.
  [[nodiscard]] int64_t random(void* buffer, uint64_t bytes);

  uint64_t count() const;                                    // keys
  uint64_t pieces() const;                                   // of large pairs
  uint64_t bytes_allocated() const { return log_.bytes(); }  // what the log can hold
  uint64_t bytes_in_use() const {  //   of these, in segments in which something lives
    return log_.bytes_in_use();
  }
  uint64_t bytes_live() const { return log_.bytes_live(); }  //   of records that live
  uint64_t bytes_actual() const;                             // of keys and values
  // number of get, exists, set, del, random and steps of walks so far
  uint64_t operations() const;
  uint64_t commits() const { return log_.commits_done(); }  // with kGroup and kEach, so far
  uint64_t device_ios() const { return log_.ios(); }        // reads and writes of the device so far
  // How often a set or delete found no free segment, so that it had to clean, save, or wait for
  // another thread that did.
  uint64_t waits_for_room() const { return waits_for_room_.load(std::memory_order_relaxed); }
  // live bytes that cleaning has moved so far
  uint64_t cleaned_bytes() const { return cleaned_.load(std::memory_order_relaxed); }
  uint64_t dram_used() const { return budget_.used(); }
  uint64_t index_bytes() const;

  void info(StoreInfo* out);  // inspect.h
  // Damaged records that a set or delete has replaced since the open.
  uint64_t damaged_replaced() const { return damaged_replaced_.load(std::memory_order_relaxed); }
  // Reads everything that the saved state refers to, in the order of the device, and reports all
  // damage and each pair. Takes 8 bytes of memory per key and 1 per segment in addition to
  // dram_bytes, and memory for one large pair. 0, even if there is damage (*out counts it);
  // -EINVAL, -ENOMEM, -ECANCELED (on_pair ended it).
  // pre: read_only
  [[nodiscard]] int sweep(const Sweep& sweep, CheckReport* out);

  // Checks the whole structure: every index entry leads to a record of that hash, and live counts
  // are right. No thread may write meanwhile. 0 or -EBADMSG with *why.
  [[nodiscard]] int validate(ErrorText* why);

 private:
  friend class Walk;
  friend class LogScan;
  friend class Sweeper;
  friend class Rebuilder;
  // The record that the index entry of a key leads to. place == nullptr: the key has none.
  struct Found {
    std::atomic<uint64_t>* place = nullptr;
    Address address;
    uint64_t units = 0, pair_bytes = 0, value_bytes = 0;
    Pieces pieces = {};    // of a large pair; id 0: none
    bool damaged = false;  // the record cannot be read, and is assumed to be the key's
    Address before() const { return place ? address : Address{}; }
  };
  // An entry whose record is to be read from the device, as found under an epoch. pieces.id != 0:
  // the record was in DRAM, and its pieces are to be read.
  struct Candidate {
    Address address;
    uint64_t life = 0;
    Pieces pieces = {};
    BodyPlace body = {};  // where its value may lie
  };
  struct Candidates {
    static constexpr unsigned kMax = 8;
    Candidate list[kMax];
    unsigned count = 0;
    bool more = false;
  };
  Store() = default;
  int start(const StoreOptions& options, ErrorText* why);
  // saved_state.cpp
  int open_root(const StoreOptions& options, ErrorText* why);
  int load(media::Root* root, ErrorText* why);
  int load_rebuilt(const media::Root& root);
  int load_segments(class StateReader& state);
  int load_unreferenced(class StateReader& state);
  int load_shard(class StateReader& state, unsigned number, uint32_t* entries);
  int load_index(class StateReader& state, Index& index, uint64_t buckets, uint64_t count,
                 uint32_t* entries);
  int load_shards(class StateReader& state);
  int begin_commits(const StoreOptions& options, ErrorText* why);
  // replay.cpp
  struct LogEnd {
    uint64_t number = 0;           // of the first missing batch
    uint64_t segment = 0, at = 0;  // where it would be
    uint32_t next[2] = {0, 0};     // the segments after that one; + 1
  };
  int replay(const media::Root& root, ErrorText* why);
  int replay_segment(uint64_t log, char* memory, LogEnd* end, uint64_t* life);
  template <class Visit>
  bool visit_batches(uint64_t log, uint64_t number, uint64_t segment, const char* memory,
                     uint64_t from, uint64_t to, Visit visit);
  template <class Visit>
  int visit_later(uint64_t log, const LogEnd& end, Visit visit);
  int find_later(uint64_t log, const LogEnd& end, ErrorText* why);
  // Called for each set or delete that salvage left out (record != nullptr: its sound record), and
  // for each damaged batch (nullptr).
  using OnLost = void (*)(void* context, const Record* record, uint64_t segment, uint64_t at);
  int visit_lost(void* context, OnLost on_lost);
  int apply(Record* record, Address address);
  std::atomic<uint64_t>* find_moved(Index& index, uint64_t hash, const Record* record,
                                    Address* from);
  struct Before {  // the predecessor of a record, as the record names it
    std::atomic<uint64_t>* place = nullptr;
    Address address;
    uint64_t units = 0, value_bytes = 0;
    uint64_t id = 0, count = 0;  // of its pieces
  };
  static Before before_of(Record* record);
  void find_rebuilt(Index& index, uint64_t hash, Before* out);
  int note_unreferenced(const Record* record, uint64_t hash, const Before& before);
  void end_unreferenced(uint64_t owner, uint64_t id);
  int settle();
  int save();
  void save_early();
  void clean_early();
  void cut(media::Root* root);
  int keep_image(Shard& shard);
  void free_image(Shard& shard);
  bool gain_memory(uint64_t freed);
  int save_shard(class StateWriter& state, Shard& shard);
  void lock_shard(Shard& shard);
  class ShardLock {  // for writers
   public:
    ShardLock(Store& store, Shard& shard);
    ~ShardLock();
    ShardLock(const ShardLock&) = delete;
    ShardLock& operator=(const ShardLock&) = delete;

   private:
    Shard& shard_;
  };
  // Tries since a writer last took a segment. A segment that others have filled was a gain.
  struct TriesForSpace {
    uint64_t taken = 0;
    unsigned poor = 0;       // segments with little dead space that were cleaned
    uint64_t best = 0;       // the most segments that were free after a save
    unsigned fruitless = 0;  // saves that did not beat it
  };
  enum class Gain : uint8_t { kDone, kWait, kFull, kOver };
  Gain gain_segment(bool may_clean, TriesForSpace* tries, int* error);
  int save_for_space(TriesForSpace* tries);
  int write_state(media::Root* root);
  uint64_t state_bytes() const;
  Shard& shard_of(uint64_t hash) const;
  // is_key: compares only hash and length of a key that lies in pieces; is_key_of_pieces compares
  // its bytes.
  Bytes key_of(const Record* record) const;
  bool is_key(const Record* record, uint64_t hash, Bytes key) const;
  int is_key_of_pieces(const Pieces& pieces, Bytes key);
  uint64_t hash_of_record(const Record* record) const;
  // Whether an index leads to the record..
  // pre: in no epoch
  bool lives(const Record* record, Address address);
  int64_t get_resident(uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset,
                       Candidates* cold);
  void admit_body(const BodyPlace& body, Bytes key, const char* value, Address address,
                  uint64_t life);
  int64_t get_cold(const Candidate& one, uint64_t hash, Bytes key, void* buffer, uint64_t bytes,
                   uint64_t offset);
  // The results of heads that were found with the lock and whose pieces were read without it.
  struct HeadsRead {
    static constexpr unsigned kMost = 5;
    struct {
      uint64_t id = 0;
      int result = 0;  // another key's; -errno
    } list[kMost];
    unsigned count = 0;
    bool full() const { return count == kMost; }
    int result_of(uint64_t id) const {  // 1: not read yet
      for (unsigned i = 0; i < count; ++i)
        if (list[i].id == id) return list[i].result;
      return 1;
    }
  };
  int64_t get_locked(uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  // The record if it is in DRAM; else nullptr and *cold.
  // pre: in the epoch in which the index returned the address
  Record* resident(Address address, Candidate* cold) const;

  // pieces.cpp. The pieces of a large set or delete in progress that no head leads to. A saved
  // state names them, and an open deletes them. Takes one of kUnreferencedMost slots.
  static constexpr unsigned kUnreferencedMost = 64;
  class UnreferencedPieces {
   public:
    explicit UnreferencedPieces(Store& store) : store_(store) {}
    ~UnreferencedPieces();
    UnreferencedPieces(const UnreferencedPieces&) = delete;
    UnreferencedPieces& operator=(const UnreferencedPieces&) = delete;
    // From now on covers these pieces, instead of those before. False: all slots are in use; call
    // wait(), with no lock, and try again. unsure: some of them may be missing, or there may be
    // more.
    bool take(const Pieces& pieces, bool unsure = false);
    void wait() const;
    // As given to take(). Also true if clear() has deleted the pieces; it may do so now unless the
    // caller has a shard's lock.
    bool unsure() const;
    const Pieces& pieces() const { return pieces_; }

   private:
    Store& store_;
    unsigned place_ = kUnreferencedMost;
    Pieces pieces_ = {};
  };
  struct UnreferencedSlot {
    media::UnreferencedPieces pieces;  // id 0: free
    bool unsure = false;
  };
  void note_cleared();      // pre: the locks of all shards
  void cut_unreferenced();  // likewise
  uint64_t count_left(const media::UnreferencedPieces& of);
  // At open: deletes pieces that a crash left. 0, or -errno: a piece cannot be read.
  int drop_unreferenced();
  uint64_t units_of_piece(const Pieces& pieces, uint64_t number) const;
  int find_piece(Shard& shard, const PieceKey& key, bool is_there, Found* out);
  int set_piece(const Pieces& pieces, uint64_t number, Bytes key, Bytes value, Address before);
  void delete_piece(const UnreferencedPieces& unreferenced, uint64_t number, bool* says);
  void delete_pieces(const UnreferencedPieces& unreferenced, uint64_t count);
  // Copies bytes of the content of the pieces, key included. 0; -ESTALE: a piece is missing, so the
  // pair was set or deleted meanwhile; -EBADMSG, -errno.
  // pre: in no epoch, no RecordReader
  int read_pieces(const Pieces& pieces, uint64_t offset, void* to, uint64_t bytes);
  struct PieceRead {
    uint64_t number = 0, skip = 0, bytes = 0;  // of its content
    char* to = nullptr;
    Address address;  // of a piece on the device; 0: not known, or there are several candidates
    uint64_t life = 0;
    char* buffer = nullptr;
    iovec piece = {};
    bool done = false;
  };
  int copy_resident(const Pieces& pieces, PieceRead* read, Candidates* cold);
  int read_piece(const Pieces& pieces, PieceRead* read);
  bool finish_read(const Pieces& pieces, PieceRead* read);
  void read_at_depth(const Pieces& pieces, PieceRead* reads, unsigned count);
  Context* take_ring(unsigned* number);

  int64_t copy_key(const Record* record, void* buffer, uint64_t bytes) const;
  int64_t copy_cold_key(const Candidate& one, void* buffer, uint64_t bytes);
  int find_locked(Shard& shard, uint64_t hash, Bytes key, const HeadsRead& read, Found* out);
  enum class DamagedOwner : uint8_t { kThisKey, kOtherKey, kUnknown };
  int owner_of_damaged(Shard& shard, uint64_t hash, Bytes key, Address address, DamagedOwner* out);
  int find_replaceable(Shard& shard, uint64_t hash, Bytes key, bool deletes, Found* out);
  int guess_damaged(uint64_t hash, Bytes key, Found* out);
  void note_damage_replaced(const Found& found);
  int examine(Address address, uint64_t hash, Bytes key, bool whole, Found* out);
  // Result of set_inline: done, without room of the log.
  static constexpr int kInPlace = 1;
  int set_inline(uint64_t hash, Bytes key, Bytes value, bool may_wait);
  int make_room(Index& index, uint64_t hash);
  int prepare_large(Shard& shard, uint64_t hash, Bytes key, uint64_t bytes, Address* before);
  int set_large(uint64_t hash, Bytes key, Bytes value);
  int publish_head(Shard& shard, const Pieces& pieces, Bytes key, UnreferencedPieces* unreferenced);
  bool set_in_place(Shard& shard, const Found& found, Bytes value, bool full);
  int publish(Shard& shard, uint64_t hash, Address address, const Found& found, uint64_t bytes);
  int end_change(bool took_room);
  void drop(const Found& found);
  void give_back_empty(uint64_t segment);
  void give_back_dead();  // pre: no lock
  uint64_t units_of_notes(const Found& found) const;
  void note_replaced(Record* record, const Found& found);
  void forget_record(Address address, uint64_t units, uint64_t body_bytes = 0);
  void fill_with_body(Record* record, uint64_t units, Bytes key, Bytes value, const BodyRoom& room);
  int log_deleted(uint64_t hash, Bytes key, const Found& found, bool from_reserve, uint32_t notes);
  int64_t del_locked(Shard& shard, uint64_t hash, Bytes key, bool from_reserve,
                     UnreferencedPieces* unreferenced);
  unsigned take_marker();  // Index::kNoMarker: all are in use by walks
  void give_marker(unsigned marker) {
    markers_.fetch_and(~(1u << marker), std::memory_order_release);
  }
  int validate_index(unsigned shard, bool of_pieces, uint64_t* units, uint64_t* pieces,
                     ErrorText* why);
  int validate_entry(unsigned shard, bool of_pieces, Address address, uint64_t* units,
                     uint64_t* pieces, ErrorText* why);
  int room_for_frames();
  template <class HasRoom>
  bool lock_for_room(HasRoom has_room);
  void yield_to_writers() const;
  int room_for_segment();
  bool grows_before_cleaning() const;
  int refuse_as_full();
  int room_for_segment_locked();
  int clean(uint64_t segment);
  int clean_what_is_worth_it();
  int move_record(const Record* record, const char* segment, Address from);

  uint64_t mapping_bytes_ = 0;
  Device* device_ = nullptr;
  bool persistent_ = false;
  bool read_only_ = false;
  bool salvage_ = false;
  uint64_t lost_log_ = 0;  // salvage left out the part of this log behind lost_; 0: nothing
  LogEnd lost_;
  Rebuilt rebuilt_;                // salvage of a damaged state; otherwise empty
  uint64_t retry_damaged_at_ = 0;  // ns. Under the cleaning mutex
  std::atomic<bool> full_said_{true};
  // Live bytes when saves and cleaning no longer helped; 0: they may help. Under the cleaning mutex
  uint64_t full_at_ = 0;
  media::Superblock super_ = {};
  AtomicImage root_;
  unsigned root_bad_ = 0;         // slots that were invalid at the open: SlotReport::bad
  bool root_may_be_old_ = false;  // salvage: the newest root may be among them
  Budget budget_;
  Epochs epochs_;
  Log log_;
  Shard* shards_ = nullptr;
  unsigned shard_bits_ = 0;
  sys::Mutex random_lock_;
  class Walk* random_ = nullptr;  // where random() is; under its lock
  std::atomic<uint64_t> clears_{0};
  std::atomic<uint64_t> cleaned_{0};
  // images of shards that a save has yet to write; freed so far
  std::atomic<uint64_t> images_{0}, images_freed_{0};
  std::atomic<uint32_t> markers_{0};  // markers of Index, one bit each: in use by a walk
  // contexts by which the walks with these marks read the log
  std::atomic<Context*> scans_[Index::kMarkers] = {};
  sys::SpinLock unreferenced_lock_;
  UnreferencedSlot unreferenced_[kUnreferencedMost];
  media::UnreferencedPieces unreferenced_at_cut_[kUnreferencedMost] =
      {};  // used by the saving thread only
  uint64_t unreferenced_at_cut_count_ = 0;
  // while it opens: of the state, and of the log behind it
  GrowingArray<media::UnreferencedPieces> left_unreferenced_;
  static constexpr unsigned kRings = 4, kReadsAtDepth = 8;
  std::atomic<uint32_t> rings_busy_{0};       // one bit each
  std::atomic<Context*> rings_[kRings] = {};  // by which pieces are read
  std::atomic<uint32_t> wait_for_room_{0};    // writers
  std::atomic<uint64_t> waits_for_room_{0};   // ever
  std::atomic<uint64_t> damaged_replaced_{0};
  // one thread cleans at a time. Taken before a shard's lock, never with one held
  sys::Mutex cleaning_;
};

uint64_t hash_of(Bytes key);

// One of the shards. Counters are changed under its lock.
struct alignas(128) Shard {
  mutable sys::Mutex lock;
  // Of keys and values. Too many if the length of a damaged record was not known.
  std::atomic<uint64_t> pair_bytes{0};
  std::atomic<uint64_t> writes{0};  // number of set and del
  // While a state is being saved: the shard is as it was at the cut, and not written yet. Before
  // the first change, its thread makes an image (ShardHeader, then as in the state;
  // store_format.h).
  bool unsaved = false;
  char* image = nullptr;
  uint64_t image_bytes = 0;
  alignas(64) Index index;
  Index pieces;  // of large pairs: by PieceKey
  Index& index_of(const Record* record) { return record->is_piece() ? pieces : index; }
  // Counts bytes of pairs added and removed. Without keys the sum is 0, so errors of damaged
  // records end.
  void count_bytes(uint64_t added, uint64_t gone) {
    const uint64_t all = pair_bytes.load(std::memory_order_relaxed) + added;
    pair_bytes.store(index.entries() && all > gone ? all - gone : 0, std::memory_order_relaxed);
  }
};

inline Store::ShardLock::ShardLock(Store& store, Shard& shard) : shard_(shard) {
  store.lock_shard(shard);
}
inline Store::ShardLock::~ShardLock() { shard_.lock.unlock(); }

class LogScan;

// Iterates over all keys, in no particular order. Every key that exists from open to the end is
// returned once, however often it is set or moved by cleaning. A key that is added or removed
// meanwhile may be returned or not (and twice, if it is removed and added again). No lock is held
// between steps, so writers are not blocked. The part of the log that is only on a device is read
// first, in its order and ahead (log_scan.h). For that the walk has buffers until this part is
// read, and one of Index::kMarkers marks until close(). A walk that gets neither returns the same
// keys, with one read per key instead of one per segment.
// Threading: one thread at a time. Must not be used after the store was closed.
class Walk {
 public:
  // kByIndex: in the order of the index; each key on the device costs a read.
  enum class Order : uint8_t { kAny, kByIndex };
  [[nodiscard]] static int open(Store* store, Walk** out, Order order = Order::kAny);  // 0, -ENOMEM
  void close();
  // Returns the whole length of the next key, and copies up to `bytes` of it. -ENOENT: there are no
  // more. -ENOMEM: try again. -EIO, -EBADMSG: a key could not be read and was skipped; the walk can
  // continue.
  [[nodiscard]] int64_t next(void* buffer, uint64_t bytes);
  // Returns the length of the key that next() would return, without advancing; errors as for
  // next().
  [[nodiscard]] int64_t peek();
  // As next(), but skips keys that were deleted meanwhile.
  // pre: kByIndex
  [[nodiscard]] int64_t next_of_present(void* buffer, uint64_t bytes);

 private:
  explicit Walk(Store* store) : store_(store) {}
  const Record* next_of_scan();
  void end_scan();
  int gather();
  int append_key(const Record* record, const Store::Candidate* cold);
  static int keep_room(char** memory, uint64_t* room, uint64_t wanted);

  Store* store_;
  uint64_t clears_ = 0;  // of the store, when the keys were copied
  bool scan_begun_ = false;
  unsigned marker_ = Index::kNoMarker;  // marks the keys that scan_ has returned
  LogScan* scan_ = nullptr;             // nullptr: not begun, or over
  const Record* scanned_ = nullptr;     // for next() to return
  unsigned shard_ = 0;
  bool begun_ = false;         // with this shard: shape_ is known
  Index::Shape shape_;         //   as it was then
  uint64_t class_ = 0;         // the next one to gather
  int unreadable_ = 0;         // error of the class, to be returned next
  char* addresses_ = nullptr;  // of one class
  char* cold_ = nullptr;       //   those of them on the device: Store::Candidate
  uint64_t addresses_room_ = 0, cold_room_ = 0;
  char* keys_ = nullptr;  // of one class: uint64_t length, key, padded to 8
  uint64_t keys_room_ = 0, keys_used_ = 0, keys_at_ = 0;
};

}  // namespace lunar::kv
