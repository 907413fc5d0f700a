// SPDX-License-Identifier: Apache-2.0
// See connections.h. Buffers are private mappings; small ones stay with their entry when it is reused, while there are not many.
#include "connections.h"

#include <cstring>

#include "base/arena.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 16 * 1024;   // the server's usual read; smallest, and the largest that is kept
constexpr size_t kSpareMax = 4 << 20;        // buffers are kept while no more than this is mapped

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
  mapped_ -= c->capacity;
  c->data = nullptr;
  c->capacity = 0;
}

Connection* Connections::add(int fd) {
  if (fd < 0 || fd >= kDescriptorsMax) return nullptr;
  Connection* c = spare_;
  if (c != nullptr) spare_ = c->next;
  else c = arena_new<Connection>();
  if (c == nullptr) return nullptr;
  char* data = c->data;
  const size_t capacity = c->capacity;
  *c = Connection{};
  c->data = data;
  c->capacity = capacity;
  c->fd = fd;
  lists_[0].append(c);
  closed_[fd].store(false, std::memory_order_relaxed);
  table_[fd] = c;
  return c;
}

void Connections::drop(Connection* c) {
  table_[c->fd] = nullptr;
  lists_[static_cast<int>(c->state)].remove(c);
  if (c->capacity > kBufferBytes || mapped_ > kSpareMax) unmap(c);
  c->next = spare_;
  spare_ = c;
}

bool Connections::fill(Connection* c, const char* data, size_t bytes) {
  if (bytes > c->capacity) {
    const size_t capacity = (bytes + kBufferBytes - 1) / kBufferBytes * kBufferBytes;
    if (mapped_ - c->capacity + capacity > kMappedMax) return false;
    auto* larger = static_cast<char*>(map_private(capacity, ForkPolicy::kInherit));
    if (larger == nullptr) return false;
    unmap(c);
    mapped_ += capacity;
    c->data = larger;
    c->capacity = capacity;
  }
  memcpy(c->data, data, bytes);
  c->begin = 0;
  c->end = bytes;
  return true;
}

void Connections::enter(Connection* c, Hold state) {
  lists_[static_cast<int>(c->state)].remove(c);
  c->state = state;
  lists_[static_cast<int>(state)].append(c);
}

}  // namespace lunar::redis
