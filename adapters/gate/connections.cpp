// SPDX-License-Identifier: Apache-2.0
// See connections.h. Buffers are private mappings; small ones stay with their entry when it is reused.
#include "connections.h"

#include <cstring>

#include "base/arena.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;   // smallest, and the largest that is kept

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
  if (table_ == nullptr) table_ = static_cast<Connection**>(map_private(sizeof(Connection*) * kDescriptorsMax, ForkPolicy::kInherit));
  return table_ != nullptr;
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
  c->generation = ++generation_;
  lists_[0].append(c);
  table_[fd] = c;
  return c;
}

void Connections::drop(Connection* c) {
  table_[c->fd] = nullptr;
  lists_[static_cast<int>(c->state)].remove(c);
  if (c->capacity > kBufferBytes) {
    unmap_private(c->data, c->capacity);
    c->data = nullptr;
    c->capacity = 0;
  }
  c->next = spare_;
  spare_ = c;
}

bool Connections::fill(Connection* c, const char* data, size_t bytes) {
  if (bytes > c->capacity) {
    const size_t capacity = (bytes + kBufferBytes - 1) / kBufferBytes * kBufferBytes;
    auto* larger = static_cast<char*>(map_private(capacity, ForkPolicy::kInherit));
    if (larger == nullptr) return false;
    if (c->data != nullptr) unmap_private(c->data, c->capacity);
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
