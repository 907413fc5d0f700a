// SPDX-License-Identifier: Apache-2.0
// The memory that the processes of a mirror share: a file of /dev/shm by the session's number. Who makes it, who is still in it,
// who removes it.
//
//   byte 0   part     shared by all who have it mapped
//        1   writer   shared, besides, by those who opened the mirror for writing
//        2   change   exclusive while somebody maps it, leaves it or removes it
//
// The first two lie on the open file description that the *mapping* keeps (`change` never does); its descriptor is closed at once. So a program that closes
// all its descriptors loses nothing, a forked child takes part with the memory it inherits, before it does anything, and exit, exec
// and kill -9 end it all by themselves. Who leaves unmaps first and asks then, by another description: a child that goes on with the
// mirror is seen like any other process.
//
// Who goes by it trusts it with the data, and anybody may put names into /dev/shm. So it has the owner, group and mode of a member, and
// one that was made by somebody who could not write to that member is refused.
//
// Order: the mirror's gate, then `change`.
// Threading: one thread at a time; blocking. Not for the fault path.
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace lunar {

struct MirrorShared;

// Of a member: whose file it is, and who may write to it.
struct SessionRights {
  uid_t user = 0;
  gid_t group = 0;
  mode_t mode = 0600;
};
// Of the file or node behind a descriptor. Where that has an ACL, its group bits say nothing and count as none.
SessionRights session_rights(int fd);
void session_path(uint64_t session, char* path, size_t size);

class SessionFile {
 public:
  explicit SessionFile(const SessionRights& rights) : rights_(rights) {}
  ~SessionFile() { close(); }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;
  // Opens it and takes `change` (waits up to 10 s). A file of another user is opened for reading where it may be. 0, -ENOENT
  // (nor is it to be created), -EACCES, -EBUSY, -EPERM (put there by somebody else, or no plain file), -errno.
  [[nodiscard]] int open(uint64_t session, bool create);
  bool read_only() const { return read_only_; }
  // Whether others than this description have it mapped, or have it for writing.
  bool used() const;
  bool written() const;
  // Whether every user who may open the members goes by it.
  bool known_to_all() const;
  // All zeros, in full size. Pre: not used.
  [[nodiscard]] int clear();
  // Maps it and takes part, until the mapping goes. A file of another user is mapped for reading.
  [[nodiscard]] int map(bool writer, MirrorShared** out);
  // Maps it for the time of a look, taking no part. A file of another user may be written to, for nobody else to see.
  [[nodiscard]] int look(MirrorShared** out);
  void remove();
  void close();

 private:
  int open_beside() const;
  const SessionRights rights_;
  int fd_ = -1;
  uint64_t session_ = 0;
  bool read_only_ = false;
};

// Everything but `states` and `ready`, as at the first open of a session. Readers may be in it.
void session_set_up(MirrorShared* shared, const uint8_t* uuid, uint64_t session);
// Whether it is what this version makes, of that set.
bool session_sound(const MirrorShared* shared, const uint8_t* uuid);

}  // namespace lunar
