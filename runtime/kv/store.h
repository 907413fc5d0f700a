// SPDX-License-Identifier: Apache-2.0
// The store: keys and values of any bytes, up to 100 GiB each, found by hash. runtime/kv/README.md has the design.
//
//   hash of the key ──► shard ──► index (index.h) ──► address ──► record in the log (record_log.h)
//
//   get, exists    no lock: an epoch (epoch.h), the index, the record
//   set, del       the lock of the key's shard. A value that fits where the old one lay replaces it there; else a new
//                  record goes to the tail of the log and the index entry is switched to it. A writer that finds no
//                  free segment cleans one first
//
// Operations on one key appear one after the other. Lengths may be 0.
// Threading: all calls from any thread, but close(), which must be the last. set and del may map memory (growth of the
// index) and may wait for another writer's cleaning; get and exists block for the device alone, when the record is not
// in DRAM.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "kv/index.h"
#include "kv/rebuild.h"
#include "kv/record_log.h"
#include "kv/store_format.h"
#include "lun/volume/atomic_image.h"

namespace lunar::kv {

// What of a store outlives it.
enum class Contents : uint8_t {
  kScratch,  // nothing
  kNew,      // what the last flush() found. The device is formatted: what it held is lost
  kKept,     // the same, and it begins with what the last flush() of the store that is on the device found
};

// When a set or del of a store that is kept is durable. What is not acknowledged yet may be, too.
enum class Durability : uint8_t {
  kFlush,  // with the next flush()
  kGroup,  // when it returns; waits a little for others, to share one write and flush with them
  kEach,   // when it returns, at once: it shares only with those that came while another was being written
};

struct StoreOptions {
  // The device of the log while the store is open. Taken over in any case: closed with the store, or at once on
  // failure. nullptr: in DRAM.
  Device* device = nullptr;
  Contents contents = Contents::kScratch;  // the others: on a device. The caller sees to it that nothing else uses it
  Durability durability = Durability::kFlush;  // the others: not of kScratch. May be another with each open
  // kGroup, kEach: a state is saved (as by flush()) when the log behind the last one has grown to so much, so that an
  // open has not to read more. 0: 1 GiB, or 8 times the state where that is more
  uint64_t replay_bytes_most = 0;
  // what records may take, in segments (16 at least). 0: all that the device has. kKept: as the store was made
  uint64_t log_bytes = kGiB;
  // of the log, a power of two from 64 KiB to 1 MiB; 0: chosen by its size and the DRAM. kKept: as the store was made
  uint64_t segment_bytes = 0;
  // all that it may use, hard. In DRAM: the log, and what is left for the index (0: a third more than log_bytes). On a
  // device: a sixteenth for the tail of the log, what the index wants, the rest for the read cache; never 0
  uint64_t dram_bytes = 0;
  uint64_t expected_keys = 1 << 20;  // a hint: the index begins small enough for a quarter of them, and grows
  // rounded up to a power of two, 1..256: how many writers can be busy at one time. kKept: as the store was made
  unsigned shards = 16;
  // kKept: nothing is written, not even to repair what a crash left; set and del give -EROFS, flush does nothing. Such
  // a store may be opened several times at once
  bool read_only = false;
  // With read_only: damage that refuses the open else. A saved state that is damaged is made up for from its sound
  // parts and the records (rebuild.h, also for the memory that takes). Of a log of durable sets that is damaged in the
  // middle, the store is what it was before the first batch that is not what was written. sweep() reports all of it.
  bool salvage = false;
};

struct StoreInfo;
struct Sweep;
struct CheckReport;

struct Shard;

// A get whose record is being read from the device: Store::cold_begin. Its caller keeps it in place meanwhile.
struct ColdGet {
  Command command;  // to be carried out by a context of Store::device()
  iovec piece = {};
  Bytes key;
  void* buffer = nullptr;
  uint64_t bytes = 0, offset = 0, hash = 0, life = 0;
  Address address;
};

class Store {
 public:
  // 0, -EINVAL, -ENOMEM (also: dram_bytes are too few), -ENOSPC (the device is too small, or has no room) with *why;
  // kKept also -ENOENT (no store is on the device), -EPROTONOSUPPORT, -EROFS (of a later version), -EBADMSG (damaged).
  [[nodiscard]] static int open(const StoreOptions& options, Store** out, ErrorText* why);
  void close();  // pre: not nullptr, no longer in use
  // In a forked child that will not use the store: closes the device's descriptors and the rings of walks, as with them
  // goes what keeps others from the device, and a deleted file its space. Nothing else may be called then.
  void abandon_in_child();

  // kGroup, kEach: a get may give a value that is not durable yet. -EIO of set, del or flush: the device refused to
  // make something durable; whether it is kept is not known, and from then on each of them gives -EIO, until the store
  // is opened again. (A large pair whose own bytes were refused has changed nothing, and does not end the writing.)
  //
  // On a device, all of these but count and the like may block for it, and return its errors (-EIO, ...) or -EBADMSG:
  // the stored bytes are not those that were written. No call ever returns a damaged byte, and the other keys are not
  // affected.
  //
  // 0; -EINVAL: longer than kPairBytesMax; -ENOSPC: the log, or (for a new key) the index, has no room. On failure
  // nothing has changed.
  // What was deleted is free: a store that holds nothing else takes a pair of all segments but those kept for cleaning
  // (3; kKept and kNew: a 24th of all, where that is more), the tail, and of kKept and kNew two saved states (each as
  // many as it fills and one more); of kGroup and kEach two tails to come. A large pair wants its segments in one
  // row, and other large pairs never move: -ENOSPC where no row between them is long enough.
  [[nodiscard]] int set(Bytes key, Bytes value);
  // Length of the whole value; of it, from `offset` on, up to `bytes` are copied. -ENOENT.
  [[nodiscard]] int64_t get(Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  [[nodiscard]] int64_t exists(Bytes key) { return get(key, nullptr, 0, 0); }
  // Length of the value that was there. -ENOENT. -ENOSPC: kGroup and kEach alone, of a store that is full to the last.
  // -EBADMSG: a record that may be the key's is damaged, and what of it can be read does not name the key. Nothing has
  // changed, as it may be another's; a set takes its place.
  [[nodiscard]] int64_t del(Bytes key);
  // The same where that takes neither the device, cleaning nor a large pair; else -EAGAIN, and nothing has happened.
  [[nodiscard]] int64_t get_now(Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  [[nodiscard]] int set_now(Bytes key, Bytes value);
  bool on_device() const { return log_.on_device(); }
  // get() in two steps, for one thread that has many under way. cold_begin: -EINPROGRESS: get->command is to be carried
  // out, and then cold_finish() called with what it moved, or -errno, exactly once. Both: the result; -EAGAIN: only
  // get() can tell (a large pair, several candidates, a record that moved or is damaged). -ENOBUFS: no buffer is free.
  [[nodiscard]] int64_t cold_begin(ColdGet* get, Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  [[nodiscard]] int64_t cold_finish(ColdGet* get, int64_t moved);
  bool reads_in_steps() const { return log_.on_device() && log_.fit_blocks(); }  // as a rule
  // What such commands go to, and the memory they read into; nullptr in DRAM.
  Device* device() const { return device_; }
  iovec read_window() const { return {log_.blocks(), log_.blocks_bytes()}; }
  // Makes what the store holds durable: it is what a later open with kKept finds, after any crash, until another flush
  // has come to its end. Writers go on, but for a moment; it takes one write of what is not on the device yet,
  // one of the index (some 10 bytes a key) and two flushes of the device, of which one that fails is the last: -EIO
  // from then on. A writer that needs space to which the durable state still refers flushes by itself. 0 (also when
  // contents is kScratch); -ENOSPC, -EIO and the like: the durable state is the one before, or this one.
  [[nodiscard]] int flush();
  // Cleans as long as that gives segments back, and flushes. For a store that is kept. 0; -errno of the device, -EROFS.
  [[nodiscard]] int compact();
  // An arbitrary key: returns its length and copies up to `bytes` of it. -ENOENT: there is none.
  [[nodiscard]] int64_t random(void* buffer, uint64_t bytes);

  uint64_t count() const;                                        // keys
  uint64_t bytes_allocated() const { return log_.bytes(); }      // what the log can hold
  uint64_t bytes_in_use() const { return log_.bytes_in_use(); }  //   of it, in segments that are not free
  uint64_t bytes_actual() const;                                 // of keys and values
  // get, exists, set, del, random and steps of walks, ever
  uint64_t operations() const;
  uint64_t commits() const { return log_.commits_done(); }  // of kGroup and kEach, ever
  uint64_t device_ios() const { return log_.ios(); }        // reads and writes of the device, ever
  // How often a set or delete found no segment free, so that it had to clean or save, or wait for that.
  uint64_t waits_for_room() const { return waits_for_room_.load(std::memory_order_relaxed); }
  // live bytes that cleaning moved, ever
  uint64_t cleaned_bytes() const { return cleaned_.load(std::memory_order_relaxed); }
  uint64_t dram_used() const { return budget_.used(); }
  uint64_t index_bytes() const;

  void info(StoreInfo* out);  // inspect.h
  // Damaged records whose place a set or delete has taken since the open.
  uint64_t damaged_replaced() const { return damaged_replaced_.load(std::memory_order_relaxed); }
  // Reads everything that the saved state refers to, in the order of the device, and tells of each thing that is not as
  // it was written, and of each pair. Pre: read_only. Takes 8 bytes of memory a key and one a segment in addition to
  // dram_bytes, and what a large pair takes. 0, also when there is damage (*out counts it); -EINVAL, -ENOMEM,
  // -ECANCELED (on_pair ended it).
  [[nodiscard]] int sweep(const Sweep& sweep, CheckReport* out);

  // Whole-structure check: every index entry leads to a record of that hash, and live counts are right. No thread may
  // write meanwhile. 0 or -EBADMSG with *why.
  [[nodiscard]] int validate(ErrorText* why);

 private:
  friend class Walk;
  friend class LogScan;
  friend class Sweeper;
  friend class Rebuilder;
  // What an entry that is a key's leads to. place == nullptr: there is none.
  struct Found {
    std::atomic<uint64_t>* place = nullptr;
    Address address;
    uint64_t units = 0, pair_bytes = 0, value_bytes = 0;
    LargePlace run = {};   // count 0: none
    bool damaged = false;  // it cannot be read, and is taken for the key's
  };
  // An entry whose record is to be read from the device, as found under an epoch. place.count != 0: the record itself
  // is not.
  struct Candidate {
    Address address;
    uint64_t life = 0;
    LargePlace place = {};
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
  int load_shard(class StateReader& state, unsigned number, uint32_t* entries);
  int load_shards(class StateReader& state);
  int begin_commits(const StoreOptions& options, ErrorText* why);
  // replay.cpp
  struct LogEnd {
    uint64_t number = 0;           // of the batch that is not there
    uint64_t segment = 0, at = 0;  // where it would be
    uint32_t next[2] = {0, 0};     // behind that segment; + 1
  };
  int replay(const media::Root& root, ErrorText* why);
  int replay_segment(uint64_t log, char* memory, LogEnd* end, uint64_t* life);
  template <class Visit>
  int visit_later(uint64_t log, const LogEnd& end, Visit visit);
  int find_later(uint64_t log, const LogEnd& end, ErrorText* why);
  // Of what salvage has left out. record: sound, of a set or delete; nullptr: a batch that is not what was written.
  using OnLost = void (*)(void* context, const Record* record, uint64_t segment, uint64_t at);
  int visit_lost(void* context, OnLost on_lost);
  int apply(Record* record, Address address);
  std::atomic<uint64_t>* find_moved(Shard& shard, uint64_t hash, const Record* record, Address* from);
  std::atomic<uint64_t>* find_doubtful(Shard& shard, uint64_t hash, Address* at, uint64_t* units);
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
  class ShardLock {  // a writer's
   public:
    ShardLock(Store& store, Shard& shard);
    ~ShardLock();
    ShardLock(const ShardLock&) = delete;
    ShardLock& operator=(const ShardLock&) = delete;

   private:
    Shard& shard_;
  };
  struct TriesForSpace {
    bool for_one_segment = false;
    unsigned poor = 0;  // segments with little dead space that were cleaned
    uint64_t best = 0;  // segments that were free after one
    unsigned fruitless = 0;
  };
  enum class Gain : uint8_t { kDone, kWait, kFull, kOver };
  Gain gain_segment(bool may_clean, TriesForSpace* tries, int* error);
  int save_for_space(TriesForSpace* tries);
  uint64_t bytes_live() const { return bytes_actual() + count() * sizeof(Record); }
  int write_state(media::Root* root);
  uint64_t state_bytes() const;
  Shard& shard_of(uint64_t hash) const;
  // key_of, is_key: of a record in DRAM or a buffer; of a large pair only when its run lies in DRAM.
  Bytes key_of(const Record* record) const;
  bool is_key(const Record* record, uint64_t hash, Bytes key) const;
  int is_key_of_run(const LargePlace& place, uint64_t hash, Bytes key);
  uint64_t hash_of_record(const Record* record) const;
  bool lives(uint64_t hash, Address address);  // the index leads to it. Pre: in no epoch
  int64_t get_resident(uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset, Candidates* cold);
  int64_t get_cold(const Candidate& one, uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  int64_t get_locked(uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  // The record when all of the pair lies in DRAM; else nullptr and *cold. Pre: in the epoch in which the index gave the
  // address.
  Record* resident(Address address, Candidate* cold) const;
  int64_t copy_key(const Record* record, void* buffer, uint64_t bytes) const;
  int64_t copy_cold_key(const Candidate& one, void* buffer, uint64_t bytes);
  int64_t random_of(const Index& index, const Index::Shape& shape, uint64_t bucket, uint64_t number, void* buffer,
                    uint64_t bytes);
  int find_locked(Shard& shard, uint64_t hash, Bytes key, Found* out);
  enum class Whose : uint8_t { kKeys, kAnothers, kUnknown };
  Whose whose_damaged(Shard& shard, uint64_t hash, Bytes key, Address address);
  int find_replaceable(Shard& shard, uint64_t hash, Bytes key, bool deletes, Found* out);
  void guess_damaged(uint64_t hash, Bytes key, Found* out);
  void believe_lengths(uint64_t hash, Bytes key, Found* out);
  LargePlace run_of_damaged(uint64_t hash, Bytes key, Address address);
  void note_damage_replaced(const Found& found);
  int examine(Address address, uint64_t hash, Bytes key, Found* out);
  static constexpr int kInPlace = 1;  // of set_inline: done, and no room of the log was taken
  int set_inline(uint64_t hash, Bytes key, Bytes value, bool may_wait);
  int set_large(uint64_t hash, Bytes key, Bytes value);
  bool set_in_place(Shard& shard, const Found& found, Bytes value, bool full);
  int publish(Shard& shard, uint64_t hash, Address address, const Found& found, uint64_t bytes);
  int end_change(bool took_room);
  void drop(const Found& found);
  uint64_t units_of_notes(const Found& found) const;
  void note_replaced(Record* record, const Found& found);
  void forget_record(Address address, uint64_t units);
  int log_deleted(uint64_t hash, Bytes key, const Found& found, bool from_reserve);
  int64_t del_locked(Shard& shard, uint64_t hash, Bytes key, bool from_reserve);
  unsigned take_marker();  // Index::kNoMarker: walks have all of them
  void give_marker(unsigned marker) { markers_.fetch_and(~(1u << marker), std::memory_order_release); }
  int validate_entry(unsigned shard, Address address, uint64_t* units, uint64_t* runs, ErrorText* why);
  int room_for_frames();
  template <class HasRoom>
  bool lock_for_room(HasRoom has_room);
  void yield_to_writers() const;
  int room_for_segment();
  int room_for_segment_locked();
  int room_for_run(uint64_t count, uint64_t* first);
  int clean(uint64_t segment);
  int clean_what_is_worth_it();
  int move_record(const Record* record, Address from);
  int empty_window();
  int make_run(uint64_t count, uint64_t* first);
  int reserve_window(uint64_t count, uint64_t* first);

  uint64_t mapping_bytes_ = 0;
  Device* device_ = nullptr;
  bool kept_ = false;
  bool read_only_ = false;
  bool salvage_ = false;
  uint64_t lost_log_ = 0;  // salvage has left out what is behind lost_ in that log; 0: nothing
  LogEnd lost_;
  Rebuilt rebuilt_;       // salvage of a damaged state; else empty
  uint64_t full_at_ = 0;  // bytes that lived when saves or cleaning did not help any more. Under the cleaning mutex
  media::Superblock super_ = {};
  AtomicImage root_;
  unsigned root_bad_ = 0;  // slots that were out of form at open: SlotReport::bad
  Budget budget_;
  Epochs epochs_;
  Log log_;
  Shard* shards_ = nullptr;
  unsigned shard_bits_ = 0;
  std::atomic<uint64_t> randoms_{0};
  std::atomic<uint64_t> cleaned_{0};
  std::atomic<uint64_t> images_{0}, images_freed_{0};  // of shards, that a save has yet to write; ever freed
  std::atomic<uint32_t> markers_{0};                   // of Index, a bit each: a walk has it
  std::atomic<Context*> scans_[Index::kMarkers] = {};  // by which the walk that has that mark reads the log
  std::atomic<uint32_t> wait_for_room_{0};             // writers
  std::atomic<uint64_t> waits_for_room_{0};            // ever
  std::atomic<uint64_t> damaged_replaced_{0};
  sys::Mutex cleaning_;  // one cleans at a time. Taken before a shard's lock, never with one
};

uint64_t hash_of(Bytes key);

// One of the shards. Counters are changed under its lock.
struct alignas(128) Shard {
  mutable sys::Mutex lock;
  std::atomic<uint64_t> pair_bytes{0};  // keys and values; too many where a damaged record's length was not known
  std::atomic<uint64_t> writes{0};      // set and del
  // While a state is saved: this shard is as it was at the cut, and not in it yet. The first to change it makes an
  // image before (ShardHeader, then as the state has it; store_format.h).
  bool unsaved = false;
  char* image = nullptr;
  uint64_t image_bytes = 0;
  alignas(64) Index index;
  // Pairs of so many bytes came and went. Where there is no key left there are none, whatever damaged records were.
  void count_bytes(uint64_t added, uint64_t gone) {
    const uint64_t all = pair_bytes.load(std::memory_order_relaxed) + added;
    pair_bytes.store(index.entries() && all > gone ? all - gone : 0, std::memory_order_relaxed);
  }
};

inline Store::ShardLock::ShardLock(Store& store, Shard& shard) : shard_(shard) { store.lock_shard(shard); }
inline Store::ShardLock::~ShardLock() { shard_.lock.unlock(); }

class LogScan;

// Iterates over all keys, in no order: every key that exists from open to the end comes once, however often it is set
// and cleaning moves it; one that is added or removed meanwhile may or may not (and, removed and added again, may come
// twice). Holds no lock between steps: writers go on. What of the log lies on a device alone is read first, in its
// order and ahead (log_scan.h). Its buffers and one of Index::kMarkers marks are the walk's until close(), the buffers
// until that part is over; a walk that gets none of either reads those records one by one: the same keys, with a read a
// key instead of one a segment.
// Threading: one thread at a time. Not to be used after the store's close.
class Walk {
 public:
  [[nodiscard]] static int open(Store* store, Walk** out);  // 0, -ENOMEM
  void close();
  // The next key: its whole length. Up to `bytes` of it are copied. -ENOENT: that was all. -ENOMEM: try again. -EIO,
  // -EBADMSG: a key that cannot be read was left out; the walk goes on.
  [[nodiscard]] int64_t next(void* buffer, uint64_t bytes);
  // The length of the key that next() would give, without going on; errors as there.
  [[nodiscard]] int64_t peek();

 private:
  explicit Walk(Store* store) : store_(store) {}
  const Record* next_of_scan();
  void end_scan();
  int gather();
  int append_key(const Record* record, const Store::Candidate* cold);
  static int keep_room(char** memory, uint64_t* room, uint64_t wanted);

  Store* store_;
  bool scan_begun_ = false;
  unsigned marker_ = Index::kNoMarker;  // whose marks say what scan_ has given
  LogScan* scan_ = nullptr;             // nullptr: not begun, or over
  const Record* scanned_ = nullptr;     // that next() is to give
  unsigned shard_ = 0;
  bool begun_ = false;         // of this shard: shape_ is known
  Index::Shape shape_;         //   as it was then
  uint64_t class_ = 0;         // next to gather
  int unreadable_ = 0;         // of the class: to be told of next
  char* addresses_ = nullptr;  // of one class
  char* cold_ = nullptr;       //   and of them, what lies on the device: Store::Candidate
  uint64_t addresses_room_ = 0, cold_room_ = 0;
  char* keys_ = nullptr;  // of one class: uint64_t length, key, padded to 8
  uint64_t keys_room_ = 0, keys_used_ = 0, keys_at_ = 0;
};

}  // namespace lunar::kv
