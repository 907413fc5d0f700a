// SPDX-License-Identifier: Apache-2.0
// The shared memory of a mirror's processes: see mirror_memory.h.
// Threading: one thread at a time; blocking. Not for the fault path.
#include "lun/mirror_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/format.h"
#include "base/units.h"
#include "lun/held_locks.h"
#include "lun/mirror_state.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr char kMagic[8] = {'L', 'u', 'n', 'M', 'i', 'r', 'r', '2'};
constexpr uint64_t kPart = 0, kWriter = 1, kChange = 2;
constexpr uint64_t kWaitNs = 10'000'000'000, kPauseNs = 1'000'000;

constexpr int kNoTricks = O_NOFOLLOW | O_NONBLOCK;   // anybody may put names into /dev/shm
constexpr unsigned kMakeTries = 8;                    // its maker is just giving it its rights, or sees that it must not make one
constexpr uint64_t kMakePauseNs = 2'000'000;

// As far as one may. Its owner may always use it.
void give_rights(int fd, const SessionRights& rights) {
  mode_t mode = (rights.mode & 0666) | 0600;
  if (sys::set_owner(fd, rights.user, rights.group) < 0 && sys::set_owner(fd, static_cast<uid_t>(-1), rights.group) < 0) mode &= ~0060u;
  sys::set_mode(fd, mode);
}

// Made by root, by `user`, or by one who could write to the member as well (only who is in a group can give a file to it).
bool known(int fd, const SessionRights& rights, uid_t user) {
  struct stat file;
  if (sys::file_status(fd, &file) < 0 || !S_ISREG(file.st_mode)) return false;
  return file.st_uid == 0 || file.st_uid == user || file.st_uid == rights.user || (rights.mode & S_IWOTH) ||
         (file.st_gid == rights.group && (rights.mode & S_IWGRP));
}

int open_either(const char* path, bool create, const SessionRights& rights, bool* read_only) {
  *read_only = false;
  int fd = sys::open_file(path, O_RDWR | kNoTricks);
  if (fd == -ENOENT && create) {
    fd = sys::open_file(path, O_RDWR | O_CREAT | O_EXCL | kNoTricks, 0600);
    if (fd >= 0) give_rights(fd, rights);
  }
  if (fd == -EACCES) {
    *read_only = true;
    fd = sys::open_file(path, O_RDONLY | kNoTricks);
  }
  return fd == -ELOOP || fd == -EISDIR || fd == -ENXIO ? -EPERM : fd;
}

void end(int fd) {
  forget_held(fd);
  sys::close_file(fd);
}

// Whether the path still leads to it: who waited for `change` may have waited for one that removed it.
bool is_there(const char* path, int fd) {
  struct stat there, here;
  return sys::path_status(path, &there) == 0 && sys::file_status(fd, &here) == 0 && there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

}  // namespace

SessionRights session_rights(int fd) {
  SessionRights out;
  struct stat member;
  if (sys::file_status(fd, &member) < 0) return out;
  out.user = member.st_uid;
  out.group = member.st_gid;
  out.mode = member.st_mode & (sys::has_acl(fd) ? 0606 : 0666);
  return out;
}

void session_path(uint64_t session, char* path, size_t size) {
  format_to(path, size, "/dev/shm/lunar-mirror-%08x%08x", static_cast<unsigned>(session >> 32), static_cast<unsigned>(session));
}

int SessionFile::open(uint64_t session, bool create) {
  close();
  char path[64];
  session_path(session, path, sizeof path);
  const uint64_t until = sys::now_ns() + kWaitNs;
  for (unsigned tries = 0;;) {
    const int fd = open_either(path, create, rights_, &read_only_);
    int status = fd == -EEXIST ? -EAGAIN : fd;
    if (fd >= 0) {
      note_held(fd);
      const sys::RangeLock kind = read_only_ ? sys::RangeLock::kShared : sys::RangeLock::kExclusive;
      while ((status = sys::lock_range(fd, kind, kChange, 1)) == -EAGAIN && sys::now_ns() < until) sys::sleep_ns(kPauseNs);
      const bool there = is_there(path, fd);
      if (there && !known(fd, rights_, geteuid())) status = -EPERM;
      if (there && status == 0) {
        fd_ = fd;
        session_ = session;
        return 0;
      }
      end(fd);
    }
    if ((status == -EACCES || status == -EPERM) && tries++ < kMakeTries) sys::sleep_ns(kMakePauseNs);
    else if (status < 0 && status != -EAGAIN) return status;
    if (sys::now_ns() > until) return status == -EPERM ? status : -EBUSY;
  }
}

bool SessionFile::used() const { return sys::range_locked(fd_, kPart, 1) != 0; }
bool SessionFile::written() const { return sys::range_locked(fd_, kWriter, 1) != 0; }

bool SessionFile::known_to_all() const { return known(fd_, rights_, 0); }

int SessionFile::clear() {
  give_rights(fd_, rights_);   // who made it may have been killed before
  const int status = sys::set_file_size(fd_, 0);
  return status < 0 ? status : sys::allocate_space(fd_, 0, round_up(sizeof(MirrorShared), 4096));
}

// By a description of its own, which a mapping may keep: one in a child that was forked meanwhile must not keep `change`.
int SessionFile::open_beside() const {
  char path[64];
  session_path(session_, path, sizeof path);
  const int fd = sys::open_file(path, (read_only_ ? O_RDONLY : O_RDWR) | kNoTricks);
  if (fd < 0) return fd;
  struct stat file;
  if (is_there(path, fd_) && is_there(path, fd) && sys::file_status(fd, &file) == 0) {
    if (static_cast<uint64_t>(file.st_size) >= sizeof(MirrorShared)) return fd;
    sys::close_file(fd);
    return -EBADMSG;
  }
  sys::close_file(fd);
  return -ENOENT;
}

int SessionFile::look(MirrorShared** out) {
  *out = nullptr;
  const int fd = open_beside();
  if (fd < 0) return fd;
  void* memory = nullptr;
  const int status = sys::map(nullptr, sizeof(MirrorShared), PROT_READ | PROT_WRITE, read_only_ ? MAP_PRIVATE : MAP_SHARED, fd, 0, &memory);
  sys::close_file(fd);
  if (status == 0) *out = static_cast<MirrorShared*>(memory);
  return status;
}

int SessionFile::map(bool writer, MirrorShared** out) {
  const int fd = open_beside();
  if (fd < 0) return fd;
  note_held(fd);
  void* memory = nullptr;
  int status = sys::lock_range(fd, sys::RangeLock::kShared, kPart, writer ? 2 : 1);
  const int access = read_only_ ? PROT_READ : PROT_READ | PROT_WRITE;
  if (status == 0) status = sys::map(nullptr, sizeof(MirrorShared), access, MAP_SHARED, fd, 0, &memory);
  end(fd);
  if (status == 0) *out = static_cast<MirrorShared*>(memory);
  return status;
}

void SessionFile::remove() {
  if (fd_ < 0) return;
  char path[64];
  session_path(session_, path, sizeof path);
  if (is_there(path, fd_)) (void)unlink(path);
}

void SessionFile::close() {
  if (fd_ < 0) return;
  (void)sys::lock_range(fd_, sys::RangeLock::kNone, kChange, 1);
  end(fd_);
  fd_ = -1;
}

void session_set_up(MirrorShared* shared, const uint8_t* uuid, uint64_t session) {
  memcpy(shared->magic, kMagic, sizeof kMagic);
  shared->bytes = sizeof(MirrorShared);
  memcpy(shared->uuid, uuid, sizeof shared->uuid);
  shared->session = session;
  shared->present = 0;
  shared->locked.store(-1, std::memory_order_relaxed);
  shared->generation.store(0, std::memory_order_relaxed);
  shared->copied.store(0, std::memory_order_relaxed);
  shared->unclean.store(0, std::memory_order_relaxed);
  shared->ahead.store(0, std::memory_order_relaxed);
  for (MirrorSlot& slot : shared->slot) {   // of writers that are gone
    for (std::atomic<uint16_t>& writes : slot.writes) writes.store(0, std::memory_order_relaxed);
    slot.blocked.store(0, std::memory_order_relaxed);
    slot.name_space.store(0, std::memory_order_relaxed);
    slot.owner.store(0, std::memory_order_relaxed);
  }
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared->states_lock, &attributes);
  pthread_mutex_init(&shared->copy_lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

bool session_sound(const MirrorShared* shared, const uint8_t* uuid) {
  return memcmp(shared->magic, kMagic, sizeof kMagic) == 0 && shared->bytes == sizeof(MirrorShared) &&
         memcmp(shared->uuid, uuid, sizeof shared->uuid) == 0 && shared->ready.load(std::memory_order_acquire) != 0;
}

}  // namespace lunar
