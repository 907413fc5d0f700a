// SPDX-License-Identifier: Apache-2.0
// The layout of the server's data that the input gate reads. Three layouts are known, distinguished
// by the symbols that the servers export:
//
//   Redis 7.0    database ─► dict ─► entry (key, object)
//   Redis 8.0    database ─► store ─► dicts, one, or one per cluster slot ─► entry (key, object)
//   Valkey 8.1   database ─► store ─► tables, as many ─► buckets of 7 ─► object with its key
//
// The views below are the gate's own declarations of those versions' structures, found through the
// program's dynamic symbols and trusted only after they were checked:
//   - The database array of `server` is found by scanning for a pointer to a structure whose first
//     word leads to a dict, or a store, of the type that databases have; its stride by the next
//     database. The event loop right after it must have the epoll descriptor, event array and
//     size that the server passes to epoll_wait.
//   - Dictionaries, tables, keys and objects are checked on the first keys: the server's own lookup
//     and hash must return what the views return. Until there are keys, nothing is looked up.
//   - A connection is checked each time: descriptor, handlers and client must point at each other,
//     and the client's buffer must be the one that is passed to read().
// A lookup checks collections when it first meets them (collection_probe.h). With an unknown layout
// the gate stays bypassed. The checks read memory by a system call that fails on a wild pointer.
//
// Threading: the server's main thread only. Allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "resp.h"
#include "sys/mem.h"

namespace lunar::redis {

// Copies a T from memory of the server that may not be there. False: a wild pointer.
template <class T>
[[nodiscard]] bool peek(const void* from, T* to) {
  return from != nullptr && reinterpret_cast<uintptr_t>(from) % alignof(T) == 0 &&
         sys::peek(from, to, sizeof *to) == 0;
}

// The server's part of a client's input before it reads more: `bytes` at `text` that it could not
// use yet, directly before its read position. It has taken `taken` arguments of the current
// command, and `left` are to come (0: it has taken none, and the text is a command's start); the
// next one has `bulk` bytes (-1: not known).
struct Progress {
  const char* text = nullptr;
  size_t bytes = 0;
  unsigned taken = 0, left = 0;
  int64_t bulk = -1;
};

struct NonresidentRanges;
enum class Arguments : uint8_t { kThere, kCold, kUnknown };  // kUnknown: not as expected

// The kind of keyspace of a database.
enum class Keyspace : uint8_t { kDict, kDicts, kTables };

struct EntryView {
  const char* key;  // sds
  void* value;      // database: ObjectView; hash: sds
  EntryView* next;
};
struct DictView {
  const void* type;
  EntryView** table[2];
  uint64_t used[2];
  int64_t rehash_index;  // -1: not rehashing
  int16_t paused;
  int8_t exponent[2];  // -1: no table
};
struct DictStoreView {
  int32_t flags, padding;
  char type[136];       // a copy of the type of its dicts
  DictView** dicts;     // nullptr: no key yet
  int64_t count, bits;  // 1, or a power of two
};
struct BucketView {
  uint8_t marks;      // bit 0: the last entry is a further bucket; the other bits: places in use
  uint8_t hashes[7];  // high bytes of the hashes
  const void* entries[7];

  bool leads_on() const { return (marks & 1) != 0; }
  unsigned places() const { return leads_on() ? 6 : 7; }
  bool holds(unsigned place) const { return (marks >> (place + 1) & 1) != 0; }
  const BucketView* next() const {
    return leads_on() ? static_cast<const BucketView*>(entries[6]) : nullptr;
  }
};
struct TableView {
  const void* type;
  int64_t rehash_index;
  BucketView* table[2];
  uint64_t used[2];
  int8_t exponent[2];
  int16_t paused, shrink_paused;
  uint64_t further_buckets[2];  // buckets that are not first in their chain
};
struct TableStoreView {
  int32_t flags;
  const void* type;
  TableView** tables;
  int32_t count, bits;
};
// The types and encodings of objects that matter here.
constexpr unsigned kString = 0, kSortedSet = 3, kHash = 4;
enum Encoding : unsigned {
  kRaw = 0,
  kInt = 1,
  kHashTable = 2,
  kZiplist = 5,
  kIntset = 6,
  kSkiplist = 7,
  kEmbedded = 8,
  kQuicklist = 9,
  kStream = 10,
  kListpack = 11,
};
struct ObjectView {
  uint32_t type_encoding_lru;  // 4, 4, 24 bits
  uint32_t references;         // Valkey: above two bits that say what follows: an expiry, a key
  const char* pointer;
  unsigned type() const { return type_encoding_lru & 15; }
  unsigned encoding() const { return type_encoding_lru >> 4 & 15; }
  bool has_expiry() const { return (references & 1) != 0; }  // these two: Valkey
  bool has_key() const { return (references & 2) != 0; }
};
struct DatabaseView {
  void *keys, *expires;  // DictView, DictStoreView or TableStoreView
};
struct FileEventView {
  int32_t mask;  // 1 readable, 2 writable
  void* read_handler;
  void* write_handler;
  void* data;
};
struct ClientView;  // read by offsets
static_assert(sizeof(DictView) == 56 && sizeof(TableView) == 72 &&
              offsetof(DictView, exponent) == 50);
static_assert(offsetof(DictStoreView, type) == 8 && offsetof(DictStoreView, dicts) == 144 &&
              offsetof(DictStoreView, bits) == 160);
static_assert(sizeof(BucketView) == 64 && offsetof(TableView, exponent) == 48 &&
              offsetof(TableView, paused) == 50 && offsetof(TableView, further_buckets) == 56 &&
              offsetof(TableStoreView, bits) == 28);
static_assert(sizeof(ObjectView) == 16 && sizeof(FileEventView) == 32);

// Offsets into the structures that have no view of their own.
struct Shape {
  Keyspace keyspace;
  // cursor: of active expiry; fields: hash fields that expire (0: this server has none)
  uint16_t database_id, database_bytes, database_cursor, database_fields;
  uint16_t loop_size, loop_events, loop_api;  // (the maximum number of events is at 4)
  uint16_t type_handler;                      // of a connection type
  uint16_t connection_fd, connection_client, connection_reader;
  // flags: bits 0 and 1 are about replication
  uint16_t client_flags, client_connection, client_database, client_buffer, client_left,
      client_bulk, client_user, client_argc, client_argv;
  uint16_t flag_of_master;  // of these two bits: the link to this server's master
};

// The header bytes of an sds by its flag byte (the byte before the text).
constexpr unsigned sds_header(uint8_t flag) {
  constexpr uint8_t kBytes[8] = {1, 3, 5, 9, 17, 0, 0, 0};
  return kBytes[flag & 7];  // 0: not an sds
}
uint64_t sds_length(const char* text);  // pre: the header can be read
// Valkey: the byte before the header of the key, which has the header's length. pre: has_key.
const uint8_t* key_header(const ObjectView* object);

class ServerLayout {
 public:
  // Finds the symbols. False: not a known server (*why: which symbol is missing).
  [[nodiscard]] bool find_symbols(ErrorText* why);
  // Finds data and event loop by the arguments that the server passes to epoll_wait. 1: found; 0:
  // another loop, or the data do not exist yet; -1: unknown layout.
  [[nodiscard]] int find_data(int epoll, const void* events, int events_max, ErrorText* why);
  // Checks dictionaries on existing keys. 1: they fit; 0: no key yet; -1: unknown layout.
  [[nodiscard]] int check_keys(ErrorText* why);

  Keyspace keyspace() const { return shape_->keyspace; }
  void* event_loop() const { return const_cast<char*>(*loop_); }
  // The events that the event loop waits for: 1 readable, 2 writable.
  int event_mask(int fd) const;
  // The client with this socket, plain or under TLS; nullptr: something else, a replication link,
  // or another transport.
  const ClientView* client_of(int fd) const { return client_of(fd, 0); }
  // The link to this server's master, whose stream it executes. nullptr: another descriptor, or a
  // full sync is in progress.
  const ClientView* master_of(int fd) const { return client_of(fd, shape_->flag_of_master); }
  // Whether this is a client on a plain or a unix socket with a layout that client_of does not
  // know.
  bool foreign_client(int fd) const;
  // The server's progress in the client's input when it is about to read into `buffer`. False: not
  // known.
  bool progress_of(const ClientView& client, const void* buffer, Progress* out) const;
  // The same for a master's link, whose buffer may begin with bytes that were executed.
  bool progress_of_master(const ClientView& master, const void* buffer, Progress* out) const;
  // The arguments that the server has taken of its current command, up to kArgumentsKept. kCold:
  // not all are in DRAM; *missing has the others.
  Arguments arguments_taken(const ClientView& client, const Progress& progress, Command* out,
                            NonresidentRanges* missing);
  int database_of(const ClientView& client) const;
  // The user of its commands; not checked here (client_rights.h).
  const void* user_of(const ClientView& client) const {
    return at<const void*>(&client, shape_->client_user);
  }
  const DatabaseView* database(int index) const;
  // The server's cursor of active expiry in its expiries (server_tables.h).
  uint64_t& expiry_cursor(const DatabaseView& database) const {
    return const_cast<uint64_t&>(at<uint64_t>(&database, shape_->database_cursor));
  }
  // Whether fields of its hashes expire, which the server's cycle of active expiry does as well.
  bool fields_expire(const DatabaseView& database) const {
    return shape_->database_fields != 0 &&
           at<const void*>(&database, shape_->database_fields) != nullptr;
  }
  bool has_slots() const { return slots_; }
  uint64_t hash(Slice key) const { return hash_(key.data, key.bytes); }
  // io_threads_may_read: whether the server has threads that may read from its clients (not in 7.0,
  // where that is a separate option). io_thread_reads: whether the calling thread is one of them.
  bool io_threads_may_read() const;
  bool io_thread_reads() const;

 private:
  template <class T>
  static const T& at(const void* base, unsigned offset) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
  }
  const ClientView* client_of(int fd, uint64_t replication_flags) const;
  bool progress_behind(const ClientView& client, uint64_t used, const void* buffer,
                       Progress* out) const;
  bool holds_keys(const void* store) const;
  int check_dict(DictView* dict, const void* type, uint64_t index, ErrorText* why) const;
  int check_table(TableView* table, uint64_t index, ErrorText* why) const;
  int check_entry(DictView* dict, const EntryView* entry, uint64_t slot, unsigned table,
                  uint64_t index, ErrorText* why) const;
  int check_object(const ObjectView* object, ErrorText* why) const;
  bool right_index(Slice key, uint64_t index) const;

  using Hash = uint64_t (*)(const void*, size_t);
  using DictHash = uint64_t (*)(DictView*, const void*);
  using DictFind = EntryView* (*)(DictView*, const void*);
  using TableFind = bool (*)(TableView*, const void*, const void**);
  using SocketType = const void* (*)();
  const Shape* shape_ = nullptr;
  const char* server_ = nullptr;
  const void* database_type_ = nullptr;
  // Connection types: [0] plain sockets, [1] TLS (nullptr: the server was built without), [2] unix
  // sockets (in 7.0 those are plain ones).
  static constexpr int kTransports = 3, kTls = 1;
  int transport_of(const void* handler, const void* type) const;  // -1: none of these
  const void* types_[kTransports] = {};
  SocketType find_types_[kTransports] = {};
  const void* handlers_[kTransports] = {};
  void* read_query_ = nullptr;
  const volatile int* io_threads_op_ = nullptr;  // 7.0
  Hash hash_ = nullptr;
  DictHash dict_hash_ = nullptr;
  DictFind dict_find_ = nullptr;
  TableFind table_find_ = nullptr;
  char* databases_ = nullptr;
  unsigned database_count_ = 0;
  unsigned arguments_checked_ = 0;  // of arguments_taken()
  bool slots_ = false;              // there is a dictionary for each cluster slot
  const char* const* loop_ = nullptr;
};

}  // namespace lunar::redis
