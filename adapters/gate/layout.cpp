// SPDX-License-Identifier: Apache-2.0
// See layout.h.
#include "layout.h"

#include <dlfcn.h>
#include <errno.h>

#include <cstring>

#include "base/host_guard.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

constexpr unsigned kWordsScanned = 32;
constexpr size_t kDatabaseStride = 80;
constexpr unsigned kDatabasesMax = 1u << 16;
constexpr uint64_t kSlotsScanned = 65536;
constexpr unsigned kKeysChecked = 8;

template <class T>
bool peek(const void* from, T* to) {
  return sys::peek(from, to, sizeof(T)) == 0;
}

template <class F>
bool symbol(const char* name, F* out, ErrorText* why) {
  *out = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  if (*out != nullptr) return true;
  (void)why->set(-ENOENT, "the server does not export %s", name);
  return false;
}

// An sds that can be read as a whole, with the zero behind it.
bool peek_sds(const char* text, uint64_t* length) {
  uint8_t flag = 0;
  unsigned char header[17];
  char end = 1;
  if (text == nullptr || !peek(text - 1, &flag)) return false;
  const unsigned bytes = sds_header(flag);
  if (bytes == 0 || sys::peek(text - bytes, header, bytes) != 0) return false;
  *length = sds_length(text);
  return *length <= kBulkMax && peek(text + *length, &end) && end == 0;
}

}  // namespace

uint64_t sds_length(const char* text) {
  const auto flag = static_cast<uint8_t>(text[-1]);
  switch (flag & 7) {
    case 0: return flag >> 3;
    case 1: return static_cast<uint8_t>(text[-3]);
    case 2: {
      uint16_t n;
      memcpy(&n, text - 5, sizeof n);
      return n;
    }
    case 3: {
      uint32_t n;
      memcpy(&n, text - 9, sizeof n);
      return n;
    }
    case 4: {
      uint64_t n;
      memcpy(&n, text - 17, sizeof n);
      return n;
    }
    default: return 0;
  }
}

bool ServerLayout::find_symbols(ErrorText* why) {
  HostGuard guard;
  if (!symbol("dbDictType", &dict_type_, why) || !symbol("server", &server_, why) || !symbol("CT_Socket", &socket_type_, why) ||
      !symbol("readQueryFromClient", &read_query_, why) || !symbol("dictGenHashFunction", &hash_, why) ||
      !symbol("dictGetHash", &dict_hash_, why) || !symbol("dictFind", &dict_find_, why))
    return false;
  memcpy(&socket_handler_, socket_type_, sizeof socket_handler_);
  io_threads_op_ = reinterpret_cast<const volatile int*>(dlsym(RTLD_DEFAULT, "io_threads_op"));
  return true;
}

bool ServerLayout::dictionary_looks_right(const DictView& dict) const {
  for (int t = 0; t < 2; ++t) {
    if (dict.exponent[t] < -1 || dict.exponent[t] > 40) return false;
    if ((dict.exponent[t] == -1) != (dict.table[t] == nullptr)) return false;
    if (dict.exponent[t] == -1 && dict.used[t] != 0) return false;
  }
  return dict.rehash_index >= -1 && (dict.rehash_index == -1) == (dict.table[1] == nullptr);
}

int ServerLayout::find_data(int epoll, const void* events, int events_max, ErrorText* why) {
  const auto* words = reinterpret_cast<void* const*>(server_);
  unsigned found = 0;
  for (unsigned i = 1; i < kWordsScanned && found == 0; ++i) {
    DatabaseView database;
    DictView dict;
    if (words[i] == nullptr || !peek(words[i], &database) || !peek(database.keys, &dict) || dict.type != dict_type_) continue;
    if (database.id != 0 || !dictionary_looks_right(dict)) return (void)why->set(-ENOTSUP, "its databases look different"), -1;
    found = i;
  }
  if (found == 0) return 0;
  auto* base = static_cast<char*>(words[found]);
  unsigned count = 1;
  for (DatabaseView next; count < kDatabasesMax && peek(base + count * kDatabaseStride, &next); ++count) {
    DictView dict;
    if (next.id != static_cast<int>(count) || !peek(next.keys, &dict) || dict.type != dict_type_) break;
  }
  // server.db, .commands, .orig_commands, .el
  auto* const* loop = reinterpret_cast<EventLoopView* const*>(words + found + 3);
  EventLoopView view;
  EventLoopView::Api api;
  if (!peek(*loop, &view) || !peek(view.api, &api)) return (void)why->set(-ENOTSUP, "its event loop is not where 7.0 has it"), -1;
  if (api.epoll != epoll) return 0;   // somebody else's
  if (api.events != events || view.setsize != events_max) return (void)why->set(-ENOTSUP, "its event loop looks different"), -1;
  databases_ = base;
  database_stride_ = kDatabaseStride;
  database_count_ = count;
  loop_ = loop;
  return 1;
}

int ServerLayout::check_entry(DictView* dict, const EntryView* entry, uint64_t slot, unsigned table, ErrorText* why) const {
  EntryView view;
  uint64_t length = 0;
  ObjectView object;
  if (!peek(entry, &view) || !peek_sds(view.key, &length)) return why->set(-ENOTSUP, "its dictionary entries look different"), -1;
  const uint64_t hash = dict_hash_(dict, view.key);
  if (hash != this->hash({view.key, length}) || (hash & ((uint64_t{1} << dict->exponent[table]) - 1)) != slot)
    return why->set(-ENOTSUP, "its hash function is another one"), -1;
  if (!peek(view.value, &object) || object.type() > 6 || object.references <= 0 || object.encoding() > 11)
    return why->set(-ENOTSUP, "its objects look different"), -1;
  const bool text = object.type() == 0 && object.encoding() != 1;
  if (text && ((object.encoding() != 0 && object.encoding() != 8) || !peek_sds(object.pointer, &length)))
    return why->set(-ENOTSUP, "its strings look different"), -1;
  // Last: a search may move entries from one table to the other.
  if (dict_find_(dict, view.key) != entry) return why->set(-ENOTSUP, "its dictionary finds another entry"), -1;
  return 1;
}

int ServerLayout::check_keys(ErrorText* why) {
  for (unsigned i = 0; i < database_count_; ++i) {
    DictView* dict = reinterpret_cast<DatabaseView*>(databases_ + i * database_stride_)->keys;
    if (dict->used[0] + dict->used[1] == 0) continue;
    unsigned checked = 0;
    for (unsigned t = 0; t < 2 && checked == 0; ++t) {
      if (dict->table[t] == nullptr) continue;
      const uint64_t slots = uint64_t{1} << dict->exponent[t];
      for (uint64_t s = 0; s < slots && s < kSlotsScanned && checked < kKeysChecked; ++s) {
        if (dict->table[t] == nullptr || slots != uint64_t{1} << dict->exponent[t]) return 0;   // a search ended a rehash: later
        const EntryView* entry = dict->table[t][s];
        if (entry == nullptr) continue;
        if (check_entry(dict, entry, s, t, why) < 0) return -1;
        ++checked;
      }
    }
    if (checked != 0) return 1;
  }
  return 0;
}

const ClientView* ServerLayout::client_of(int fd) const {
  const EventLoopView* loop = *loop_;
  if (fd < 0 || fd >= loop->setsize) return nullptr;
  const FileEventView& event = loop->events[fd];
  if ((event.mask & 1) == 0 || event.read_handler != socket_handler_ || event.data == nullptr) return nullptr;
  const auto* connection = static_cast<const ConnectionView*>(event.data);
  if (connection->type != socket_type_ || connection->fd != fd || connection->read_handler != read_query_) return nullptr;
  const auto* client = static_cast<const ClientView*>(connection->client);
  if (client == nullptr || client->connection != connection || (client->flags & 3) != 0) return nullptr;
  const auto offset = static_cast<size_t>(reinterpret_cast<const char*>(client->database) - databases_);
  if (offset >= database_count_ * database_stride_ || offset % database_stride_ != 0) return nullptr;
  return client;
}

bool ServerLayout::at_command_start(const ClientView& client) {
  return client.multibulk_left == 0 && client.bulk_length == -1 &&
         (client.query_buffer == nullptr || sds_length(client.query_buffer) == 0);
}

const DatabaseView* ServerLayout::database(int index) const {
  if (index < 0 || static_cast<unsigned>(index) >= database_count_) return nullptr;
  return reinterpret_cast<const DatabaseView*>(databases_ + static_cast<unsigned>(index) * database_stride_);
}

}  // namespace lunar::redis
