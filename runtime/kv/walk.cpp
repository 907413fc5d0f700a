// SPDX-License-Identifier: Apache-2.0
// Walks over all keys: see store.h.
//
// On a device, LogScan first returns the keys that it finds in the log, and marks them. Keys
// without a mark follow from the index.
//
// The index splits buckets during a walk, so a place in it means nothing later. A walk goes by the
// classes of the shape that the shard had when the walk reached it (index.h): the members of a
// class never change, wherever its entries lie. It copies the few keys of one class at once, and
// then returns them one by one.
// Threading: as in store.h.
#include <errno.h>

#include <algorithm>
#include <new>

#include "kv/log_scan.h"
#include "kv/store.h"
#include "sys/arena.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kRoomFirst = 4096, kRoomKept = kMiB;

}  // namespace

int Walk::open(Store* store, Walk** out, Order order) {
  void* memory = map_private(sizeof(Walk), ForkPolicy::kInherit);
  *out = memory ? new (memory) Walk(store) : nullptr;
  if (!memory) return -ENOMEM;
  (*out)->scan_begun_ = order == Order::kByIndex;
  (*out)->clears_ = store->clears_.load(std::memory_order_relaxed);
  return 0;
}

unsigned Store::take_marker() {
  uint32_t taken = markers_.load(std::memory_order_relaxed);
  for (unsigned marker = 0; marker < Index::kMarkers;) {
    if (taken >> marker & 1)
      ++marker;
    else if (markers_.compare_exchange_weak(taken, taken | 1u << marker, std::memory_order_acquire))
      return marker;
    else
      marker = 0;
  }
  return Index::kNoMarker;
}

void Walk::end_scan() {
  if (scan_) scan_->close();
  scan_ = nullptr;
}

// The next record of the scan. nullptr: the remaining keys come from the index.
const Record* Walk::next_of_scan() {
  if (!scan_begun_ && store_->on_device()) {
    marker_ = store_->take_marker();
    if (marker_ != Index::kNoMarker && LogScan::open(store_, marker_, &scan_) < 0) {
      store_->give_marker(marker_);
      marker_ = Index::kNoMarker;
    }
  }
  scan_begun_ = true;
  const Record* record = scan_ ? scan_->next() : nullptr;
  if (!record) end_scan();
  return record;
}

void Walk::close() {
  end_scan();
  if (marker_ != Index::kNoMarker) store_->give_marker(marker_);
  if (addresses_) unmap_private(addresses_, addresses_room_);
  if (cold_) unmap_private(cold_, cold_room_);
  if (keys_) unmap_private(keys_, keys_room_);
  unmap_private(this, sizeof(Walk));
}

// Enlarges a buffer to at least `wanted` bytes, with its content.
int Walk::keep_room(char** memory, uint64_t* room, uint64_t wanted) {
  uint64_t bytes = *room ? *room : kRoomFirst;
  while (bytes < wanted) bytes *= 2;
  if (bytes == *room) return 0;
  auto* fresh = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!fresh) return -ENOMEM;
  if (*memory) {
    memcpy(fresh, *memory, *room);
    unmap_private(*memory, *room);
  }
  *memory = fresh;
  *room = bytes;
  return 0;
}

// Appends the key of a record in DRAM, or of one on the device.
int Walk::append_key(const Record* record, const Store::Candidate* cold) {
  uint64_t wanted = kRoomFirst;
  for (;;) {
    if (const int status = keep_room(&keys_, &keys_room_, keys_used_ + wanted); status < 0)
      return status;
    const uint64_t room = keys_room_ - keys_used_ - sizeof(uint64_t);
    char* to = keys_ + keys_used_ + sizeof(uint64_t);
    const int64_t length =
        record ? store_->copy_key(record, to, room) : store_->copy_cold_key(*cold, to, room);
    if (length < 0) return static_cast<int>(length);
    const auto whole = static_cast<uint64_t>(length);
    wanted = sizeof whole + round_up(whole, 8);
    if (whole > room) continue;
    memcpy(keys_ + keys_used_, &whole, sizeof whole);
    keys_used_ += wanted;
    return 0;
  }
}

// Copies the keys of class_. A key that cannot be read may have moved meanwhile. Then all are
// copied again with the lock of the shard, under which nothing moves.
int Walk::gather() {
  // Frees a buffer that one very long key has enlarged.
  if (keys_room_ > kRoomKept) {
    unmap_private(keys_, keys_room_);
    keys_ = nullptr;
    keys_room_ = 0;
  }
  Shard& shard = store_->shards_[shard_];
  std::optional<MutexLock> lock;
  uint64_t wanted = kRoomFirst / sizeof(Address);
  for (;;) {
    if (const int status = keep_room(&addresses_, &addresses_room_, wanted * sizeof(Address));
        status < 0)
      return status;
    if (const int status = keep_room(&cold_, &cold_room_, wanted * sizeof(Store::Candidate));
        status < 0)
      return status;
    auto* found = reinterpret_cast<Address*>(addresses_);
    auto* cold = reinterpret_cast<Store::Candidate*>(cold_);
    uint64_t colds = 0;
    keys_at_ = keys_used_ = 0;
    unreadable_ = 0;
    {
      Reading guard(store_->epochs_);
      const uint64_t count = shard.index.collect(shape_, class_, found, wanted, marker_);
      if (count > wanted) {
        wanted = count;
        continue;
      }
      for (uint64_t i = 0; i < count; ++i) {
        const Record* record = store_->resident(found[i], &cold[colds]);
        if (record && record->type() == RecordType::kLarge && record->pieces().hold_key) {
          cold[colds] = {found[i], 0, record->pieces()};
          record = nullptr;
        }
        if (!record)
          ++colds;
        else if (const int status = append_key(record, nullptr); status < 0)
          return status;
      }
    }
    for (uint64_t i = 0; i < colds; ++i) {
      const int status = append_key(nullptr, &cold[i]);
      if (status == -ENOMEM) return status;
      if (status < 0) unreadable_ = status;
    }
    if (unreadable_ == 0 || lock) return 0;
    lock.emplace(shard.lock);
  }
}

int64_t Walk::peek() {
  if (const uint64_t clears = store_->clears_.load(std::memory_order_relaxed); clears != clears_) {
    scanned_ = nullptr;
    keys_at_ = keys_used_ = 0;
    clears_ = clears;
  }
  if (!scanned_) scanned_ = next_of_scan();
  if (scanned_) return scanned_->key_bytes;
  while (keys_at_ == keys_used_ && unreadable_ == 0) {
    if (shard_ == 1u << store_->shard_bits_) return -ENOENT;
    if (!begun_) {
      shape_ = store_->shards_[shard_].index.shape();
      class_ = 0;
      begun_ = true;
    }
    if (class_ == shape_.buckets()) {
      ++shard_;
      begun_ = false;
      continue;
    }
    if (const int status = gather(); status < 0) {
      keys_at_ = keys_used_ = 0;  // this class again
      return status;
    }
    ++class_;
  }
  if (unreadable_) {
    const int status = unreadable_;
    unreadable_ = 0;
    return status;
  }
  uint64_t length;
  memcpy(&length, keys_ + keys_at_, sizeof length);
  return static_cast<int64_t>(length);
}

int64_t Walk::next(void* buffer, uint64_t bytes) {
  const int64_t length = peek();
  if (length < 0) return length;
  const auto whole = static_cast<uint64_t>(length);
  const char* key = scanned_ ? scanned_->key() : keys_ + keys_at_ + sizeof whole;
  if (whole && bytes) memcpy(buffer, key, std::min(whole, bytes));
  if (scanned_)
    scanned_ = nullptr;
  else
    keys_at_ += sizeof whole + round_up(whole, 8);
  Reading(store_->epochs_).count();
  return length;
}

int64_t Walk::next_of_present(void* buffer, uint64_t bytes) {
  for (;;) {
    const int64_t length = peek();
    if (length < 0) return length;
    const Bytes key{keys_ + keys_at_ + sizeof(uint64_t), static_cast<uint64_t>(length)};
    keys_at_ += sizeof(uint64_t) + round_up(key.size, 8);
    const int64_t found = store_->exists(key);
    if (found >= 0 && key.size && bytes) memcpy(buffer, key.data, std::min(key.size, bytes));
    if (found != -ENOENT) return found < 0 ? found : length;
  }
}

int64_t Store::random(void* buffer, uint64_t bytes) {
  MutexLock guard(random_lock_);
  unsigned ends = 0;
  while (ends < 2 && count() != 0) {
    if (!random_ && Walk::open(this, &random_, Walk::Order::kByIndex) < 0) return -ENOMEM;
    const int64_t length = random_->next_of_present(buffer, bytes);
    if (length != -ENOENT) return length;
    random_->close();
    random_ = nullptr;
    ++ends;
  }
  return -ENOENT;
}

}  // namespace lunar::kv
