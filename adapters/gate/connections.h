// SPDX-License-Identifier: Apache-2.0
// Connections of which the gate keeps bytes. One that has none of its bytes here has no entry: a look-up by descriptor then
// finds nothing.
//
//   kPartial   the start of a command; more is to come from the socket
//   kHeld      begins with a command whose pages are being fetched, until `deadline_ns`
//   kReady     the pages are in, or have been waited for long enough (`late`): the server is to read
//
// Threading: the main thread. A thread of the server or of a module that reads or closes in its place may take bytes out of an
// entry (the main thread does not touch that connection meanwhile), and notes that it closed a descriptor: the entry is dropped
// when the main thread next looks for it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar::redis {

enum class Hold : uint8_t { kPartial, kHeld, kReady };

struct Connection {
  int fd = -1;
  Hold state = Hold::kPartial;
  bool parked = false, taken_out = false;   // masked in epoll; not in it: the other side has hung up
  bool late = false;
  unsigned rounds = 0;
  uint64_t hold = 0;          // number of its last hold: what a request of an earlier one brings in does not end it
  uint64_t since_ns = 0, deadline_ns = 0;   // of the first command's hold
  uint64_t seen = 0;          // round of epoll_wait that has it in its result
  char* data = nullptr;       // bytes [begin, end) of `capacity`
  size_t begin = 0, end = 0, capacity = 0;
  Connection *previous = nullptr, *next = nullptr;   // in the list of its state
  size_t size() const { return end - begin; }
  const char* first() const { return data + begin; }
};

struct ConnectionList {
  Connection *head = nullptr, *tail = nullptr;
  void append(Connection* c);
  void remove(Connection* c);
};

class Connections {
 public:
  static constexpr int kDescriptorsMax = 1 << 20;
  static constexpr size_t kMappedMax = 32 << 20;   // of all buffers

  [[nodiscard]] bool start();   // false: no memory
  Connection* find(int fd);     // main thread
  Connection* find_elsewhere(int fd) const { return known(fd) && !closed_[fd].load(std::memory_order_acquire) ? table_[fd] : nullptr; }
  void note_closed(int fd) {    // before the descriptor is closed
    if (known(fd)) closed_[fd].store(true, std::memory_order_release);
  }
  Connection* add(int fd);      // nullptr: no memory. kPartial, empty. pre: none for fd
  void drop(Connection* c);
  // Bytes become `bytes` of `data`, which may not lie in it. False: no memory, or kMappedMax is reached; nothing changed.
  [[nodiscard]] bool fill(Connection* c, const char* data, size_t bytes);
  void enter(Connection* c, Hold state);

  ConnectionList& held() { return lists_[1]; }    // by deadline
  ConnectionList& ready() { return lists_[2]; }

 private:
  bool known(int fd) const { return fd >= 0 && fd < kDescriptorsMax && table_ != nullptr; }
  void unmap(Connection* c);

  ConnectionList lists_[3];
  Connection** table_ = nullptr;
  std::atomic<bool>* closed_ = nullptr;   // by another thread, since an entry was made
  Connection* spare_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace lunar::redis
