// SPDX-License-Identifier: Apache-2.0
// See layout.h.
#include "layout.h"

#include <dlfcn.h>
#include <errno.h>

#include <cstring>

#include "base/host_guard.h"
#include "key_slot.h"
#include "lookup_steps.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar::redis {
namespace {

constexpr unsigned kWordsScanned = 32;
constexpr unsigned kDatabasesMax = 1u << 16;
constexpr uint64_t kSlotsScanned = 65536;
constexpr unsigned kKeysChecked = 8;
constexpr const char* kIoThread = "io_thd_";
constexpr unsigned kArgumentsChecked = 64;  // that the server has taken, before such ones are believed

//                                    database  loop     type  connection  client
constexpr Shape kRedis7 = {
    .keyspace = Keyspace::kDict,
    .database_id = 40,
    .database_bytes = 80,
    .database_cursor = 56,
    .database_fields = 0,
    .loop_size = 4,
    .loop_events = 16,
    .loop_api = 48,
    .type_handler = 0,
    .connection_fd = 56,
    .connection_client = 24,
    .connection_reader = 48,
    .client_flags = 8,
    .client_connection = 16,
    .client_database = 32,
    .client_buffer = 48,
    .client_left = 148,
    .client_bulk = 152,
    .client_user = 136,
    .client_argc = 72,
    .client_argv = 80,
    .flag_of_master = 2,
};
constexpr Shape kRedis8 = {
    .keyspace = Keyspace::kDicts,
    .database_id = 56,
    .database_bytes = 80,
    .database_cursor = 72,
    .database_fields = 16,
    .loop_size = 16,
    .loop_events = 24,
    .loop_api = 56,
    .type_handler = 32,
    .connection_fd = 16,
    .connection_client = 32,
    .connection_reader = 64,
    .client_flags = 8,
    .client_connection = 16,
    .client_database = 32,
    .client_buffer = 64,
    .client_left = 172,
    .client_bulk = 176,
    .client_user = 160,
    .client_argc = 88,
    .client_argv = 96,
    .flag_of_master = 2,
};
constexpr Shape kValkey8 = {
    .keyspace = Keyspace::kTables,
    .database_id = 48,
    .database_bytes = 72,
    .database_cursor = 64,
    .database_fields = 0,
    .loop_size = 4,
    .loop_events = 16,
    .loop_api = 48,
    .type_handler = 32,
    .connection_fd = 16,
    .connection_client = 32,
    .connection_reader = 56,
    .client_flags = 272,
    .client_connection = 8,
    .client_database = 120,
    .client_buffer = 16,
    .client_left = 60,
    .client_bulk = 64,
    .client_user = 432,
    .client_argc = 40,
    .client_argv = 32,
    .flag_of_master = 1,
};

template <class T>
bool peek(const void* from, T* to) {
  return sys::peek(from, to, sizeof(T)) == 0;  // NOLINT(bugprone-sizeof-expression): T may be a pointer
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

bool looks_right(const DictView& dict) {
  for (int t = 0; t < 2; ++t) {
    if (dict.exponent[t] < -1 || dict.exponent[t] > 40) return false;
    if ((dict.exponent[t] == -1) != (dict.table[t] == nullptr)) return false;
    if (dict.exponent[t] == -1 && dict.used[t] != 0) return false;
  }
  return dict.rehash_index >= -1 && (dict.rehash_index == -1) == (dict.table[1] == nullptr);
}

}  // namespace

const uint8_t* key_header(const ObjectView* object) {
  return reinterpret_cast<const uint8_t*>(object + 1) + (object->has_expiry() ? 8 : 0);
}

uint64_t sds_length(const char* text) {
  const auto flag = static_cast<uint8_t>(text[-1]);
  switch (flag & 7) {
    case 0:
      return flag >> 3;
    case 1:
      return static_cast<uint8_t>(text[-3]);
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
    default:
      return 0;
  }
}

bool ServerLayout::find_symbols(ErrorText* why) {
  HostGuard guard;
  auto exports = [](const char* name) { return dlsym(RTLD_DEFAULT, name) != nullptr; };
  shape_ = exports("kvstoreKeysHashtableType") ? &kValkey8 : exports("kvstoreCreate") ? &kRedis8 : &kRedis7;
  if (!symbol("server", &server_, why) || !symbol("readQueryFromClient", &read_query_, why)) return false;
  if (shape_ == &kRedis7) {
    if (!symbol("CT_Socket", &types_[0], why)) return false;
    types_[1] = dlsym(RTLD_DEFAULT, "CT_TLS");
  } else {
    if (!symbol("connectionTypeTcp", &find_types_[0], why) || !symbol("connectionTypeUnix", &find_types_[2], why))
      return false;
    find_types_[1] = reinterpret_cast<SocketType>(dlsym(RTLD_DEFAULT, "connectionTypeTls"));
  }
  io_threads_op_ = reinterpret_cast<const volatile int*>(dlsym(RTLD_DEFAULT, "io_threads_op"));
  if (shape_ == &kValkey8)
    return symbol("kvstoreKeysHashtableType", &database_type_, why) &&
           symbol("hashtableGenHashFunction", &hash_, why) && symbol("hashtableFind", &table_find_, why);
  return symbol("dbDictType", &database_type_, why) && symbol("dictGenHashFunction", &hash_, why) &&
         symbol("dictGetHash", &dict_hash_, why) && symbol("dictFind", &dict_find_, why);
}

// Whether this is a dictionary, or a store of them, of the type that databases have.
bool ServerLayout::holds_keys(const void* store) const {
  if (keyspace() == Keyspace::kDict) {
    DictView dict;
    return peek(store, &dict) && dict.type == database_type_;
  }
  if (keyspace() == Keyspace::kTables) {
    TableStoreView view;
    return peek(store, &view) && view.type == database_type_ && view.bits >= 0 && view.bits <= 14 &&
           view.count == 1 << view.bits;
  }
  DictStoreView view;
  const void* function;
  return peek(store, &view) && peek(database_type_, &function) && memcmp(view.type, &function, sizeof function) == 0 &&
         view.bits >= 0 && view.bits <= 14 && view.count == 1 << view.bits;
}

int ServerLayout::find_data(int epoll, const void* events, int events_max, ErrorText* why) {
  const auto* words = reinterpret_cast<void* const*>(server_);
  auto database_at = [&](const char* at, unsigned id) {
    DatabaseView database;
    int32_t its_id;
    return peek(at, &database) && peek(at + shape_->database_id, &its_id) && its_id == static_cast<int32_t>(id) &&
           holds_keys(database.keys);
  };
  unsigned found = 0;
  for (unsigned i = 1; i < kWordsScanned && found == 0; ++i)
    if (words[i] != nullptr && database_at(static_cast<const char*>(words[i]), 0)) found = i;
  if (found == 0) return 0;
  auto* base = static_cast<char*>(words[found]);
  unsigned count = 1;
  while (count < kDatabasesMax && database_at(base + size_t{count} * shape_->database_bytes, count)) ++count;
  // server.db, .commands, .orig_commands, .el
  auto* loop = reinterpret_cast<const char* const*>(words + found + 3);
  int32_t size, its_epoll;
  void *its_events, *api;
  const char* api_at;
  if (!peek(*loop + 4, &size) || !peek(*loop + shape_->loop_api, &api_at) || !peek(api_at, &its_epoll) ||
      !peek(api_at + 8, &api) || !peek(*loop + shape_->loop_events, &its_events))
    return (void)why->set(-ENOTSUP, "its event loop is not where it should be"), -1;
  if (its_epoll != epoll) return 0;  // another loop
  if (api != events || size != events_max) return (void)why->set(-ENOTSUP, "its event loop looks different"), -1;
  for (int t = 0; t < kTransports; ++t) {
    if (find_types_[t] != nullptr) types_[t] = find_types_[t]();
    const bool needed = t == 0 || (find_types_[t] != nullptr && t != kTls);
    if (types_[t] == nullptr ? needed
                             : !peek(static_cast<const char*>(types_[t]) + shape_->type_handler, &handlers_[t]))
      return (void)why->set(-ENOTSUP, "its sockets look different"), -1;
  }
  databases_ = base;
  database_count_ = count;
  loop_ = loop;
  const void* first = reinterpret_cast<DatabaseView*>(base)->keys;
  slots_ = (keyspace() == Keyspace::kDicts && static_cast<const DictStoreView*>(first)->bits != 0) ||
           (keyspace() == Keyspace::kTables && static_cast<const TableStoreView*>(first)->bits != 0);
  return 1;
}

bool ServerLayout::right_index(Slice key, uint64_t index) const { return index == (slots_ ? key_slot(key) : 0); }

int ServerLayout::check_object(const ObjectView* at, ErrorText* why) const {
  ObjectView object;
  uint64_t length = 0;
  const bool tables = keyspace() == Keyspace::kTables;
  if (!peek(at, &object) || object.type() > 6 || object.encoding() > (keyspace() == Keyspace::kDicts ? 12u : 11u) ||
      (tables ? object.references >> 2 : object.references) == 0)
    return why->set(-ENOTSUP, "its objects look different"), -1;
  const bool text = object.type() == 0 && object.encoding() != 1;
  if (text && ((object.encoding() != 0 && object.encoding() != 8) || !peek_sds(object.pointer, &length)))
    return why->set(-ENOTSUP, "its strings look different"), -1;
  return 1;
}

int ServerLayout::check_entry(DictView* dict, const EntryView* entry, uint64_t slot, unsigned table, uint64_t index,
                              ErrorText* why) const {
  EntryView view;
  uint64_t length = 0;
  if (!peek(entry, &view) || !peek_sds(view.key, &length))
    return why->set(-ENOTSUP, "its dictionary entries look different"), -1;
  const uint64_t hash = dict_hash_(dict, view.key);
  if (hash != this->hash({view.key, length}) || (hash & ((uint64_t{1} << dict->exponent[table]) - 1)) != slot ||
      !right_index({view.key, length}, index))
    return why->set(-ENOTSUP, "its hash function is another one"), -1;
  if (check_object(static_cast<const ObjectView*>(view.value), why) < 0) return -1;
  // Last: a search may move entries from one table to the other.
  if (dict_find_(dict, view.key) != entry) return why->set(-ENOTSUP, "its dictionary finds another entry"), -1;
  return 1;
}

// 1: looked at keys, all right; 0: there was none; -1.
int ServerLayout::check_dict(DictView* dict, const void* type, uint64_t index, ErrorText* why) const {
  DictView view;
  if (!peek(dict, &view) || view.type != type || !looks_right(view))
    return why->set(-ENOTSUP, "its dictionaries look different"), -1;
  unsigned checked = 0;
  for (unsigned t = 0; t < 2 && checked == 0; ++t) {
    if (dict->table[t] == nullptr) continue;
    const uint64_t slots = uint64_t{1} << dict->exponent[t];
    for (uint64_t s = 0; s < slots && s < kSlotsScanned && checked < kKeysChecked; ++s) {
      // a search ended a rehash: later
      if (dict->table[t] == nullptr || slots != uint64_t{1} << dict->exponent[t]) return 0;
      const EntryView* entry = dict->table[t][s];
      if (entry == nullptr) continue;
      if (check_entry(dict, entry, s, t, index, why) < 0) return -1;
      ++checked;
    }
  }
  return checked != 0;
}

int ServerLayout::check_table(TableView* table, uint64_t index, ErrorText* why) const {
  TableView view;
  if (!peek(table, &view) || view.type != database_type_ || view.exponent[0] < -1 || view.exponent[0] > 40 ||
      (view.exponent[0] == -1) != (view.table[0] == nullptr) || view.rehash_index < -1)
    return why->set(-ENOTSUP, "its hash tables look different"), -1;
  if (view.rehash_index != -1 || view.table[0] == nullptr) return 0;  // later: a search moves entries
  unsigned checked = 0;
  const uint64_t buckets = uint64_t{1} << view.exponent[0];
  for (uint64_t b = 0; b < buckets && b < kSlotsScanned && checked < kKeysChecked; ++b) {
    BucketView bucket;
    if (!peek(view.table[0] + b, &bucket)) return why->set(-ENOTSUP, "its hash tables look different"), -1;
    for (unsigned i = 0; i < bucket.places(); ++i) {
      if (!bucket.holds(i)) continue;
      const auto* object = static_cast<const ObjectView*>(bucket.entries[i]);
      uint64_t length = 0;
      const char* key = nullptr;
      uint8_t header;
      if (check_object(object, why) < 0) return -1;
      if (object->has_key() && peek(key_header(object), &header))
        key = reinterpret_cast<const char*>(key_header(object)) + 1 + header;
      if (!peek_sds(key, &length)) return why->set(-ENOTSUP, "its keys look different"), -1;
      const uint64_t hash = this->hash({key, length});
      if (hash >> 56 != bucket.hashes[i] || (hash & (buckets - 1)) != b || !right_index({key, length}, index))
        return why->set(-ENOTSUP, "its hash function is another one"), -1;
      const void* found = nullptr;
      if (!table_find_(table, key, &found) || found != object)
        return why->set(-ENOTSUP, "its hash table finds another entry"), -1;
      ++checked;
    }
  }
  return checked != 0;
}

int ServerLayout::check_keys(ErrorText* why) {
  for (unsigned i = 0; i < database_count_; ++i) {
    void* keys = const_cast<void*>(static_cast<const void*>(database(static_cast<int>(i))->keys));
    int rc = 0;
    if (keyspace() == Keyspace::kDict) {
      rc = check_dict(static_cast<DictView*>(keys), database_type_, 0, why);
    } else if (keyspace() == Keyspace::kDicts) {
      const auto* store = static_cast<const DictStoreView*>(keys);
      for (int64_t d = 0; d < store->count && rc == 0; ++d)
        if (store->dicts[d] != nullptr)
          rc = check_dict(store->dicts[d], reinterpret_cast<const char*>(store) + 8, static_cast<uint64_t>(d), why);
    } else {
      const auto* store = static_cast<const TableStoreView*>(keys);
      for (int t = 0; t < store->count && rc == 0; ++t)
        if (store->tables[t] != nullptr) rc = check_table(store->tables[t], static_cast<uint64_t>(t), why);
    }
    if (rc != 0) return rc;
  }
  return 0;
}

bool ServerLayout::io_threads_may_read() const {
  return keyspace() != Keyspace::kDict && sys::has_thread_named(kIoThread);
}

bool ServerLayout::io_thread_reads() const {
  return (io_threads_op_ != nullptr && *io_threads_op_ == 1) || sys::this_thread_is_named(kIoThread);
}

int ServerLayout::event_mask(int fd) const {
  const char* loop = *loop_;
  return fd >= 0 && fd < at<int32_t>(loop, shape_->loop_size)
             ? at<const FileEventView*>(loop, shape_->loop_events)[fd].mask
             : 0;
}

int ServerLayout::transport_of(const void* handler, const void* type) const {
  for (int t = 0; t < kTransports; ++t)
    if (types_[t] != nullptr && type == types_[t] && handler == handlers_[t]) return t;
  return -1;
}

const ClientView* ServerLayout::client_of(int fd, uint64_t replication_flags) const {
  if ((event_mask(fd) & 1) == 0) return nullptr;
  const FileEventView& event = at<const FileEventView*>(*loop_, shape_->loop_events)[fd];
  const bool known =
      event.read_handler == handlers_[0] || event.read_handler == handlers_[1] || event.read_handler == handlers_[2];
  if (event.data == nullptr || event.read_handler == nullptr || !known) return nullptr;  // its data is something else
  const void* connection = event.data;
  if (transport_of(event.read_handler, at<const void*>(connection, 0)) < 0 ||
      at<int32_t>(connection, shape_->connection_fd) != fd ||
      at<const void*>(connection, shape_->connection_reader) != read_query_)
    return nullptr;
  const auto* client = at<const ClientView*>(connection, shape_->connection_client);
  if (client == nullptr || at<const void*>(client, shape_->client_connection) != connection ||
      (at<uint64_t>(client, shape_->client_flags) & 3) != replication_flags)
    return nullptr;
  const auto offset = static_cast<size_t>(at<const char*>(client, shape_->client_database) - databases_);
  if (offset >= size_t{database_count_} * shape_->database_bytes || offset % shape_->database_bytes != 0)
    return nullptr;
  return client;
}

bool ServerLayout::foreign_client(int fd) const {
  if ((event_mask(fd) & 1) == 0) return false;
  const void* words[12];
  const void* connection = at<const FileEventView*>(*loop_, shape_->loop_events)[fd].data;
  if (!peek(connection, &words) || words[0] == nullptr || (words[0] != types_[0] && words[0] != types_[2]))
    return false;
  bool reads_queries = false;
  for (const void* word : words) reads_queries |= word == read_query_;
  if (!reads_queries) return false;  // a replication link
  const void *back = nullptr, *reader = words[shape_->connection_reader / 8];
  const char* client = static_cast<const char*>(words[shape_->connection_client / 8]);
  return reader != read_query_ || !peek(client + shape_->client_connection, &back) || back != connection;
}

bool ServerLayout::progress_of(const ClientView& client, const void* buffer, Progress* out) const {
  return at<uint64_t>(&client, shape_->client_buffer + 8u) == 0 && progress_behind(client, 0, buffer, out);
}

bool ServerLayout::progress_of_master(const ClientView& master, const void* buffer, Progress* out) const {
  return progress_behind(master, at<uint64_t>(&master, shape_->client_buffer + 8u), buffer, out);
}

// `used`: bytes at the start of its buffer that are done with.
bool ServerLayout::progress_behind(const ClientView& client, uint64_t used, const void* buffer, Progress* out) const {
  const char* text = at<const char*>(&client, shape_->client_buffer);
  const int32_t left = at<int32_t>(&client, shape_->client_left), taken = at<int32_t>(&client, shape_->client_argc);
  if (text == nullptr || left < 0 || used > sds_length(text)) return false;
  *out = {text + used, sds_length(text) - used, left == 0 ? 0u : static_cast<unsigned>(taken),
          static_cast<unsigned>(left), at<int64_t>(&client, shape_->client_bulk)};
  return out->text + out->bytes == buffer && (left != 0 || out->bulk == -1) && out->bulk >= -1 &&
         out->bulk <= static_cast<int64_t>(kBulkMax) && out->taken <= kArgumentsMax && out->left <= kArgumentsMax;
}

Arguments ServerLayout::arguments_taken(const ClientView& client, const Progress& progress, Command* out,
                                        NonresidentRanges* missing) {
  const auto* const* argument = at<const ObjectView* const*>(&client, shape_->client_argv);
  KeyLookup lookup{*this, missing};
  for (unsigned i = 0; i < progress.taken && i < kArgumentsKept && !missing->full(); ++i) {
    const ObjectView* object;
    if (!lookup.have(argument + i, sizeof *argument) || !lookup.have(object = argument[i], sizeof *object)) continue;
    ErrorText why;
    if (arguments_checked_ < kArgumentsChecked) {
      if (check_object(object, &why) < 0) return Arguments::kUnknown;
      ++arguments_checked_;
    }
    if (object->type() != 0 || object->encoding() == 1) return Arguments::kUnknown;
    if (lookup.have_text(object->pointer)) out->argument[i] = {object->pointer, sds_length(object->pointer)};
  }
  return lookup.misses == 0 ? Arguments::kThere : Arguments::kCold;
}

int ServerLayout::database_of(const ClientView& client) const {
  return static_cast<int>(static_cast<size_t>(at<const char*>(&client, shape_->client_database) - databases_) /
                          shape_->database_bytes);
}

const DatabaseView* ServerLayout::database(int index) const {
  if (index < 0 || static_cast<unsigned>(index) >= database_count_) return nullptr;
  return reinterpret_cast<const DatabaseView*>(databases_ + static_cast<size_t>(index) * shape_->database_bytes);
}

}  // namespace lunar::redis
