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
#include "lun/mirror_state.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr char kMagic[8] = {'L', 'u', 'n', 'M', 'i', 'r', 'r', '2'};
constexpr uint64_t kPart = 0, kWriter = 1, kChange = 2;
constexpr uint64_t kWaitNs = 10'000'000'000, kPauseNs = 1'000'000;

void path_of(uint64_t session, char* path, size_t size) {
  format_to(path, size, "/dev/shm/lunar-mirror-%08x%08x", static_cast<unsigned>(session >> 32), static_cast<unsigned>(session));
}

int open_either(const char* path, bool create, bool* read_only) {
  *read_only = false;
  int fd = sys::open_file(path, O_RDWR | O_NOFOLLOW);
  if (fd == -ENOENT && create) fd = sys::open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
  if (fd != -EACCES) return fd;
  *read_only = true;
  return sys::open_file(path, O_RDONLY | O_NOFOLLOW);
}

// Whether the path still leads to it: who waited for `change` may have waited for one that removed it.
bool is_there(const char* path, int fd) {
  struct stat there, here;
  return sys::path_status(path, &there) == 0 && sys::file_status(fd, &here) == 0 && there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

}  // namespace

int SessionFile::open(uint64_t session, bool create) {
  close();
  char path[64];
  path_of(session, path, sizeof path);
  const uint64_t end = sys::now_ns() + kWaitNs;
  for (;;) {
    const int fd = open_either(path, create, &read_only_);
    if (fd < 0 && fd != -EEXIST) return fd;
    int status = -EAGAIN;
    if (fd >= 0) {
      const sys::RangeLock kind = read_only_ ? sys::RangeLock::kShared : sys::RangeLock::kExclusive;
      while ((status = sys::lock_range(fd, kind, kChange, 1)) == -EAGAIN && sys::now_ns() < end) sys::sleep_ns(kPauseNs);
      if (status == 0 && is_there(path, fd)) {
        fd_ = fd;
        session_ = session;
        return 0;
      }
      sys::close_file(fd);
    }
    if (status < 0 && status != -EAGAIN) return status;
    if (sys::now_ns() > end) return -EBUSY;
  }
}

bool SessionFile::used() const { return sys::range_locked(fd_, kPart, 1) != 0; }
bool SessionFile::written() const { return sys::range_locked(fd_, kWriter, 1) != 0; }

int SessionFile::clear() {
  const int status = sys::set_file_size(fd_, 0);
  return status < 0 ? status : sys::allocate_space(fd_, 0, round_up(sizeof(MirrorShared), 4096));
}

int SessionFile::look(MirrorShared** out) {
  struct stat file;
  int status = sys::file_status(fd_, &file);
  if (status == 0 && static_cast<uint64_t>(file.st_size) < sizeof(MirrorShared)) status = -EBADMSG;
  void* memory = nullptr;
  const int access = read_only_ ? PROT_READ : PROT_READ | PROT_WRITE;
  if (status == 0) status = sys::map(nullptr, sizeof(MirrorShared), access, MAP_SHARED, fd_, 0, &memory);
  *out = static_cast<MirrorShared*>(memory);
  return status;
}

int SessionFile::map(bool writer, MirrorShared** out) {
  const int status = sys::lock_range(fd_, sys::RangeLock::kShared, kPart, writer ? 2 : 1);
  return status < 0 ? status : look(out);
}

void SessionFile::remove() {
  if (fd_ < 0) return;
  char path[64];
  path_of(session_, path, sizeof path);
  (void)unlink(path);
}

void SessionFile::close() {
  if (fd_ < 0) return;
  (void)sys::lock_range(fd_, sys::RangeLock::kNone, kChange, 1);   // a mapping may keep the description
  sys::close_file(fd_);
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
