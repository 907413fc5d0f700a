// SPDX-License-Identifier: Apache-2.0
// The memory that the processes of a mirror share: a file of /dev/shm by the session's number. Who makes it, who is still in it,
// who removes it.
//
//   byte 0   part     shared by all who have it mapped
//        1   writer   shared, besides, by those who opened the mirror for writing
//        2   change   exclusive while somebody maps it, leaves it or removes it
//
// The first two lie on the open file description that the *mapping* keeps; its descriptor is closed at once. So a program that closes
// all its descriptors loses nothing, a forked child takes part with the memory it inherits, before it does anything, and exit, exec
// and kill -9 end it all by themselves. Who leaves unmaps first and asks then, by another description: a child that goes on with the
// mirror is seen like any other process.
//
// Order: the mirror's gate, then `change`.
// Threading: one thread at a time; blocking. Not for the fault path.
#pragma once
#include <cstdint>

namespace lunar {

struct MirrorShared;

class SessionFile {
 public:
  SessionFile() = default;
  ~SessionFile() { close(); }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;
  // Opens it and takes `change` (waits up to 10 s). A file of another user is opened for reading where it may be. 0, -ENOENT
  // (nor is it to be created), -EACCES, -EBUSY, -errno.
  [[nodiscard]] int open(uint64_t session, bool create);
  bool read_only() const { return read_only_; }
  // Whether others than this description have it mapped, or have it for writing.
  bool used() const;
  bool written() const;
  // All zeros, in full size. Pre: not used.
  [[nodiscard]] int clear();
  // Maps it and takes part, until the mapping goes. A file of another user is mapped for reading.
  [[nodiscard]] int map(bool writer, MirrorShared** out);
  // Maps it for the time of a look, taking no part.
  [[nodiscard]] int look(MirrorShared** out);
  void remove();
  void close();

 private:
  int fd_ = -1;
  uint64_t session_ = 0;
  bool read_only_ = false;
};

// Everything but `states` and `ready`, as at the first open of a session. Readers may be in it.
void session_set_up(MirrorShared* shared, const uint8_t* uuid, uint64_t session);
// Whether it is what this version makes, of that set.
bool session_sound(const MirrorShared* shared, const uint8_t* uuid);

}  // namespace lunar
