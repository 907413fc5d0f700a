// SPDX-License-Identifier: Apache-2.0
// Where a redis-server 7.0 keeps its data, as far as the input gate reads it: the views below are our own declarations of that
// version's structures, found through the program's dynamic symbols and believed only after they have been checked:
//   - `server`'s database array is found by scanning for a pointer to a structure whose first word is a dict of type dbDictType;
//     its stride by the next database in it; the event loop right behind it must hold the very epoll descriptor, event array
//     and size that the server passes to epoll_wait;
//   - dictionaries, keys and objects on the first keys there are: the server's own dictFind and dictGetHash must give what the
//     views give. Until there are keys, nothing is looked up.
//   - a connection each time: descriptor, handlers and client must point at each other, and the client's buffer must be the one
//     that read() is given.
// What does not fit is left alone: the gate stays open. While a layout is checked, memory is read by a system call that fails on
// a wild pointer.
//
// Threading: the server's main thread only. Allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "resp.h"

namespace lunar::redis {

struct EntryView {
  const char* key;   // sds
  void* value;       // database: ObjectView; hash: sds
  EntryView* next;
};
struct DictView {
  const void* type;
  EntryView** table[2];
  uint64_t used[2];
  int64_t rehash_index;   // -1: not rehashing
  int16_t paused;
  int8_t exponent[2];     // -1: no table
};
struct ObjectView {
  uint32_t type_encoding_lru;   // 4, 4, 24 bits
  int32_t references;
  const char* pointer;
  unsigned type() const { return type_encoding_lru & 15; }
  unsigned encoding() const { return type_encoding_lru >> 4 & 15; }
};
struct DatabaseView {
  DictView* keys;
  DictView* expires;
  void* other[3];
  int32_t id;
};
struct FileEventView {
  int32_t mask;   // 1 readable, 2 writable
  void* read_handler;
  void* write_handler;
  void* data;
};
struct EventLoopView {
  int32_t maxfd, setsize;
  int64_t next_timer;
  FileEventView* events;
  void* fired;
  void* timers;
  int32_t stop;
  struct Api {
    int32_t epoll;
    void* events;
  }* api;
};
struct ConnectionView {
  const void* type;
  int32_t state;
  int16_t flags, references;
  int32_t last_errno;
  void* client;
  void* handlers[2];
  void* read_handler;
  int32_t fd;
};
struct ClientView {
  uint64_t id, flags;   // flags: 1 replica, 2 master
  ConnectionView* connection;
  int32_t resp;
  DatabaseView* database;
  void* name;
  char* query_buffer;   // sds
  uint64_t query_position, query_peak;
  int32_t argc;
  void** argv;
  int32_t argv_length, original_argc;
  void** original_argv;
  uint64_t argv_bytes;
  void* commands[3];
  void* user;
  int32_t request_type, multibulk_left;
  int64_t bulk_length;
};
static_assert(sizeof(DictView) == 56 && offsetof(DictView, exponent) == 50);
static_assert(sizeof(ObjectView) == 16 && offsetof(DatabaseView, id) == 40);
static_assert(offsetof(EventLoopView, api) == 48 && offsetof(ConnectionView, fd) == 56);
static_assert(offsetof(ClientView, database) == 32 && offsetof(ClientView, query_buffer) == 48);
static_assert(offsetof(ClientView, request_type) == 144 && offsetof(ClientView, bulk_length) == 152);

// Header bytes and length of an sds by its flag byte (the one before the text).
constexpr unsigned sds_header(uint8_t flag) {
  constexpr uint8_t kBytes[8] = {1, 3, 5, 9, 17, 0, 0, 0};
  return kBytes[flag & 7];   // 0: not an sds
}
uint64_t sds_length(const char* text);   // pre: the header can be read

class ServerLayout {
 public:
  // The symbols. False: not a server that we know (*why: which is missing).
  [[nodiscard]] bool find_symbols(ErrorText* why);
  // Data and event loop, given what the server passes to epoll_wait. 1: found; 0: not this loop, or not made yet; -1: unknown layout.
  [[nodiscard]] int find_data(int epoll, const void* events, int events_max, ErrorText* why);
  // Checks dictionaries on keys that exist. 1: right (looked up from now on); 0: no key yet; -1: unknown layout.
  [[nodiscard]] int check_keys(ErrorText* why);

  const EventLoopView* loop() const { return *loop_; }
  // The client whose plain socket this is; nullptr: something else, a replication link, or a client of another transport.
  const ClientView* client_of(int fd) const;
  // Its server side has consumed all input: what comes next is the start of a command.
  static bool at_command_start(const ClientView& client);
  bool reads_into(const ClientView& client, const void* buffer) const { return client.query_buffer == buffer; }
  const DatabaseView* database(int index) const;
  uint64_t hash(Slice key) const { return hash_(key.data, static_cast<int>(key.bytes)); }
  bool io_threads_reading() const { return io_threads_op_ != nullptr && *io_threads_op_ == 1; }

 private:
  bool dictionary_looks_right(const DictView& dict) const;
  int check_entry(DictView* dict, const EntryView* entry, uint64_t slot, unsigned table, ErrorText* why) const;

  using Hash = uint64_t (*)(const void*, int);
  using DictHash = uint64_t (*)(DictView*, const void*);
  using DictFind = EntryView* (*)(DictView*, const void*);
  const char* server_ = nullptr;
  const void* dict_type_ = nullptr;
  const void* socket_type_ = nullptr;
  void* socket_handler_ = nullptr;
  void* read_query_ = nullptr;
  const volatile int* io_threads_op_ = nullptr;
  Hash hash_ = nullptr;
  DictHash dict_hash_ = nullptr;
  DictFind dict_find_ = nullptr;
  char* databases_ = nullptr;
  size_t database_stride_ = 0;
  unsigned database_count_ = 0;
  EventLoopView* const* loop_ = nullptr;
};

}  // namespace lunar::redis
