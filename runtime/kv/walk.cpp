// SPDX-License-Identifier: Apache-2.0
// Walks over all keys: see store.h.
//
// The index splits buckets while a walk goes on, so a place in it means nothing later. A walk goes by the classes of the shape that
// the shard had when the walk came to it (index.h): what belongs to a class never changes, wherever its entries lie. The keys of
// one class are copied at once, a handful, and then handed out.
// Threading: as in store.h.
#include <errno.h>

#include <new>

#include "base/arena.h"
#include "kv/store.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kRoomFirst = 4096;

}  // namespace

int Walk::open(Store* store, Walk** out) {
  void* memory = map_private(sizeof(Walk), ForkPolicy::kInherit);
  *out = memory ? new (memory) Walk(store) : nullptr;
  return memory ? 0 : -ENOMEM;
}

void Walk::close() {
  if (addresses_) unmap_private(addresses_, addresses_room_);
  if (keys_) unmap_private(keys_, keys_room_);
  unmap_private(this, sizeof(Walk));
}

// Another memory of `wanted` bytes at least. What was in it is gone.
int Walk::keep_room(char** memory, uint64_t* room, uint64_t wanted) {
  uint64_t bytes = *room ? *room : kRoomFirst;
  while (bytes < wanted) bytes *= 2;
  if (bytes == *room) return 0;
  auto* fresh = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!fresh) return -ENOMEM;
  if (*memory) unmap_private(*memory, *room);
  *memory = fresh;
  *room = bytes;
  return 0;
}

// Copies the keys of class_.
int Walk::gather() {
  uint64_t addresses_wanted = kRoomFirst, keys_wanted = kRoomFirst;
  for (;;) {
    if (const int status = keep_room(&addresses_, &addresses_room_, addresses_wanted); status < 0) return status;
    if (const int status = keep_room(&keys_, &keys_room_, keys_wanted); status < 0) return status;
    Reading guard(store_->epochs_);
    auto* found = reinterpret_cast<Address*>(addresses_);
    const uint64_t room = addresses_room_ / sizeof(Address);
    const uint64_t count = store_->shards_[shard_].index.collect(shape_, class_, found, room);
    if (count > room) {
      addresses_wanted = count * sizeof(Address);
      continue;
    }
    keys_wanted = 0;
    for (uint64_t i = 0; i < count; ++i) keys_wanted += sizeof(uint64_t) + round_up(store_->key_of(store_->log_.at(found[i])).size, 8);
    if (keys_wanted > keys_room_) continue;
    keys_at_ = keys_used_ = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const Bytes key = store_->key_of(store_->log_.at(found[i]));
      memcpy(keys_ + keys_used_, &key.size, sizeof key.size);
      if (key.size) memcpy(keys_ + keys_used_ + sizeof key.size, key.data, key.size);
      keys_used_ += sizeof key.size + round_up(key.size, 8);
    }
    return 0;
  }
}

int64_t Walk::peek() {
  while (keys_at_ == keys_used_) {
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
    if (const int status = gather(); status < 0) return status;
    ++class_;
  }
  uint64_t length;
  memcpy(&length, keys_ + keys_at_, sizeof length);
  return static_cast<int64_t>(length);
}

int64_t Walk::next(void* buffer, uint64_t bytes) {
  const int64_t length = peek();
  if (length < 0) return length;
  const auto whole = static_cast<uint64_t>(length);
  if (whole && bytes) memcpy(buffer, keys_ + keys_at_ + sizeof whole, whole < bytes ? whole : bytes);
  keys_at_ += sizeof whole + round_up(whole, 8);
  Reading(store_->epochs_).count();
  return length;
}

}  // namespace lunar::kv
