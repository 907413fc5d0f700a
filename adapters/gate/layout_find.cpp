// SPDX-License-Identifier: Apache-2.0
// Finds and checks a server's data: see layout.h.
#include <errno.h>

#include <cstring>

#include "key_slot.h"
#include "layout.h"
#include "server_fields.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

constexpr unsigned kWordsScanned = 32;
constexpr unsigned kDatabasesMax = 1u << 16;
constexpr uint64_t kSlotsScanned = 65536;
constexpr unsigned kKeysChecked = 8;

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

// Whether this is an sds that can be read as a whole, with the zero after it.
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

bool ServerLayout::find_symbols(ErrorText* why) {
  shape_ = server_export("kvstoreKeysHashtableType") != nullptr ? &kValkey8
           : server_export("kvstoreCreate") != nullptr          ? &kRedis8
                                                                : &kRedis7;
  if (!find_export("server", &server_, why) ||
      !find_export("readQueryFromClient", &read_query_, why))
    return false;
  if (shape_ == &kRedis7) {
    if (!find_export("CT_Socket", &types_[0], why)) return false;
    types_[1] = server_export("CT_TLS");
  } else {
    if (!find_export("connectionTypeTcp", &find_types_[0], why) ||
        !find_export("connectionTypeUnix", &find_types_[2], why))
      return false;
    (void)find_export("connectionTypeTls", &find_types_[1]);
  }
  (void)find_export("io_threads_op", &io_threads_op_);
  if (shape_ == &kValkey8)
    return find_export("kvstoreKeysHashtableType", &database_type_, why) &&
           find_export("hashtableGenHashFunction", &hash_, why) &&
           find_export("hashtableFind", &table_find_, why);
  return find_export("dbDictType", &database_type_, why) &&
         find_export("dictGenHashFunction", &hash_, why) &&
         find_export("dictGetHash", &dict_hash_, why) && find_export("dictFind", &dict_find_, why);
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
  return peek(store, &view) && peek(database_type_, &function) &&
         memcmp(view.type, &function, sizeof function) == 0 && view.bits >= 0 && view.bits <= 14 &&
         view.count == 1 << view.bits;
}

int ServerLayout::find_data(int epoll, const void* events, int events_max, ErrorText* why) {
  const auto* words = reinterpret_cast<void* const*>(server_);
  auto database_at = [&](const char* at, unsigned id) {
    DatabaseView database;
    int32_t its_id;
    return peek(at, &database) && peek(at + shape_->database_id, &its_id) &&
           its_id == static_cast<int32_t>(id) && holds_keys(database.keys);
  };
  unsigned found = 0;
  for (unsigned i = 1; i < kWordsScanned && found == 0; ++i)
    if (words[i] != nullptr && database_at(static_cast<const char*>(words[i]), 0)) found = i;
  if (found == 0) return 0;
  auto* base = static_cast<char*>(words[found]);
  unsigned count = 1;
  while (count < kDatabasesMax && database_at(base + size_t{count} * shape_->database_bytes, count))
    ++count;
  // server.db, .commands, .orig_commands, .el
  auto* loop = reinterpret_cast<const char* const*>(words + found + 3);
  int32_t size, its_epoll;
  void *its_events, *api;
  const char* api_at;
  if (!peek(*loop + 4, &size) || !peek(*loop + shape_->loop_api, &api_at) ||
      !peek(api_at, &its_epoll) || !peek(api_at + 8, &api) ||
      !peek(*loop + shape_->loop_events, &its_events))
    return (void)why->set(-ENOTSUP, "its event loop is not where it should be"), -1;
  if (its_epoll != epoll) return 0;  // another loop
  if (api != events || size != events_max)
    return (void)why->set(-ENOTSUP, "its event loop looks different"), -1;
  for (int t = 0; t < kTransports; ++t) {
    if (find_types_[t] != nullptr) types_[t] = find_types_[t]();
    const bool needed = t == 0 || (find_types_[t] != nullptr && t != kTls);
    if (types_[t] == nullptr
            ? needed
            : !peek(static_cast<const char*>(types_[t]) + shape_->type_handler, &handlers_[t]))
      return (void)why->set(-ENOTSUP, "its sockets look different"), -1;
  }
  databases_ = base;
  database_count_ = count;
  loop_ = loop;
  const void* first = reinterpret_cast<DatabaseView*>(base)->keys;
  slots_ =
      (keyspace() == Keyspace::kDicts && static_cast<const DictStoreView*>(first)->bits != 0) ||
      (keyspace() == Keyspace::kTables && static_cast<const TableStoreView*>(first)->bits != 0);
  return 1;
}

bool ServerLayout::right_index(Slice key, uint64_t index) const {
  return index == (slots_ ? key_slot(key) : 0);
}

int ServerLayout::check_object(const ObjectView* at, ErrorText* why) const {
  ObjectView object;
  uint64_t length = 0;
  const bool tables = keyspace() == Keyspace::kTables;
  if (!peek(at, &object) || object.type() > 6 ||
      object.encoding() > (keyspace() == Keyspace::kDicts ? 12u : 11u) ||
      (tables ? object.references >> 2 : object.references) == 0)
    return why->set(-ENOTSUP, "its objects look different"), -1;
  const bool text = object.type() == 0 && object.encoding() != 1;
  if (text &&
      ((object.encoding() != 0 && object.encoding() != 8) || !peek_sds(object.pointer, &length)))
    return why->set(-ENOTSUP, "its strings look different"), -1;
  return 1;
}

int ServerLayout::check_entry(DictView* dict, const EntryView* entry, uint64_t slot, unsigned table,
                              uint64_t index, ErrorText* why) const {
  EntryView view;
  uint64_t length = 0;
  if (!peek(entry, &view) || !peek_sds(view.key, &length))
    return why->set(-ENOTSUP, "its dictionary entries look different"), -1;
  const uint64_t hash = dict_hash_(dict, view.key);
  if (hash != this->hash({view.key, length}) ||
      (hash & ((uint64_t{1} << dict->exponent[table]) - 1)) != slot ||
      !right_index({view.key, length}, index))
    return why->set(-ENOTSUP, "its hash function is another one"), -1;
  if (check_object(static_cast<const ObjectView*>(view.value), why) < 0) return -1;
  // The search comes last, because it may move entries from one table to the other.
  if (dict_find_(dict, view.key) != entry)
    return why->set(-ENOTSUP, "its dictionary finds another entry"), -1;
  return 1;
}

// 1: keys were checked and fit; 0: there was none; -1: they do not fit.
int ServerLayout::check_dict(DictView* dict, const void* type, uint64_t index,
                             ErrorText* why) const {
  DictView view;
  if (!peek(dict, &view) || view.type != type || !looks_right(view))
    return why->set(-ENOTSUP, "its dictionaries look different"), -1;
  unsigned checked = 0;
  for (unsigned t = 0; t < 2 && checked == 0; ++t) {
    if (dict->table[t] == nullptr) continue;
    const uint64_t slots = uint64_t{1} << dict->exponent[t];
    for (uint64_t s = 0; s < slots && s < kSlotsScanned && checked < kKeysChecked; ++s) {
      // a search has ended a rehash: checked later
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
  if (!peek(table, &view) || view.type != database_type_ || view.exponent[0] < -1 ||
      view.exponent[0] > 40 || (view.exponent[0] == -1) != (view.table[0] == nullptr) ||
      view.rehash_index < -1)
    return why->set(-ENOTSUP, "its hash tables look different"), -1;
  if (view.rehash_index != -1 || view.table[0] == nullptr)
    return 0;  // checked later: a search would move entries
  unsigned checked = 0;
  const uint64_t buckets = uint64_t{1} << view.exponent[0];
  for (uint64_t b = 0; b < buckets && b < kSlotsScanned && checked < kKeysChecked; ++b) {
    BucketView bucket;
    if (!peek(view.table[0] + b, &bucket))
      return why->set(-ENOTSUP, "its hash tables look different"), -1;
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
      if (hash >> 56 != bucket.hashes[i] || (hash & (buckets - 1)) != b ||
          !right_index({key, length}, index))
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
          rc = check_dict(store->dicts[d], reinterpret_cast<const char*>(store) + 8,
                          static_cast<uint64_t>(d), why);
    } else {
      const auto* store = static_cast<const TableStoreView*>(keys);
      for (int t = 0; t < store->count && rc == 0; ++t)
        if (store->tables[t] != nullptr)
          rc = check_table(store->tables[t], static_cast<uint64_t>(t), why);
    }
    if (rc != 0) return rc;
  }
  return 0;
}

}  // namespace lunar::redis
