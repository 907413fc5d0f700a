// SPDX-License-Identifier: Apache-2.0
// Iterators: see ark_store.h. Walk (kv/store.h) says which keys they return.
//
// The call that reports the end frees the iterator. Others are freed by lunar_kv_end(), or with
// their store.
#include <errno.h>
#include <string.h>

#include <new>

#include "kv/ark/ark_store.h"
#include "sys/arena.h"

namespace lunar::ark {
namespace {

int step(Iterator* iterator, uint64_t room, int64_t* length, void* buffer) {
  const int64_t result =
      iterator->pending ? -iterator->pending : iterator->walk->next(buffer, room);
  iterator->pending = 0;
  *length = result < 0 ? -1 : result;
  return result < 0 ? static_cast<int>(-result) : 0;
}

// The first step of an iterator. An unreadable key does not prevent it; the next call reports the
// error.
int first_step(Iterator* iterator, uint64_t room, int64_t* length, void* buffer) {
  int unreadable = 0;
  int status = step(iterator, room, length, buffer);
  while (status != 0 && status != ENOENT && status != ENOMEM) {
    unreadable = status;
    status = step(iterator, room, length, buffer);
  }
  if (status == ENOENT && unreadable) return unreadable;
  iterator->pending = unreadable;
  return status;
}

int steps(Iterator* iterator, uint64_t room, char* buffer, int64_t* count) {
  uint64_t used = 0;
  for (;;) {
    int64_t length = iterator->pending ? -iterator->pending : iterator->walk->peek();
    iterator->pending = 0;
    if (length < 0 && *count != 0 && length != -ENOENT)
      iterator->pending = static_cast<int>(-length);
    if (length < 0) return *count ? 0 : static_cast<int>(-length);
    const auto whole = static_cast<uint64_t>(length);
    if (room - used < sizeof whole || room - used - sizeof whole < whole)
      return *count ? 0 : ENOSPC;
    memcpy(buffer + used, &whole, sizeof whole);
    length = iterator->walk->next(buffer + used + sizeof whole, whole);
    if (length < 0) return *count ? 0 : static_cast<int>(-length);  // not expected after peek()
    used += sizeof whole + whole;
    ++*count;
  }
}

}  // namespace

void free_iterator(Iterator* iterator) {
  iterator->walk->close();
  table_free(iterator->slot);
  unmap_private(iterator, sizeof(Iterator));
}

void end_iterator(Iterator* iterator) {
  ArkStore* store = iterator->store;
  {
    sys::Locked<sys::Mutex> guard(store->lock);
    if (store->closing || !table_shut(iterator)) {  // ark_delete frees it
      table_release(iterator);
      return;
    }
    store->closers.fetch_add(1, std::memory_order_relaxed);
  }
  table_release(iterator);
  table_drain(iterator);
  store->remove(iterator);
  free_iterator(iterator);
  store->closers.fetch_sub(1, std::memory_order_release);
}

int first_key(ArkStore* store, uint64_t room, int64_t* length, void* buffer, uint64_t* handle) {
  *handle = 0;
  *length = -1;
  void* memory = map_private(sizeof(Iterator), ForkPolicy::kInherit);
  if (!memory) return ENOMEM;
  auto* iterator = new (memory) Iterator;
  iterator->kind = kIterator;
  iterator->store = store;
  int status = -kv::Walk::open(store->engine, &iterator->walk);
  if (status == 0) status = first_step(iterator, room, length, buffer);
  if (status == 0) {
    sys::Locked<sys::Mutex> guard(store->lock);
    if (!store->closing) *handle = table_add(iterator);
    if (*handle)
      store->add(iterator);
    else
      status = store->closing ? EINVAL : ENOMEM;
  }
  if (status == 0) return 0;
  if (iterator->walk) iterator->walk->close();
  unmap_private(iterator, sizeof(Iterator));
  return status;
}

int next_key(Iterator* iterator, uint64_t room, int64_t* length, void* buffer) {
  int status;
  {
    const kv::MutexLock guard(iterator->lock);
    status = step(iterator, room, length, buffer);
  }
  if (status == ENOENT)
    end_iterator(iterator);
  else
    table_release(iterator);
  return status;
}

int next_keys(Iterator* iterator, uint64_t room, void* buffer, int64_t* count) {
  int status;
  *count = 0;
  {
    const kv::MutexLock guard(iterator->lock);
    status = steps(iterator, room, static_cast<char*>(buffer), count);
  }
  if (status == ENOENT)
    end_iterator(iterator);
  else
    table_release(iterator);
  return status;
}

}  // namespace lunar::ark
