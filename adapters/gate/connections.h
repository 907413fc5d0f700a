// SPDX-License-Identifier: Apache-2.0
// Connections with bytes that the gate keeps. A connection without such bytes has no entry: a
// lookup by descriptor finds nothing.
//
//   kPartial   has the start of a command, after others that went on; waits for the rest from the
//              socket, until `deadline_ns`
//   kHeld      begins with a command whose pages are being fetched, until `deadline_ns`; or waits
//              for its user's turn to request them
//   kReady     the pages are in DRAM, or the wait was too long (`late`): the server shall read
//
// Bytes are in buffers of three sizes (the smallest is part of the entry); larger ones are
// multiples of the largest. Starts of commands and held input have separate limits: neither can use
// the other's space.
//
// Threading: the main thread. A thread of the server or of a module may read or close in its place.
// It may take bytes out of an entry, while the main thread does not touch that connection. It notes
// a closed descriptor, whose entry is dropped when the main thread next looks for it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lookup_cursor.h"

namespace lunar::redis {

enum class Hold : uint8_t { kPartial, kHeld, kReady };

constexpr uint64_t kPartialBytesMax = 8 << 20;  // of all buffers with the start of a command
constexpr uint64_t kHeldBytesMax = 32 << 20;    // of all others; half of it per user

struct Quota {
  uint64_t used = 0, max = 0;
};

struct Connection;
struct ConnectionList {
  Connection *head = nullptr, *tail = nullptr;
  void append(Connection* c);
  void remove(Connection* c);
};
struct Share;

constexpr size_t kSmallBytes = 512;  // a command or two: enough for most held clients

struct Connection {
  int fd = -1;
  Hold state = Hold::kPartial;
  // parked: masked in epoll; taken_out: removed from it, because the other side has hung up
  bool parked = false, taken_out = false;
  bool late = false;  // its wait was too long
  bool link = false;  // to the server's master: replica_link.h
  unsigned rounds = 0;
  LookupCursor cursor;    // of the first command, between its rounds
  uint64_t hold = 0;      // number of its last hold, which requests of earlier holds do not end
  uint64_t since_ns = 0;  // when the first command's hold began; 0: there is none
  // end of the state; UINT64_MAX: its time begins when the fetchers are woken
  uint64_t deadline_ns = 0;
  uint64_t until_ns = 0;      // deadline of a long lookup; 0: its time has not begun
  uint64_t seen = 0;          // last round of epoll_wait with it in the result
  uint64_t lookup_bytes = 0;  // bytes that its long lookup has requested
  char* data = nullptr;       // bytes [begin, end) of `capacity`; `small`, or a mapping
  size_t begin = 0, end = 0, capacity = 0;
  Quota *quota = nullptr, *of_user = nullptr;  // the quotas that count `capacity`
  // the list of its state, or of a share's waiting clients
  ConnectionList* list = nullptr;
  Connection *previous = nullptr, *next = nullptr;
  char small[kSmallBytes];
  size_t size() const { return end - begin; }
  const char* first() const { return data + begin; }
};

class Connections {
 public:
  static constexpr int kDescriptorsMax = 1 << 20;

  [[nodiscard]] bool start();  // false: no memory
  Connection* find(int fd);    // main thread
  Connection* find_elsewhere(int fd) const {
    return known(fd) && !closed_[fd].load(std::memory_order_acquire) ? table_[fd] : nullptr;
  }
  void note_closed(int fd) {  // before the descriptor is closed
    if (known(fd)) closed_[fd].store(true, std::memory_order_release);
  }
  Connection* add(int fd);  // nullptr: no memory. kPartial, empty. pre: none for fd
  void drop(Connection* c);
  // Replaces its bytes by `bytes` bytes of `data`, which must not be in its buffer, and counts them
  // in `quota` and, if not nullptr, `of_user`. False: no memory, or a quota is used up; nothing
  // changed.
  [[nodiscard]] bool fill(Connection* c, const char* data, size_t bytes, Quota* quota,
                          Quota* of_user);
  // Replaces its buffer by an empty one of `capacity` bytes (0: by none), which no quota counts.
  // False: no memory, nothing changed.
  [[nodiscard]] bool reserve(Connection* c, size_t capacity);
  void enter(Connection* c, Hold state) { enter(c, state, &lists_[static_cast<int>(state)]); }
  void enter(Connection* c, Hold state, ConnectionList* list);
  uint64_t held_now() const { return held_now_; }
  // Long lookups: the bytes that they have requested until their commands run; and the leader,
  // which may always continue.
  void count_lookup(Connection* c, uint64_t bytes) {
    c->lookup_bytes += bytes;
    lookup_bytes_ += bytes;
  }
  void end_lookup(Connection* c) {
    lookup_bytes_ -= c->lookup_bytes;
    c->lookup_bytes = 0;
    if (leader_ == c) leader_ = nullptr;
  }
  uint64_t lookup_bytes() const { return lookup_bytes_; }
  Connection*& leader() { return leader_; }

  Quota& partial_quota() { return quotas_[0]; }
  Quota& held_quota() { return quotas_[1]; }
  ConnectionList& partial() { return lists_[0]; }
  ConnectionList& held() { return lists_[1]; }  // by deadline
  ConnectionList& ready() { return lists_[2]; }

 private:
  bool known(int fd) const { return fd >= 0 && fd < kDescriptorsMax && table_ != nullptr; }
  static void count(Connection* c, Quota* quota, Quota* of_user);

  Quota quotas_[2] = {{0, kPartialBytesMax}, {0, kHeldBytesMax}};
  ConnectionList lists_[3];
  Connection** table_ = nullptr;
  std::atomic<bool>* closed_ = nullptr;  // by another thread, since an entry was made
  Connection* spare_ = nullptr;
  struct SpareBuffer {
    SpareBuffer* next;
  };
  // nullptr: buffers of that size are not kept
  static SpareBuffer** spare_of(SpareBuffer** lists, size_t capacity);
  SpareBuffer* spare_buffers_[2] = {};
  size_t spare_bytes_ = 0;
  uint64_t held_now_ = 0;  // connections in kHeld
  uint64_t lookup_bytes_ = 0;
  Connection* leader_ = nullptr;
};

}  // namespace lunar::redis
