// SPDX-License-Identifier: Apache-2.0
// The hash index of one shard: from the hash of a key to the addresses of records that may have
// that key.
//
//   entry             │ tag: 24 bits of the hash │ address: 40 bits │    8 bytes; 0: empty
//   bucket            │ entry × 7 │ link │                             one cache line
//   overflow bucket   │ entry × 3 │ link │                             half a line: the overflow
//   link              │ marks of the entries, kMarkers bits each │ number: 29 bits │
//
// A bucket of 7 has 7.2 entries on average. Most chains then have an overflow bucket, but as these
// are small, the index takes 11.4 to 11.9 bytes per entry, and a hit looks at 1.2 to 1.3 cache
// lines (DECISIONS.md has other loads).
//
// The index grows one bucket at a time (linear hashing): bucket `split` gives half of its entries
// to the new last bucket, then split moves on; after a round of 2^level splits there are twice as
// many buckets. So growth stops the shard for no longer than one bucket takes, and the number of
// entries per bucket stays the same. Choosing the half reads no key, because the bits of the hash
// that later rounds need are in the tag. Those bits no longer tell keys apart within a bucket;
// kGrowBits of the 24 may be used up.
//
//   buckets of a hash at (level, split): low bits of  │ tag │ bits_ bits of the hash beyond it │
//
// Readers take no lock. A hit is always valid. A miss counts only if no entry was moved meanwhile:
// `moves` is odd during a split and has another value afterwards, which makes the reader look
// again.
// A mark says that a walk (log_scan.h) has returned the key of the entry. It stays with the entry,
// whatever address that gets and wherever a split moves it; a new entry has none.
// Threading: find, collect: any. Everything else: the holder of the shard's lock. Buckets are not
// freed before close, so a reader may look at one that has become part of another chain: it
// compares what it finds there with its key.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "kv/budget.h"
#include "kv/record.h"
#include "sys/fatal.h"

namespace lunar::kv {

template <unsigned kWords>
struct alignas(kWords * sizeof(uint64_t)) BucketOf {
  static constexpr unsigned kEntries = kWords - 1;
  std::atomic<uint64_t> entries[kEntries];
  std::atomic<uint64_t> link;  // marks; number + 1 of an overflow bucket, 0: none
};
using Bucket = BucketOf<8>;
using OverflowBucket = BucketOf<4>;
static_assert(sizeof(Bucket) == 64 && sizeof(OverflowBucket) == 32);

// Buckets by number, at addresses that never change. Memory is mapped in parts, each as large as
// all before it together, and charged to the budget by the bucket.
template <class B>
class BucketArray {
 public:
  void open(unsigned bits, Budget* budget) {
    bits_ = bits;
    budget_ = budget;
  }
  void close();
  // Grows the array to `count` buckets; the new ones are empty. 0; -ENOMEM, also if the budget is
  // used up.
  // pre: the lock
  [[nodiscard]] int grow(uint64_t count);
  static constexpr uint64_t count_most(unsigned bits) { return uint64_t{1} << (bits + kParts - 1); }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  B& at(uint64_t number) const {
    const unsigned part =
        number >> bits_ ? 64 - static_cast<unsigned>(__builtin_clzll(number)) - bits_ : 0;
    return parts_[part].load(
        std::memory_order_acquire)[part ? number - (uint64_t{1} << (bits_ + part - 1)) : number];
  }

 private:
  static constexpr unsigned kParts = 20;
  uint64_t part_bytes(unsigned part) const {
    return sizeof(B) << (part ? bits_ + part - 1 : bits_);
  }
  unsigned bits_ = 0;
  std::atomic<uint64_t> count_{0};  // also read without the lock, for the size of a saved state
  Budget* budget_ = nullptr;
  std::atomic<B*> parts_[kParts] = {};
};

class Index {
 public:
  static constexpr unsigned kTagBits = 24, kGrowBits = 16, kBitsMax = 24, kBitsMin = 4;
  struct Shape {
    unsigned level = 0;
    uint64_t split = 0;
    uint64_t buckets() const { return (uint64_t{1} << level) + split; }
  };

  // Starts with 2^bits buckets. 0 or -ENOMEM.
  [[nodiscard]] int open(unsigned bits, Budget* budget);
  void close();  // it may be opened again
  void clear();  // takes all entries out; the shape stays. Pre: the lock

  void prefetch(uint64_t hash) const {
    __builtin_prefetch(&primary_.at(bucket_of(hash_bits(hash), shape())));
  }
  // Calls match(Address) for the records that may have the key, until it returns true. Returns
  // whether it did.
  template <class Match>
  bool find(uint64_t hash, Match match) const {
    for (;;) {
      const uint64_t moves = moves_.load(std::memory_order_seq_cst);
      if (find_entry(hash, match)) return true;
      if ((moves & 1) == 0 && moves_.load(std::memory_order_seq_cst) == moves) return false;
      pause();
    }
  }
  // The same for the holder of the lock. Returns the place of the entry, or nullptr.
  template <class Match>
  std::atomic<uint64_t>* find_entry(uint64_t hash, Match match) const {
    const uint64_t tag = tag_of(hash);
    return find_place(
        primary_.at(bucket_of(hash_bits(hash), shape())), [&](const std::atomic<uint64_t>& place) {
          const uint64_t entry = place.load(std::memory_order_seq_cst);
          return entry >> kAddressBits == tag && entry != 0 && match(address_of(entry));
        });
  }
  static Address address_in(const std::atomic<uint64_t>& place) {
    return address_of(place.load(std::memory_order_relaxed));
  }
  static void replace(std::atomic<uint64_t>* place, Address address) {
    const uint64_t tag = place->load(std::memory_order_relaxed) >> kAddressBits;
    place->store(tag << kAddressBits | address.value, std::memory_order_seq_cst);
  }
  void erase(std::atomic<uint64_t>* place) {
    place->store(0, std::memory_order_seq_cst);
    entries_.store(entries() - 1, std::memory_order_relaxed);
  }
  // 0, or -ENOMEM: no bucket is free. After make_room returned 0, the next insert of that hash
  // succeeds. Without memory both take a bucket that deletes left empty in another chain; make_room
  // looks for one in kChainsALook chains.
  [[nodiscard]] int insert(uint64_t hash, Address address);
  [[nodiscard]] int make_room(uint64_t hash);
  // Makes up for a split that found no memory, if the load is clearly above its limit. 0, or
  // -ENOMEM: there is still no memory.
  [[nodiscard]] int keep_load();

  // Marks of the entries, for kMarkers walks at a time. clear_marks: clears those of bucket
  // `number` and its chain. mark: marks an entry; false if the index has no entry with that hash
  // and address, or it is marked already.
  // pre of both: the lock
  static constexpr unsigned kMarkers = 5, kNoMarker = kMarkers;
  void clear_marks(uint64_t number, unsigned marker);
  [[nodiscard]] bool mark(uint64_t hash, Address address, unsigned marker);

  // For walks. A class of a shape is the set of entries that were in one bucket when the index had
  // that shape. Splits that move them later do not change the class.
  Shape shape() const {
    const uint64_t packed = shape_.load(std::memory_order_seq_cst);
    return {static_cast<unsigned>(packed >> 56), packed & ((uint64_t{1} << 56) - 1)};
  }
  // Copies the addresses of all entries of a class that `marker` has not marked to `out`, at most
  // `max`. Returns how many there are (if more than max: call again with more room).
  uint64_t collect(const Shape& from, uint64_t number, Address* out, uint64_t max,
                   unsigned marker = kNoMarker) const;
  // For the saved state: visits the entries of bucket `number` and its chain as they are.
  // pre: the lock
  template <class Visit>
  void for_bucket(uint64_t number, Visit visit) const {
    (void)find_place(primary_.at(number), [&](const std::atomic<uint64_t>& place) {
      if (const uint64_t entry = place.load(std::memory_order_relaxed)) visit(entry);
      return false;
    });
  }
  // Gives an index that is being loaded the shape of a saved one with the same bits(), that had so
  // many buckets and entries. The entries that restore() then inserts take no more memory than they
  // took there. 0, -ENOMEM, or -EBADMSG: no index has so many buckets.
  // pre: no entry yet
  [[nodiscard]] int resume(uint64_t buckets, uint64_t entries);
  // Inserts a saved entry without a split. 0, or -ENOMEM: no bucket is free.
  [[nodiscard]] int restore(uint64_t bucket, uint64_t entry) {
    const uint64_t known = bucket & ((uint64_t{1} << bits_) - 1);
    return add(known << kTagBits | entry >> kAddressBits, address_of(entry));
  }
  static Address address_in(uint64_t entry) { return address_of(entry); }
  unsigned bits() const { return bits_; }
  uint64_t buckets() const { return primary_.count(); }
  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }
  uint64_t bytes() const {
    return primary_.count() * sizeof(Bucket) + overflow_.count() * sizeof(OverflowBucket);
  }
  // Whether every entry is where a reader looks for it, and their number is right. For tests.
  // pre: the lock
  bool validate() const;

 private:
  static uint64_t tag_of(uint64_t hash) { return hash & ((uint64_t{1} << kTagBits) - 1); }
  static Address address_of(uint64_t entry) {
    return Address{entry & ((uint64_t{1} << kAddressBits) - 1)};
  }
  uint64_t hash_bits(uint64_t hash) const {
    return tag_of(hash) << bits_ | (hash >> kTagBits & ((uint64_t{1} << bits_) - 1));
  }
  static uint64_t bucket_of(uint64_t bits, const Shape& shape) {
    const uint64_t low = bits & ((uint64_t{1} << shape.level) - 1);
    return low < shape.split ? bits & ((uint64_t{2} << shape.level) - 1) : low;
  }
  static constexpr unsigned kLinkBits = 29, kOverflowBits = 6;
  static constexpr uint64_t kLinkMask = (uint64_t{1} << kLinkBits) - 1,
                            kMarkMask = (1u << kMarkers) - 1;
  static_assert(kLinkBits + kMarkers * Bucket::kEntries <= 64);
  static_assert(BucketArray<OverflowBucket>::count_most(kOverflowBits) <= kLinkMask);
  OverflowBucket* linked(const std::atomic<uint64_t>& word) const {
    const uint64_t link = word.load(std::memory_order_seq_cst) & kLinkMask;
    return link ? &overflow_.at(link - 1) : nullptr;
  }
  // The first place in a chain that matches, or nullptr.
  template <class Match>
  std::atomic<uint64_t>* find_place(Bucket& bucket, Match match) const {
    for (std::atomic<uint64_t>& place : bucket.entries)
      if (match(place)) return &place;
    for (OverflowBucket* more = linked(bucket.link); more; more = linked(more->link))
      for (std::atomic<uint64_t>& place : more->entries)
        if (match(place)) return &place;
    return nullptr;
  }
  // The places of a chain, one after the other.
  class Cursor {
   public:
    Cursor(const Index& index, Bucket& bucket)
        : index_(index), at_(bucket.entries), link_(&bucket.link) {}
    explicit operator bool() const { return at_ != nullptr; }
    std::atomic<uint64_t>& operator*() const {
      LUNAR_DCHECK(at_ != nullptr);
      return *at_;
    }
    std::atomic<uint64_t>* link() const { return link_; }  // of the bucket that the cursor is in
    uint64_t marks() const { return link_->load(std::memory_order_seq_cst) >> shift() & kMarkMask; }
    void set_marks(uint64_t marks) const {
      if (this->marks() == marks) return;
      const uint64_t others = link_->load(std::memory_order_relaxed) & ~(kMarkMask << shift());
      link_->store(others | marks << shift(), std::memory_order_seq_cst);
    }
    void operator++() {
      if (++at_ != link_) return;  // the link follows the last entry
      OverflowBucket* more = index_.linked(*link_);
      at_ = more ? more->entries : nullptr;
      if (more) link_ = &more->link;
    }

   private:
    unsigned shift() const { return kLinkBits + kMarkers * static_cast<unsigned>(link_ - at_ - 1); }
    const Index& index_;
    std::atomic<uint64_t>*at_, *link_;
  };
  static void pause();
  [[nodiscard]] int add(uint64_t hash, Address address);
  [[nodiscard]] int split();
  [[nodiscard]] int spare_overflow(uint64_t count, uint64_t chains_most);
  bool gain_overflow(uint64_t chains_most);
  std::atomic<uint64_t>* fill_gap(Bucket* bucket, uint64_t entry, uint64_t marks);
  void put(Bucket* bucket, uint64_t entry, uint64_t marks);
  void append(std::atomic<uint64_t>* last, uint64_t entry, uint64_t marks);
  void close_gaps(Bucket* first);
  bool chain_is_right(uint64_t number, uint64_t* entries) const;

  unsigned bits_ = 0;
  std::atomic<uint64_t> shape_{0};  // level << 56 | split
  std::atomic<uint64_t> moves_{0};
  std::atomic<uint64_t> entries_{0};
  // overflow buckets in no chain: number + 1 of the first, linked; how many
  uint64_t spare_ = 0, spares_ = 0;
  uint64_t looked_at_ = 0;  // the bucket where gain_overflow continues
  BucketArray<Bucket> primary_;
  BucketArray<OverflowBucket> overflow_;
};

}  // namespace lunar::kv
