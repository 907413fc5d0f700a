// SPDX-License-Identifier: Apache-2.0
// The hash index of one shard: see index.h.
// Threading: as there. May: map memory (growth). May not: block.
#include "kv/index.h"

#include <errno.h>

#include <algorithm>
#include <type_traits>

#include "sys/arena.h"
#include "sys/thread.h"

namespace lunar::kv {
namespace {

// The mean number of entries per bucket, in tenths, above which a bucket is added.
constexpr uint64_t kEntriesABucket10 = 72;
constexpr uint64_t kChainsALook = 128;    // for a writer that holds the lock: some 10 us
constexpr uint64_t kEntryBytesMost = 12;  // at that load, at any point of a round of splits

template <class B>
bool take(Budget* budget, uint64_t bytes) {
  return std::is_same_v<B, OverflowBucket> ? budget->take_for_chains(bytes)
                                           : budget->take_for_index(bytes);
}

bool is_empty(const std::atomic<uint64_t>& place) {
  return place.load(std::memory_order_relaxed) == 0;
}

}  // namespace

template <class B>
void BucketArray<B>::close() {
  for (unsigned part = 0; part < kParts; ++part) {
    if (B* memory = parts_[part].exchange(nullptr)) unmap_private(memory, part_bytes(part));
  }
  if (budget_) budget_->give_back(count() * sizeof(B));
  count_.store(0, std::memory_order_relaxed);
}

template <class B>
int BucketArray<B>::grow(uint64_t count) {
  const uint64_t more = count - this->count();
  if (count <= this->count()) return 0;
  const uint64_t last = count - 1;
  const unsigned parts =
      last >> bits_ ? 65 - static_cast<unsigned>(__builtin_clzll(last)) - bits_ : 1;
  if (parts > kParts || !take<B>(budget_, more * sizeof(B))) return -ENOMEM;
  for (unsigned part = 0; part < parts; ++part) {
    if (parts_[part].load(std::memory_order_relaxed)) continue;
    // Zeros are empty buckets.
    auto* memory = static_cast<B*>(map_private(part_bytes(part), ForkPolicy::kInherit));
    if (!memory) {
      budget_->give_back(more * sizeof(B));
      return -ENOMEM;
    }
    parts_[part].store(memory, std::memory_order_release);
  }
  count_.store(count, std::memory_order_relaxed);
  return 0;
}

int Index::open(unsigned bits, Budget* budget) {
  bits_ = bits;
  primary_.open(bits, budget);
  overflow_.open(kOverflowBits, budget);
  shape_.store(uint64_t{bits} << 56, std::memory_order_relaxed);
  return primary_.grow(uint64_t{1} << bits);
}

void Index::close() {
  primary_.close();
  overflow_.close();
  shape_.store(0, std::memory_order_relaxed);
  entries_.store(0, std::memory_order_relaxed);
  spare_ = spares_ = looked_at_ = 0;
}

void Index::clear() {
  for (uint64_t i = 0, buckets = shape().buckets(); i < buckets; ++i)
    for (Cursor at(*this, primary_.at(i)); at; ++at) (*at).store(0, std::memory_order_seq_cst);
  entries_.store(0, std::memory_order_relaxed);
}

void Index::pause() { sys::yield_cpu(); }

int Index::resume(uint64_t buckets, uint64_t entries) {
  const unsigned level = buckets ? 63 - static_cast<unsigned>(__builtin_clzll(buckets)) : 0;
  if (level < bits_ || level - bits_ > kGrowBits ||
      (level - bits_ == kGrowBits && buckets != uint64_t{1} << level))
    return -EBADMSG;
  // An index that has lost most of its entries gets only the buckets that the rest needs.
  const uint64_t needed = (entries * 10 + kEntriesABucket10 - 1) / kEntriesABucket10;
  if (buckets / 2 >= needed) buckets = std::max(needed, uint64_t{1} << bits_);
  if (const int status = primary_.grow(buckets); status < 0) return status;
  const unsigned own = 63 - static_cast<unsigned>(__builtin_clzll(buckets));
  shape_.store(uint64_t{own} << 56 | (buckets - (uint64_t{1} << own)), std::memory_order_relaxed);
  return 0;
}

int Index::insert(uint64_t hash, Address address) {
  if (const int status = add(hash, address); status < 0) return status;
  if (entries() * 10 > shape().buckets() * kEntriesABucket10) (void)split();
  return 0;
}

int Index::keep_load() {
  const bool behind = entries() * 10 > shape().buckets() * kEntriesABucket10 &&
                      entries() * kEntryBytesMost > bytes();
  return behind ? split() : 0;
}

int Index::make_room(uint64_t hash) {
  const auto* gap = find_place(primary_.at(bucket_of(hash_bits(hash), shape())), is_empty);
  return gap ? 0 : spare_overflow(1, kChainsALook);
}

// Takes memory only if the chain has no gap, so that restored entries never need more than they
// took before (resume).
int Index::add(uint64_t hash, Address address) {
  const uint64_t entry = tag_of(hash) << kAddressBits | address.value;
  std::atomic<uint64_t>* last =
      fill_gap(&primary_.at(bucket_of(hash_bits(hash), shape())), entry, 0);
  if (last) {
    if (const int status = spare_overflow(1, shape().buckets()); status < 0) return status;
    append(last, entry, 0);
  }
  entries_.store(entries() + 1, std::memory_order_relaxed);
  return 0;
}

// Makes sure that `count` spare overflow buckets exist.
int Index::spare_overflow(uint64_t count, uint64_t chains_most) {
  while (spares_ < count) {
    if (const int status = overflow_.grow(overflow_.count() + 1); status < 0) {
      if (gain_overflow(chains_most)) continue;
      return status;
    }
    const uint64_t number = overflow_.count();  // + 1
    overflow_.at(number - 1).link.store(spare_, std::memory_order_relaxed);
    spare_ = number;
    ++spares_;
  }
  return 0;
}

// Looks for a chain with more buckets than it needs after deletes, and takes the surplus out of it.
bool Index::gain_overflow(uint64_t chains_most) {
  const uint64_t buckets = shape().buckets();
  for (uint64_t i = 0; i < buckets && i < chains_most; ++i) {
    if (looked_at_ >= buckets) looked_at_ = 0;
    Bucket* first = &primary_.at(looked_at_++);
    uint64_t places = 0, empty = 0;
    for (Cursor at(*this, *first); at; ++at) {
      ++places;
      empty += is_empty(*at) ? 1 : 0;
    }
    if (places == Bucket::kEntries || empty < OverflowBucket::kEntries) continue;
    moves_.fetch_add(1, std::memory_order_seq_cst);
    close_gaps(first);
    moves_.fetch_add(1, std::memory_order_seq_cst);
    return true;
  }
  return false;
}

// Puts an entry into the first gap of a chain. nullptr; the link of the last bucket: the chain has
// no gap.
std::atomic<uint64_t>* Index::fill_gap(Bucket* bucket, uint64_t entry, uint64_t marks) {
  std::atomic<uint64_t>* last = nullptr;
  for (Cursor at(*this, *bucket); at; ++at) {
    last = at.link();
    if (!is_empty(*at)) continue;
    at.set_marks(marks);
    (*at).store(entry, std::memory_order_seq_cst);
    return nullptr;
  }
  return last;
}

// Puts an entry into the first gap of a chain, or behind it.
// pre: a spare bucket
void Index::put(Bucket* bucket, uint64_t entry, uint64_t marks) {
  if (std::atomic<uint64_t>* last = fill_gap(bucket, entry, marks)) append(last, entry, marks);
}

// Puts an entry into a new bucket behind the one with that link.
// pre: a spare bucket
void Index::append(std::atomic<uint64_t>* last, uint64_t entry, uint64_t marks) {
  const uint64_t number = spare_;
  OverflowBucket& fresh = overflow_.at(number - 1);
  spare_ = fresh.link.load(std::memory_order_relaxed);
  --spares_;
  fresh.link.store(marks << (kLinkBits + kMarkers * (OverflowBucket::kEntries - 1)),
                   std::memory_order_seq_cst);
  fresh.entries[0].store(entry, std::memory_order_seq_cst);
  last->store(last->load(std::memory_order_relaxed) | number, std::memory_order_seq_cst);
}

// Moves the entries of bucket `split` whose next bit is set to a new last bucket. 0, also if the
// tag has no more bits, so that chains get longer; -ENOMEM.
int Index::split() {
  const Shape before = shape();
  const uint64_t to = before.buckets();
  const unsigned bit = kAddressBits + before.level - bits_;
  if (before.level - bits_ >= kGrowBits) return 0;
  if (const int status = primary_.grow(to + 1); status < 0) return status;
  Bucket* from = &primary_.at(before.split);
  uint64_t moving = 0;
  for (Cursor at(*this, *from); at; ++at)
    moving += (*at).load(std::memory_order_relaxed) >> bit & 1;
  const uint64_t beyond = moving > Bucket::kEntries ? moving - Bucket::kEntries : 0;
  const uint64_t chained = (beyond + OverflowBucket::kEntries - 1) / OverflowBucket::kEntries;
  if (const int status = spare_overflow(chained, kChainsALook); status < 0) return status;

  moves_.fetch_add(1, std::memory_order_seq_cst);
  for (Cursor at(*this, *from); at; ++at) {
    const uint64_t entry = (*at).load(std::memory_order_relaxed);
    if ((entry >> bit & 1) == 0) continue;
    put(&primary_.at(to), entry, at.marks());
    (*at).store(0, std::memory_order_seq_cst);
  }
  close_gaps(from);
  const bool round = before.split + 1 == uint64_t{1} << before.level;
  const Shape after = round ? Shape{before.level + 1, 0} : Shape{before.level, before.split + 1};
  shape_.store(uint64_t{after.level} << 56 | after.split, std::memory_order_seq_cst);
  moves_.fetch_add(1, std::memory_order_seq_cst);
  return 0;
}

// Moves entries from the end of a chain into its gaps, and takes the buckets that are then empty
// out of it.
// pre: moves_ is odd
void Index::close_gaps(Bucket* first) {
  std::atomic<uint64_t>* last = &first->link;
  Cursor to(*this, *first);
  for (Cursor from = to; from; ++from) {
    const uint64_t entry = (*from).load(std::memory_order_relaxed);
    if (entry == 0) continue;
    if (&*to != &*from) {
      to.set_marks(from.marks());
      (*to).store(entry, std::memory_order_seq_cst);
      (*from).store(0, std::memory_order_seq_cst);
    }
    last = to.link();
    ++to;
  }
  const uint64_t word = last->load(std::memory_order_relaxed);
  last->store(word & ~kLinkMask, std::memory_order_seq_cst);
  uint64_t link = word & kLinkMask;
  while (link) {
    OverflowBucket& empty = overflow_.at(link - 1);
    const uint64_t more = empty.link.exchange(spare_, std::memory_order_seq_cst);
    spare_ = link;
    ++spares_;
    link = more & kLinkMask;
  }
}

void Index::clear_marks(uint64_t number, unsigned marker) {
  for (Cursor at(*this, primary_.at(number)); at; ++at)
    at.set_marks(at.marks() & ~(uint64_t{1} << marker));
}

bool Index::mark(uint64_t hash, Address address, unsigned marker) {
  const uint64_t entry = tag_of(hash) << kAddressBits | address.value;
  for (Cursor at(*this, primary_.at(bucket_of(hash_bits(hash), shape()))); at; ++at) {
    if ((*at).load(std::memory_order_relaxed) != entry) continue;
    const uint64_t marks = at.marks();
    at.set_marks(marks | uint64_t{1} << marker);
    return (marks >> marker & 1) == 0;
  }
  return false;
}

uint64_t Index::collect(const Shape& from, uint64_t number, Address* out, uint64_t max,
                        unsigned marker) const {
  const uint64_t low = number & ((uint64_t{1} << from.level) - 1);
  const uint64_t step = low < from.split ? uint64_t{2} << from.level : uint64_t{1} << from.level;
  for (;;) {
    const uint64_t moves = moves_.load(std::memory_order_seq_cst);
    uint64_t found = 0;
    for (uint64_t i = number, buckets = shape().buckets(); i < buckets; i += step) {
      for (Cursor at(*this, primary_.at(i)); at; ++at) {
        const uint64_t entry = (*at).load(std::memory_order_seq_cst);
        if (entry == 0 || (at.marks() >> marker & 1) != 0) continue;
        if (found < max) out[found] = address_of(entry);
        ++found;
      }
    }
    if ((moves & 1) == 0 && moves_.load(std::memory_order_seq_cst) == moves) return found;
    pause();
  }
}

bool Index::chain_is_right(uint64_t number, uint64_t* entries) const {
  const Shape now = shape();
  const uint64_t mask = (uint64_t{1} << bits_) - 1;
  for (Cursor at(*this, primary_.at(number)); at; ++at) {
    const uint64_t entry = (*at).load(std::memory_order_relaxed);
    if (entry == 0) continue;
    ++*entries;
    if (bucket_of(entry >> kAddressBits << bits_ | (number & mask), now) != number) return false;
  }
  return true;
}

bool Index::validate() const {
  uint64_t found = 0;
  for (uint64_t i = 0; i < shape().buckets(); ++i) {
    if (!chain_is_right(i, &found)) return false;
  }
  return found == entries();
}

}  // namespace lunar::kv
