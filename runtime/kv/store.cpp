// SPDX-License-Identifier: Apache-2.0
// The store: opening, counters, get and random; see store.h. Writing is set.cpp, cleaning clean.cpp, walks walk.cpp.
// Threading: as there.
#include "kv/store.h"

#include <errno.h>

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/arena.h"

namespace lunar::kv {

uint64_t hash_of(Bytes key) { return XXH3_64bits(key.data, key.size); }

int Store::open(const StoreOptions& options, Store** out, ErrorText* why) {
  *out = nullptr;
  if (options.shards == 0 || options.shards > 256) return why->set(-EINVAL, "key/value store: %u shards; 1 to 256", options.shards);
  unsigned bits = 0;
  while (1u << bits < options.shards) ++bits;
  const uint64_t head = round_up(sizeof(Store), 128), bytes = head + (sizeof(Shard) << bits);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return why->set(-ENOMEM, "key/value store: no memory for its shards");
  auto* store = new (memory) Store;
  store->mapping_bytes_ = bytes;
  store->shard_bits_ = bits;
  store->shards_ = reinterpret_cast<Shard*>(memory + head);
  for (unsigned i = 0; i < 1u << bits; ++i) new (&store->shards_[i]) Shard;
  if (const int status = store->start(options, why); status < 0) {
    store->close();
    return status;
  }
  *out = store;
  return 0;
}

int Store::start(const StoreOptions& options, ErrorText* why) {
  budget_.open(options.dram_bytes ? options.dram_bytes : options.log_bytes + options.log_bytes / 3 + 2 * kMiB);
  if (const int status = log_.open(options.log_bytes, &budget_, &epochs_); status < 0)
    return why->set(status, "key/value store: a log of %s does not go into %s of DRAM; give it more DRAM or a smaller size",
                    format_size(options.log_bytes).text, format_size(budget_.limit()).text);
  unsigned bits = Index::kBitsMin;
  while (bits < Index::kBitsMax && (uint64_t{Bucket::kEntries} << (bits + shard_bits_)) < options.expected_keys / 4) ++bits;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    if (const int status = shards_[i].index.open(bits, &budget_); status < 0)
      return why->set(status, "key/value store: %s of DRAM leave none for the index; give it more", format_size(budget_.limit()).text);
  }
  return 0;
}

void Store::close() {
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) shards_[i].index.close();
  log_.close();
  unmap_private(this, mapping_bytes_);
}

Shard& Store::shard_of(uint64_t hash) const { return shards_[shard_bits_ ? hash >> (64 - shard_bits_) : 0]; }

namespace {

const LargePlace& place_of(const Record* record) { return *reinterpret_cast<const LargePlace*>(record->key()); }

}  // namespace

Bytes Store::key_of(const Record* record) const {
  if (record->type() == RecordType::kPair) return {record->key(), record->key_bytes};
  const LargePlace& place = place_of(record);
  return {log_.segment_memory(place.first), place.key_bytes};
}

uint64_t Store::value_bytes_of(const Record* record) const {
  if (record->type() == RecordType::kPair) return word32(record->value_bytes, std::memory_order_relaxed);
  return place_of(record).value_bytes;
}

uint64_t Store::hash_of_record(const Record* record) const {
  return record->type() == RecordType::kPair ? hash_of(key_of(record)) : place_of(record).hash;
}

bool Store::is_key(const Record* record, uint64_t hash, Bytes key) const {
  if (record->type() == RecordType::kLarge && place_of(record).hash != hash) return false;
  const Bytes own = key_of(record);
  return own.size == key.size && (key.size == 0 || memcmp(own.data, key.data, key.size) == 0);
}

int64_t Store::get(Bytes key, void* buffer, uint64_t bytes, uint64_t offset) {
  const uint64_t hash = hash_of(key);
  int64_t result = -ENOENT;
  Reading guard(epochs_);
  guard.count();
  shard_of(hash).index.find(hash, [&](Address address) {
    Record* record = log_.at(address);
    if (!is_key(record, hash, key)) return false;
    if (record->type() == RecordType::kPair) {
      result = static_cast<int64_t>(value_copy_out(record, offset, buffer, bytes));
      return true;
    }
    const LargePlace& place = place_of(record);
    if (offset < place.value_bytes && bytes) {
      const uint64_t rest = place.value_bytes - offset;
      memcpy(buffer, log_.segment_memory(place.first) + round_up(place.key_bytes, 8) + offset, rest < bytes ? rest : bytes);
    }
    result = static_cast<int64_t>(place.value_bytes);
    return true;
  });
  return result;
}

int64_t Store::random(void* buffer, uint64_t bytes) {
  uint64_t number = randoms_.fetch_add(1, std::memory_order_relaxed);
  number = XXH3_64bits(&number, sizeof number);
  const unsigned shards = 1u << shard_bits_;
  Reading guard(epochs_);
  guard.count();
  // From a bucket taken by chance on, until one has an entry: around, to that bucket again.
  for (unsigned i = 0; i <= shards; ++i) {
    const Index& index = shards_[(number + i) % shards].index;
    if (index.entries() == 0) continue;
    const Index::Shape shape = index.shape();
    const uint64_t begin = i == 0 ? (number >> 8) % shape.buckets() : 0;
    for (uint64_t at = begin; at < shape.buckets(); ++at) {
      Address found[Bucket::kEntries];
      uint64_t count = index.collect(shape, at, found, Bucket::kEntries);
      if (count == 0) continue;
      if (count > Bucket::kEntries) count = Bucket::kEntries;
      const Bytes key = key_of(log_.at(found[(number >> 40) % count]));
      if (bytes && key.size) memcpy(buffer, key.data, key.size < bytes ? key.size : bytes);
      return static_cast<int64_t>(key.size);
    }
  }
  return -ENOENT;
}

uint64_t Store::count() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) sum += shards_[i].index.entries();
  return sum;
}

uint64_t Store::bytes_actual() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) sum += shards_[i].pair_bytes.load(std::memory_order_relaxed);
  return sum;
}

uint64_t Store::operations() const {
  uint64_t sum = epochs_.operations();
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) sum += shards_[i].writes.load(std::memory_order_relaxed);
  return sum;
}

uint64_t Store::index_bytes() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) sum += shards_[i].index.bytes();
  return sum;
}

int Store::validate(ErrorText* why) {
  Held cleaning(cleaning_);
  uint64_t live_index = 0, live_log = 0, runs = 0, large = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    Held lock(shards_[i].lock);
    const Index& index = shards_[i].index;
    if (!index.validate()) return why->set(-EBADMSG, "shard %u: an index entry does not lie where it is looked for", i);
    const Index::Shape shape = index.shape();
    for (uint64_t at = 0; at < shape.buckets(); ++at) {
      Address found[256];
      const uint64_t count = index.collect(shape, at, found, 256);
      for (uint64_t j = 0; j < count && j < 256; ++j) {
        const Record* record = log_.at(found[j]);
        const SegmentState state = log_.state(log_.segment_of(found[j]));
        if (state != SegmentState::kOpen && state != SegmentState::kSealed)
          return why->set(-EBADMSG, "shard %u: an entry leads to a segment that holds no records", i);
        const uint64_t hash = hash_of(key_of(record));
        if (&shard_of(hash) != &shards_[i] || hash != hash_of_record(record))
          return why->set(-EBADMSG, "shard %u: an entry leads to a key of another", i);
        live_index += record->units();
        if (record->type() == RecordType::kLarge) runs += place_of(record).count;
      }
    }
  }
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    if (log_.state(i) == SegmentState::kOpen || log_.state(i) == SegmentState::kSealed) live_log += log_.live(i);
    if (log_.state(i) == SegmentState::kLarge) ++large;
  }
  if (live_index != live_log || runs != large)
    return why->set(-EBADMSG, "%llu units live by the index and %llu by the log; %llu segments of large pairs and %llu",
                    static_cast<unsigned long long>(live_index), static_cast<unsigned long long>(live_log),
                    static_cast<unsigned long long>(runs), static_cast<unsigned long long>(large));
  return 0;
}

}  // namespace lunar::kv
