// SPDX-License-Identifier: Apache-2.0
// See connections.h. Buffers are private mappings; small ones stay with their entry when it is reused, while there are
// not many.
#include "connections.h"

#include <cstring>

#include "sys/arena.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 16 * 1024;  // the server's usual read; smallest, and the largest that is kept
constexpr size_t kSpareMax = 4 << 20;       // of buffers kept for later

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
  if (closed_ == nullptr) closed_ = static_cast<std::atomic<bool>*>(map_private(kDescriptorsMax, ForkPolicy::kInherit));
  if (table_ == nullptr && closed_ != nullptr)
    table_ = static_cast<Connection**>(map_private(sizeof(Connection*) * kDescriptorsMax, ForkPolicy::kInherit));
  return table_ != nullptr;
}

Connection* Connections::find(int fd) {
  if (!known(fd) || table_[fd] == nullptr) return nullptr;
  if (!closed_[fd].load(std::memory_order_acquire)) return table_[fd];
  drop(table_[fd]);
  return nullptr;
}

void Connections::unmap(Connection* c) {
  if (c->data == nullptr) return;
  unmap_private(c->data, c->capacity);
  c->data = nullptr;
  c->capacity = 0;
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
  if (c != nullptr) {
    spare_ = c->next;
    spare_bytes_ -= c->capacity;
  } else {
    c = arena_new<Connection>();
  }
  if (c == nullptr) return nullptr;
  char* data = c->data;
  const size_t capacity = c->capacity;
  *c = Connection{};
  c->data = data;
  c->capacity = capacity;
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
  count(c, nullptr, nullptr);
  if (c->capacity > kBufferBytes || spare_bytes_ + c->capacity > kSpareMax) unmap(c);
  spare_bytes_ += c->capacity;
  c->next = spare_;
  spare_ = c;
}

bool Connections::fill(Connection* c, const char* data, size_t bytes, Quota* quota, Quota* of_user) {
  const size_t capacity = bytes > c->capacity ? (bytes + kBufferBytes - 1) / kBufferBytes * kBufferBytes : c->capacity;
  auto room = [&](const Quota* in, const Quota* before) {
    return in == nullptr || in->used + capacity - (in == before ? c->capacity : 0) <= in->max;
  };
  if (!room(quota, c->quota) || !room(of_user, c->of_user)) return false;
  if (capacity > c->capacity) {
    auto* larger = static_cast<char*>(map_private(capacity, ForkPolicy::kInherit));
    if (larger == nullptr) return false;
    count(c, nullptr, nullptr);
    unmap(c);
    c->data = larger;
    c->capacity = capacity;
  }
  count(c, quota, of_user);
  memcpy(c->data, data, bytes);
  c->begin = 0;
  c->end = bytes;
  return true;
}

bool Connections::reserve(Connection* c, size_t bytes) {
  auto* data = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (data == nullptr) return false;
  count(c, nullptr, nullptr);
  unmap(c);
  c->data = data;
  c->capacity = bytes;
  c->begin = c->end = 0;
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
