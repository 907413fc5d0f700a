// SPDX-License-Identifier: Apache-2.0
// The store: opening, counters, the check of the whole; see store.h. Reading is get.cpp, writing
// set.cpp, cleaning clean.cpp, walks walk.cpp.
// Threading: as there.
#include "kv/store.h"

#include <errno.h>

#include <algorithm>
#include <new>

#include "base/format.h"
#include "kv/store_head.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar::kv {
namespace {

// least: the least DRAM that is enough, or 0.
int too_little(int status, uint64_t limit, uint64_t bytes, uint64_t least, ErrorText* why) {
  char give[32] = "more";
  if (least > limit)
    format_to(give, sizeof give, "%llum",
              static_cast<unsigned long long>((least + kMiB - 1) / kMiB));
  return why->set(status, "%s of DRAM is too little for a store of %s; give %s",
                  format_size(limit).text, format_size(bytes).text, give);
}

// The least DRAM for a store whose index begins with `index_bytes`; Log::dram_least includes a
// small index. 0: not known.
uint64_t dram_least(const LogPlace& place, uint64_t index_bytes) {
  if (!place.device) return 0;
  const uint64_t least = Log::dram_least(place) + (index_bytes > kMiB ? index_bytes : 0);
  // With so much DRAM, frames for the whole log are charged.
  return place.bytes <= least / 4 * 3 ? least + place.bytes : least;
}

}  // namespace

int Store::open(const StoreOptions& options, Store** out, ErrorText* why) {
  *out = nullptr;
  media::Superblock super = {};
  int status = 0;
  if (options.shards == 0 || options.shards > 256)
    status = why->set(-EINVAL, "key/value store: %u shards; 1 to 256", options.shards);
  else if (options.contents != Contents::kScratch && !options.device)
    status = why->set(-EINVAL, "key/value store: only a store on a device can be persistent");
  else if (options.contents == Contents::kScratch && options.durability != Durability::kFlush)
    status = why->set(-EINVAL, "key/value store: only a persistent store can have durable sets");
  else if (options.read_only && options.contents != Contents::kExisting)
    status = why->set(-EINVAL, "key/value store: only an existing store can be opened read-only");
  else if (const uint64_t bytes = options.segment_bytes;
           bytes != 0 && ((bytes & (bytes - 1)) != 0 || bytes < Log::kSegmentBytesMin ||
                          bytes > Log::kSegmentBytesMax))
    status = why->set(-EINVAL, "key/value store: segments of %s; 64k, 128k, 256k, 512k or 1m",
                      format_size(bytes).text);
  else if (options.contents == Contents::kExisting)
    status = superblock_read(
        options.device,
        options.read_only && options.salvage ? HeadDamage::kSalvage : HeadDamage::kRefuse, &super,
        why);
  if (status < 0) {
    device_close(options.device);
    return status;
  }
  unsigned bits = super.shard_bits;
  while (options.contents != Contents::kExisting && 1u << bits < options.shards) ++bits;
  const uint64_t head = round_up(sizeof(Store), 128), bytes = head + (sizeof(Shard) << bits);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) device_close(options.device);
  if (!memory) return why->set(-ENOMEM, "key/value store: no memory for its shards");
  auto* store = new (memory) Store;
  store->mapping_bytes_ = bytes;
  store->device_ = options.device;
  store->super_ = super;
  store->read_only_ = options.read_only;
  store->full_said_.store(!options.says_when_full, std::memory_order_relaxed);
  store->salvage_ = options.salvage && options.read_only;
  store->shard_bits_ = bits;
  store->shards_ = reinterpret_cast<Shard*>(memory + head);
  for (unsigned i = 0; i < 1u << bits; ++i) new (&store->shards_[i]) Shard;
  status = store->start(options, why);
  if (status < 0) {
    store->close();
    return status;
  }
  *out = store;
  return 0;
}

int Store::start(const StoreOptions& options, ErrorText* why) {
  const bool exists = options.contents == Contents::kExisting;
  // A program may close descriptors that it did not open. High numbers keep files that it opens
  // later from getting these numbers, and the store's writes.
  for (unsigned i = 0; device_ && i < device_->fd_count(); ++i)
    device_->reopen(i, sys::move_high(device_->fd(i)));
  const uint64_t around =
      options.contents == Contents::kScratch ? 0 : media::kHeadBytes + media::kTailBytes;
  uint64_t bytes = options.log_bytes, most = 0;
  if (device_) {
    const uint64_t size = device_->size_bytes(), room = size > around ? size - around : 0;
    if (bytes == 0) bytes = room;
    bytes = std::min({bytes, room, kLogBytesMax});
    most = std::min(options.log_bytes_most, room);
  }
  if (exists) bytes = super_.segment_count << super_.segment_bits;
  const unsigned wanted_bits =
      options.segment_bytes ? static_cast<unsigned>(__builtin_ctzll(options.segment_bytes)) : 0;
  const LogPlace place{.bytes = bytes,
                       .device = device_,
                       .bytes_most = most,
                       .offset = around ? media::kHeadBytes : 0,
                       .segment_bits = exists ? super_.segment_bits : wanted_bits,
                       .read_only = read_only_};
  budget_.open(options.dram_bytes || device_ ? options.dram_bytes : bytes + bytes / 3 + 2 * kMiB);
  unsigned bits = exists ? super_.index_bits : Index::kBitsMin;
  while (!exists && bits < Index::kBitsMax &&
         (uint64_t{Bucket::kEntries} << (bits + shard_bits_)) < options.expected_keys / 4)
    ++bits;
  const uint64_t index_bytes = sizeof(Bucket) << (bits + shard_bits_);
  const int status = log_.open(place, &budget_, &epochs_);
  if (const uint64_t least = status == -ENOMEM ? dram_least(place, index_bytes) : 0;
      least > budget_.limit())
    return too_little(status, budget_.limit(), bytes, least, why);
  if (status == -ENOMEM)
    return why->set(status,
                    "key/value store: a log of %s does not go into %s of DRAM; give it more DRAM "
                    "or a smaller size",
                    format_size(bytes).text, format_size(budget_.limit()).text);
  if (status < 0)
    return why->set(status, "key/value store: a log of %s on %s: %s", format_size(bytes).text,
                    device_ ? device_->name() : "DRAM", errno_text(status));
  const auto lives = [](void* owner, const Record* record, Address address) {
    auto* store = static_cast<Store*>(owner);
    return store->lives(record, address);
  };
  log_.ask_what_lives(lives, this);
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    int status = shards_[i].index.open(bits, &budget_);
    if (status == 0) status = shards_[i].pieces.open(media::kPieceBits, &budget_);
    if (status < 0)
      return too_little(status, budget_.limit(), bytes, dram_least(place, index_bytes), why);
  }
  return around ? open_root(options, why) : 0;
}

void Store::close() {
  if (random_) random_->close();
  root_.release();
  rebuilt_.close();
  left_unreferenced_.close();
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    shards_[i].index.close();
    shards_[i].pieces.close();
  }
  for (std::atomic<Context*>& ring : rings_)
    if (Context* context = ring.exchange(nullptr, std::memory_order_relaxed))
      device_->detach(context);
  log_.close();
  device_close(device_);
  unmap_private(this, mapping_bytes_);
}

void Store::abandon_in_child() {
  for (std::atomic<Context*>& scan : scans_)
    if (Context* context = scan.exchange(nullptr, std::memory_order_relaxed))
      device_->detach(context);
  for (std::atomic<Context*>& ring : rings_)
    if (Context* context = ring.exchange(nullptr, std::memory_order_relaxed))
      device_->detach(context);
  for (unsigned i = 0; device_ && i < device_->fd_count(); ++i) sys::close_file(device_->fd(i));
}

Shard& Store::shard_of(uint64_t hash) const {
  return shards_[shard_bits_ ? hash >> (64 - shard_bits_) : 0];
}

bool Store::lives(const Record* record, Address address) {
  const uint64_t hash = hash_of_record(record);
  const Reading guard(epochs_);
  return shard_of(hash).index_of(record).find(hash, [&](Address at) { return at == address; });
}

uint64_t Store::count() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) sum += shards_[i].index.entries();
  return sum;
}

uint64_t Store::pieces() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) sum += shards_[i].pieces.entries();
  return sum;
}

uint64_t Store::bytes_actual() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i)
    sum += shards_[i].pair_bytes.load(std::memory_order_relaxed);
  return sum;
}

uint64_t Store::operations() const {
  uint64_t sum = epochs_.operations();
  for (unsigned i = 0; i < 1u << shard_bits_; ++i)
    sum += shards_[i].writes.load(std::memory_order_relaxed);
  return sum;
}

uint64_t Store::index_bytes() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i)
    sum += shards_[i].index.bytes() + shards_[i].pieces.bytes();
  return sum;
}

// Adds to *units, and to *pieces: 1 for a piece, for a head the number of its pieces.
int Store::validate_entry(unsigned shard, bool of_pieces, Address address, uint64_t* units,
                          uint64_t* pieces, ErrorText* why) {
  const SegmentState state = log_.state(log_.segment_of(address));
  if (state != SegmentState::kOpen && state != SegmentState::kSealed &&
      state != SegmentState::kDamaged)
    return why->set(-EBADMSG, "shard %u: an entry leads to a segment that holds no records", shard);
  RecordReader reader(log_);
  if (const int status = reader.locked(address); status < 0)
    return why->set(status, "shard %u: a record cannot be read", shard);
  if (&shard_of(hash_of_record(reader.record())) != &shards_[shard] ||
      reader->is_piece() != of_pieces)
    return why->set(-EBADMSG, "shard %u: an entry leads to a key of another", shard);
  *units += reader->live_units();
  *pieces += of_pieces ? 1 : reader->type() == RecordType::kLarge ? reader->pieces().count() : 0;
  return 0;
}

int Store::validate_index(unsigned shard, bool of_pieces, uint64_t* units, uint64_t* pieces,
                          ErrorText* why) {
  const Index& index = of_pieces ? shards_[shard].pieces : shards_[shard].index;
  if (!index.validate())
    return why->set(-EBADMSG, "shard %u: an index entry does not lie where it is looked for",
                    shard);
  const Index::Shape shape = index.shape();
  for (uint64_t at = 0; at < shape.buckets(); ++at) {
    Address found[256];
    const uint64_t count = index.collect(shape, at, found, 256);
    for (uint64_t j = 0; j < count && j < 256; ++j) {
      if (const int status = validate_entry(shard, of_pieces, found[j], units, pieces, why);
          status < 0)
        return status;
    }
  }
  return 0;
}

int Store::validate(ErrorText* why) {
  MutexLock cleaning(cleaning_);
  uint64_t live_index = 0, live_log = 0, records = 0, pieces = 0, led_to = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    MutexLock lock(shards_[i].lock);
    int status = validate_index(i, false, &live_index, &led_to, why);
    if (status == 0) status = validate_index(i, true, &live_index, &pieces, why);
    if (status < 0) return status;
  }
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    const SegmentState state = log_.state(i);
    if (state != SegmentState::kOpen && state != SegmentState::kSealed &&
        state != SegmentState::kDamaged)
      continue;
    live_log += log_.live(i);
    records += log_.records(i);
  }
  if (records != count() + pieces)
    return why->set(-EBADMSG, "%llu records live by the index and %llu by the log",
                    static_cast<unsigned long long>(count() + pieces),
                    static_cast<unsigned long long>(records));
  if (live_index != live_log || live_log * kUnitBytes != log_.bytes_live())
    return why->set(
        -EBADMSG, "%llu units live by the index, %llu by the segments and %llu by the log",
        static_cast<unsigned long long>(live_index), static_cast<unsigned long long>(live_log),
        static_cast<unsigned long long>(log_.bytes_live() / kUnitBytes));
  if (pieces != led_to)
    return why->set(-EBADMSG, "%llu pieces of large pairs, and heads for %llu",
                    static_cast<unsigned long long>(pieces),
                    static_cast<unsigned long long>(led_to));
  return 0;
}

}  // namespace lunar::kv
