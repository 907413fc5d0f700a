// SPDX-License-Identifier: Apache-2.0
// See connections.h. Buffers that are not part of an entry are private mappings. A limited number
// of the two usual sizes is kept for later.
#include "connections.h"

#include <cstring>
#include <new>

#include "sys/arena.h"

namespace lunar::redis {
namespace {

// the larger: the server's usual read
constexpr size_t kMiddleBytes = 4 * 1024, kBufferBytes = 16 * 1024;
constexpr size_t kSpareMax = 4 << 20;  // of buffers kept for later

size_t capacity_for(size_t bytes) {
  if (bytes <= kSmallBytes) return kSmallBytes;
  return bytes <= kMiddleBytes ? kMiddleBytes
                               : (bytes + kBufferBytes - 1) / kBufferBytes * kBufferBytes;
}

}  // namespace

void ConnectionList::append(Connection* c) {
  c->next = nullptr;
  c->previous = tail;
  (tail != nullptr ? tail->next : head) = c;
  tail = c;
}

void ConnectionList::remove(Connection* c) {
  (c->previous != nullptr ? c->previous->next : head) = c->next;
  (c->next != nullptr ? c->next->previous : tail) = c->previous;
  c->previous = c->next = nullptr;
}

bool Connections::start() {
  if (closed_ == nullptr)
    closed_ = static_cast<std::atomic<bool>*>(map_private(kDescriptorsMax, ForkPolicy::kInherit));
  if (table_ == nullptr && closed_ != nullptr)
    table_ = static_cast<Connection**>(
        map_private(sizeof(Connection*) * kDescriptorsMax, ForkPolicy::kInherit));
  return table_ != nullptr;
}

Connection* Connections::find(int fd) {
  if (!known(fd) || table_[fd] == nullptr) return nullptr;
  if (!closed_[fd].load(std::memory_order_acquire)) return table_[fd];
  drop(table_[fd]);
  return nullptr;
}

Connections::SpareBuffer** Connections::spare_of(SpareBuffer** lists, size_t capacity) {
  return capacity == kMiddleBytes ? &lists[0] : capacity == kBufferBytes ? &lists[1] : nullptr;
}

bool Connections::reserve(Connection* c, size_t capacity) {
  char* data = capacity == kSmallBytes ? c->small : nullptr;
  if (SpareBuffer** spare = spare_of(spare_buffers_, capacity);
      spare != nullptr && *spare != nullptr) {
    data = reinterpret_cast<char*>(*spare);
    *spare = (*spare)->next;
    spare_bytes_ -= capacity;
  } else if (capacity > kSmallBytes) {
    data = static_cast<char*>(map_private(capacity, ForkPolicy::kInherit));
    if (data == nullptr) return false;
  }
  count(c, nullptr, nullptr);
  if (SpareBuffer** spare = spare_of(spare_buffers_, c->capacity);
      spare != nullptr && spare_bytes_ + c->capacity <= kSpareMax) {
    *spare = new (c->data) SpareBuffer{*spare};
    spare_bytes_ += c->capacity;
  } else if (c->capacity > kSmallBytes) {
    unmap_private(c->data, c->capacity);
  }
  c->data = data;
  c->capacity = capacity;
  c->begin = c->end = 0;
  return true;
}

void Connections::count(Connection* c, Quota* quota, Quota* of_user) {
  if (c->quota != nullptr) c->quota->used -= c->capacity;
  if (c->of_user != nullptr) c->of_user->used -= c->capacity;
  c->quota = quota;
  c->of_user = of_user;
  if (quota != nullptr) quota->used += c->capacity;
  if (of_user != nullptr) of_user->used += c->capacity;
}

Connection* Connections::add(int fd) {
  if (fd < 0 || fd >= kDescriptorsMax) return nullptr;
  Connection* c = spare_;
  if (c != nullptr) spare_ = c->next;
  void* memory = c != nullptr ? c : arena_alloc(sizeof(Connection), alignof(Connection));
  if (memory == nullptr) return nullptr;
  c = new (memory) Connection;
  c->fd = fd;
  c->list = &lists_[0];
  c->list->append(c);
  closed_[fd].store(false, std::memory_order_relaxed);
  table_[fd] = c;
  return c;
}

void Connections::drop(Connection* c) {
  end_lookup(c);
  table_[c->fd] = nullptr;
  c->list->remove(c);
  if (c->state == Hold::kHeld) --held_now_;
  (void)reserve(c, 0);
  c->next = spare_;
  spare_ = c;
}

bool Connections::fill(Connection* c, const char* data, size_t bytes, Quota* quota,
                       Quota* of_user) {
  const size_t capacity = capacity_for(bytes);
  auto room = [&](const Quota* in, const Quota* before) {
    return in == nullptr || in->used + capacity - (in == before ? c->capacity : 0) <= in->max;
  };
  if (!room(quota, c->quota) || !room(of_user, c->of_user)) return false;
  if (capacity != c->capacity && !reserve(c, capacity)) return false;
  count(c, quota, of_user);
  // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): capacity_for() is never 0, so `data`
  // is there
  memcpy(c->data, data, bytes);
  c->begin = 0;
  c->end = bytes;
  return true;
}

void Connections::enter(Connection* c, Hold state, ConnectionList* list) {
  c->list->remove(c);
  if (c->state == Hold::kHeld) --held_now_;
  if (state == Hold::kHeld) ++held_now_;
  c->state = state;
  c->list = list;
  list->append(c);
}

}  // namespace lunar::redis
