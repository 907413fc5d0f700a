// SPDX-License-Identifier: Apache-2.0
// The store: keys and values of any bytes, up to 100 GiB each, found by hash. runtime/kv/README.md has the design.
//
//   hash of the key ──► shard ──► index (index.h) ──► address ──► record in the log (log.h)
//
//   get, exists    no lock: an epoch (epoch.h), the index, the record
//   set, del       the lock of the key's shard. A value that fits where the old one lay replaces it there; else a new record goes to the
//                  tail of the log and the index entry is switched to it. A writer that finds no free segment cleans one first
//
// A key is as if all its operations came one after the other. Lengths may be 0.
// Threading: all calls from any thread, but close(), which must be the last. set and del may map memory (growth of the index) and may
// wait for another writer's cleaning; get and exists never block.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "kv/index.h"
#include "kv/log.h"

namespace lunar::kv {

struct StoreOptions {
  uint64_t log_bytes = kGiB;         // what records may take, rounded up to segments (16 at least)
  uint64_t dram_bytes = 0;           // all that it may use, hard: the log, and what is left for the index. 0: a third more than log_bytes
  uint64_t expected_keys = 1 << 20;  // a hint: the index begins small enough for a quarter of them, and grows
  unsigned shards = 16;              // rounded up to a power of two, 1..256: how many writers can be busy at one time
};

struct Shard;

class Store {
 public:
  // 0, -EINVAL, -ENOMEM (also: dram_bytes are too few for log_bytes) with *why.
  [[nodiscard]] static int open(const StoreOptions& options, Store** out, ErrorText* why);
  void close();   // nullptr is not fine. Nobody uses it any more

  // 0; -EINVAL: longer than kPairBytesMax; -ENOSPC: neither the log nor (for a new key) the index has room. Then nothing has changed.
  [[nodiscard]] int set(Bytes key, Bytes value);
  // Length of the whole value; of it, from `offset` on, up to `bytes` are copied. -ENOENT.
  [[nodiscard]] int64_t get(Bytes key, void* buffer, uint64_t bytes, uint64_t offset);
  [[nodiscard]] int64_t exists(Bytes key) { return get(key, nullptr, 0, 0); }
  // Length of the value that was there. -ENOENT.
  [[nodiscard]] int64_t del(Bytes key);
  // Some key, as good as any: its whole length, of which up to `bytes` are copied. -ENOENT: there is none.
  [[nodiscard]] int64_t random(void* buffer, uint64_t bytes);

  uint64_t count() const;                                       // keys
  uint64_t bytes_allocated() const { return log_.bytes(); }     // what the log can hold
  uint64_t bytes_in_use() const { return log_.bytes_in_use(); } //   of it, in segments that are not free
  uint64_t bytes_actual() const;                                // of keys and values
  uint64_t operations() const;                                  // get, exists, set, del, random and steps of walks, ever
  uint64_t cleaned_bytes() const { return cleaned_.load(std::memory_order_relaxed); }   // live bytes that cleaning moved, ever
  uint64_t dram_used() const { return budget_.used(); }
  uint64_t index_bytes() const;

  // Whole-structure check: every index entry leads to a record of that hash, and what counts as live lives. Nobody may write
  // meanwhile. 0 or -EBADMSG with *why.
  [[nodiscard]] int validate(ErrorText* why);

 private:
  friend class Walk;
  Store() = default;
  int start(const StoreOptions& options, ErrorText* why);
  Shard& shard_of(uint64_t hash) const;
  bool is_key(const Record* record, uint64_t hash, Bytes key) const;
  std::atomic<uint64_t>* find_locked(Shard& shard, uint64_t hash, Bytes key) const;
  uint64_t value_bytes_of(const Record* record) const;
  uint64_t key_bytes_of(const Record* record) const { return key_of(record).size; }
  Bytes key_of(const Record* record) const;
  uint64_t hash_of_record(const Record* record) const;
  int set_inline(uint64_t hash, Bytes key, Bytes value);
  int set_large(uint64_t hash, Bytes key, Bytes value);
  int publish(Shard& shard, uint64_t hash, Address address, std::atomic<uint64_t>* place, uint64_t bytes);
  void drop(Address address);
  int room_for_segment();
  int room_for_run(uint64_t count, uint64_t* first);
  int clean(uint64_t segment);
  int move_record(const Record* record, Address from);
  int make_run(uint64_t count, uint64_t* first);
  int hold_window(uint64_t count, uint64_t* first);

  uint64_t mapping_bytes_ = 0;
  Budget budget_;
  Epochs epochs_;
  Log log_;
  Shard* shards_ = nullptr;
  unsigned shard_bits_ = 0;
  std::atomic<uint64_t> randoms_{0};
  std::atomic<uint64_t> cleaned_{0};
  sys::Mutex cleaning_;          // one cleans at a time. Taken before a shard's lock, never with one
};

uint64_t hash_of(Bytes key);

// One of the shards. Counters are changed under its lock.
struct alignas(128) Shard {
  mutable sys::Mutex lock;
  std::atomic<uint64_t> pair_bytes{0};   // keys and values
  std::atomic<uint64_t> writes{0};       // set and del
  alignas(64) Index index;
};

// Goes through all keys, in no order: every key that is there from open to the end comes once; one that comes or goes
// meanwhile may or may not. Holds nothing between steps: writers go on.
// Threading: one thread at a time. Not to be used after the store's close.
class Walk {
 public:
  [[nodiscard]] static int open(Store* store, Walk** out);   // 0, -ENOMEM
  void close();
  // The next key: its whole length. Up to `bytes` of it are copied. -ENOENT: that was all. -ENOMEM: try again.
  [[nodiscard]] int64_t next(void* buffer, uint64_t bytes);
  // The length of the key that next() would give, without going on: -ENOENT, -ENOMEM.
  [[nodiscard]] int64_t peek();

 private:
  explicit Walk(Store* store) : store_(store) {}
  int gather();
  static int keep_room(char** memory, uint64_t* room, uint64_t wanted);

  Store* store_;
  unsigned shard_ = 0;
  bool begun_ = false;              // of this shard: shape_ is known
  Index::Shape shape_;              //   as it was then
  uint64_t class_ = 0;              // next to gather
  char* addresses_ = nullptr;       // of one class
  uint64_t addresses_room_ = 0;
  char* keys_ = nullptr;            // of one class: uint64_t length, key, padded to 8
  uint64_t keys_room_ = 0, keys_used_ = 0, keys_at_ = 0;
};

}  // namespace lunar::kv
