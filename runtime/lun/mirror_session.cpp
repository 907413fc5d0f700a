// SPDX-License-Identifier: Apache-2.0
// A process joins and leaves a mirror: see mirror_state.h.
//
// Idea: the gate is held from before the labels are read until the session is there. The first one decides what the members hold,
// by the labels alone; everybody else takes over what the session's memory says.
// Threading: open and close on one thread at a time a mirror; blocking. Not for the fault path.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "base/arena.h"
#include "base/format.h"
#include "base/log.h"
#include "lun/fan_out.h"
#include "lun/mirror_state.h"
#include "superpipe/device_files.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kGateByte = (uint64_t{1} << 62) + (uint64_t{1} << 40), kOpenByte = kGateByte + 1;
constexpr uint64_t kGateWaitNs = 10'000'000'000, kGatePauseNs = 2'000'000;
constexpr char kMagic[8] = {'L', 'u', 'n', 'M', 'i', 'r', 'r', '1'};

// Sessions of mirrors without descriptors, which this process alone has.
struct LocalSession {
  LocalSession* next;
  MirrorShared* shared;
  unsigned users, readers;   // both 0: to be used again
  uint8_t uuid[16];
};
sys::Mutex local_lock;
LocalSession* local_sessions = nullptr;

void path_of(uint64_t session, char* path, size_t size) {
  format_to(path, size, "/dev/shm/lunar-mirror-%08x%08x", static_cast<unsigned>(session >> 32), static_cast<unsigned>(session));
}

void set_up(MirrorShared* shared, const uint8_t* uuid, uint64_t session) {
  memcpy(shared->magic, kMagic, sizeof kMagic);
  shared->bytes = sizeof(MirrorShared);
  memcpy(shared->uuid, uuid, sizeof shared->uuid);
  shared->session = session;
  shared->locked.store(-1, std::memory_order_relaxed);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared->states_lock, &attributes);
  pthread_mutex_init(&shared->copy_lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

// Whether no other process can have it.
bool only_sim(Device* device) {
  if (strcmp(device->kind(), "sim") == 0) return true;
  if (strcmp(device->kind(), "stripe") != 0 && strcmp(device->kind(), "paths") != 0) return false;
  const auto* several = static_cast<FanDevice*>(device);
  for (unsigned i = 0; i < several->member_count(); ++i) {
    if (several->member(i) && !only_sim(several->member(i))) return false;
  }
  return true;
}

int explain_lock(int status, const char* uri, ErrorText* why) {
  if (status == -EBUSY) return why->set(status, "LUN %s: somebody has been opening or closing it for 10 s; try again", uri);
  return why->set(status, "LUN %s: cannot lock its members: %s", uri, errno_text(status));
}

}  // namespace

// The gate of every member, in order.
int MirrorState::lock_all(bool wait) {
  const uint64_t end = sys::now_ns() + kGateWaitNs;
  for (unsigned i = 0; i < count_; ++i) {
    if (!device_[i] || device_[i]->fd_count() == 0) continue;
    int status;
    while ((status = device_lock(device_[i], sys::RangeLock::kExclusive, kGateByte, 1)) == -EAGAIN) {
      if (!wait || sys::now_ns() > end) {
        status = -EBUSY;
        break;
      }
      sys::sleep_ns(kGatePauseNs);
    }
    if (status < 0) {
      unlock_gate();
      return status;
    }
  }
  return 0;
}

void MirrorState::unlock_gate() {
  for (unsigned i = 0; i < count_; ++i) {
    if (device_[i] && device_[i]->fd_count()) (void)device_lock(device_[i], sys::RangeLock::kNone, kGateByte, 1);
  }
}

// 1: nobody else has it open (and nobody else can say so while the gate is held); 0, -errno. Leaves the open byte shared.
int MirrorState::alone() {
  int out = 1;
  for (unsigned i = 0; i < count_ && out >= 0; ++i) {
    if (!device_[i] || device_[i]->fd_count() == 0) continue;
    const int status = device_lock(device_[i], sys::RangeLock::kExclusive, kOpenByte, 1);
    if (status == -EAGAIN) out = 0;
    else if (status < 0) out = status;
  }
  for (unsigned i = 0; i < count_; ++i) {
    if (!device_[i] || device_[i]->fd_count() == 0) continue;
    const int status = device_lock(device_[i], sys::RangeLock::kShared, kOpenByte, 1);
    if (status < 0 && out >= 0) out = status;
  }
  return out;
}

// What the members hold, by their labels.
int MirrorState::decide(const char* uri, const MemberSet& set, uint32_t missing, uint32_t* states, bool* dirty, ErrorText* why) {
  const MemberLabel& newest = set.label[set.newest];
  uint32_t in_sync = 0, unsure = 0;
  *dirty = false;
  for (unsigned i = 0; i < count_; ++i) {
    const auto held = static_cast<MemberState>(newest.states[i]);
    if (!set.device[i]) {
      if (held == MemberState::kStale || (missing >> i & 1)) continue;
      return why->set(-ENXIO, "LUN %s: member %u cannot be opened and may have newer data; mend it, or write 'missing' in its place "
                      "if it is lost", uri, i + 1);
    }
    const MemberLabel& label = set.label[i];
    *dirty |= label.dirty != 0;
    const bool apart = label.events == newest.events && memcmp(label.states, newest.states, sizeof label.states) != 0;
    const bool each_other = label.states[i] == 0 && label.states[set.newest] == static_cast<uint8_t>(MemberState::kStale) &&
                            held == MemberState::kStale;
    if (apart || each_other)
      return why->set(-EBADMSG, "LUN %s: members %s and %s were changed apart from each other; leave one out (write 'missing')", uri,
                      set.device[i]->name(), set.device[set.newest]->name());
    if (held == MemberState::kInSync) in_sync |= 1u << i;
    if (held == MemberState::kUnsure) unsure |= 1u << i;
  }
  if (in_sync == 0 && unsure) in_sync = unsure & (~unsure + 1);
  if (in_sync == 0) return why->set(-EIO, "LUN %s: the members that are there are stale; the one that has everything is missing", uri);
  const uint32_t preferred = in_sync & (~in_sync + 1);
  *states = 0;
  for (unsigned i = 0; i < count_; ++i) {
    const uint32_t bit = 1u << i;
    CopyState state = CopyState::kStale;
    if (!set.device[i]) state = CopyState::kFailed;
    else if (preferred & bit) state = CopyState::kInSync;
    else if (in_sync & bit) state = *dirty ? CopyState::kUnsure : CopyState::kInSync;
    else if (unsure & bit) state = CopyState::kUnsure;
    *states |= static_cast<uint32_t>(state) << i * 8;
  }
  return 0;
}

int MirrorState::map_session(const char* uri, uint64_t session, bool create, ErrorText* why) {
  char path[64];
  path_of(session, path, sizeof path);
  const int fd = sys::open_file(path, create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (fd == -EACCES) return why->set(fd, "LUN %s: processes of another user have it open", uri);
  if (fd == -ENOENT && !create)
    return why->set(-EBUSY, "LUN %s: open in processes with another /dev/shm (a container?), or by one that is just closing; share "
                    "/dev/shm with them", uri);
  if (fd < 0) return why->set(fd, "LUN %s: cannot %s %s: %s", uri, create ? "make" : "open", path, errno_text(fd));
  int status = create ? sys::allocate_space(fd, 0, round_up(sizeof(MirrorShared), 4096)) : 0;
  void* memory = nullptr;
  if (status == 0) status = sys::map(nullptr, sizeof(MirrorShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &memory);
  sys::close_file(fd);
  if (status < 0) {
    if (create) (void)unlink(path);
    return why->set(status, "LUN %s: cannot map %s: %s", uri, path, errno_text(status));
  }
  shared_ = static_cast<MirrorShared*>(memory);
  return 0;
}

int MirrorState::begin_session(const char* uri, MemberSet* set, uint32_t missing, ErrorText* why) {
  uint32_t states = 0;
  bool dirty = false;
  int status = decide(uri, *set, missing, &states, &dirty, why);
  if (status < 0) return status;
  uint64_t session = 0;
  while (session == 0) {
    status = sys::random_bytes(&session, sizeof session);
    if (status < 0) return why->set(status, "LUN %s: no random number: %s", uri, errno_text(status));
  }
  if (const uint64_t former = set->label[set->newest].session; former && !local_ && !read_only_) {   // its users are gone
    char path[64];
    path_of(former, path, sizeof path);
    (void)unlink(path);
  }
  // Who only reads must know what those who write find out.
  if (ErrorText ignored; read_only_ && dirty && !local_ && map_session(uri, set->label[set->newest].session, false, &ignored) == 0) {
    borrowed_ = true;
    if (memcmp(shared_->magic, kMagic, sizeof kMagic) == 0 && shared_->bytes == sizeof(MirrorShared)) return 0;
    return why->set(-EBADMSG, "LUN %s: the memory its processes share is not what this version makes", uri);
  }
  if (local_ || read_only_) {
    shared_ = static_cast<MirrorShared*>(map_private(sizeof(MirrorShared), ForkPolicy::kInherit));
    if (!shared_) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  } else {
    status = map_session(uri, session, true, why);
    if (status < 0) return status;
  }
  set_up(shared_, set->label[set->newest].set_uuid, session);
  for (unsigned i = 0; i < count_; ++i) shared_->present |= device_[i] ? 1u << i : 0;
  shared_->events.store(set->label[set->newest].events, std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i) {   // an unsure copy is not used by readers only: without a copier it stays out
    if (read_only_ && (states >> i * 8 & 0xff) == static_cast<uint32_t>(CopyState::kStale))
      states |= static_cast<uint32_t>(CopyState::kFailed) << i * 8;
  }
  while (!read_only_) {
    uint32_t failed = 0;
    if (write_labels(states, mask_of(states, CopyState::kInSync), &failed, true) == 0) break;
    if ((mask_of(states, CopyState::kInSync) & ~failed) == 0) {
      leave();
      return why->set(-EIO, "LUN %s: no member takes a new label; look at the devices", uri);
    }
    for (unsigned i = 0; i < count_; ++i) {
      if (failed >> i & 1) states |= 0xffu << i * 8, states &= ~(0xffu << i * 8) | static_cast<uint32_t>(CopyState::kFailed) << i * 8;
    }
  }
  shared_->states.store(states, std::memory_order_seq_cst);
  shared_->ready.store(1, std::memory_order_release);
  if (dirty && !read_only_) log_info("LUN %s: was not closed; its members are copied from the first", uri);
  return 0;
}

int MirrorState::join_session(const char* uri, MemberSet* set, ErrorText* why) {
  if (!local_) {
    const int status = map_session(uri, set->label[set->newest].session, false, why);
    if (status < 0) return status;
  }
  int status = 0;
  const MemberLabel& label = set->label[set->newest];
  if (memcmp(shared_->magic, kMagic, sizeof kMagic) != 0 || shared_->bytes != sizeof(MirrorShared) ||
      memcmp(shared_->uuid, label.set_uuid, sizeof label.set_uuid) != 0 || !shared_->ready.load(std::memory_order_acquire))
    status = why->set(-EBADMSG, "LUN %s: the memory its processes share is not what this version makes; close it everywhere first", uri);
  for (unsigned i = 0; i < count_ && status == 0; ++i) {
    const bool theirs = shared_->present >> i & 1;
    if (theirs && !device_[i])
      status = why->set(-ENXIO, "LUN %s: member %u cannot be opened here, and others have it open with that member", uri, i + 1);
    if (theirs || !device_[i]) continue;
    log_warning("LUN %s: member %s joins when all have closed it", uri, device_[i]->name());
    device_close(device_[i]);
    device_[i] = set->device[i] = nullptr;
  }
  if (status < 0 && !local_) {
    (void)sys::unmap(shared_, sizeof(MirrorShared));
    shared_ = nullptr;
  }
  return status;
}

int MirrorState::open(const char* uri, MemberSet* set, uint32_t missing, Format format, bool read_only, ErrorText* why) {
  count_ = set->count;
  read_only_ = read_only;
  pid_ = static_cast<int>(getpid());
  local_ = true;
  for (unsigned i = 0; i < count_; ++i) {
    device_[i] = set->device[i];
    if (!device_[i]) continue;
    if (device_[i]->fd_count()) local_ = false;
    else if (!only_sim(device_[i]))
      return why->set(-ENOTSUP, "LUN %s: member %s has no descriptor to lock, so nobody can tell who else uses it; give another kind", uri,
                      device_[i]->name());
  }
  const sys::Locked<sys::Mutex> locked(local_lock);   // opens of one process, one at a time
  int status = read_only ? 0 : lock_all(true);
  if (status < 0) return explain_lock(status, uri, why);
  int first = local_ || read_only ? 1 : alone();
  if (first < 0) status = explain_lock(first, uri, why);
  if (status == 0 && first == 0 && format == Format::kForce)
    status = why->set(-EBUSY, "LUN %s: in use; close it everywhere before it is formatted", uri);
  if (status == 0 && local_ && format == Format::kForce) {
    for (LocalSession* one = local_sessions; one && status == 0; one = one->next) {
      MemberLabel label;
      if (one->users && device_[0] && label_read(device_[0], &label) == 0 && memcmp(one->uuid, label.set_uuid, 16) == 0)
        status = why->set(-EBUSY, "LUN %s: in use; close it everywhere before it is formatted", uri);
    }
  }
  if (status == 0) status = label_assemble(uri, set, format, why);
  for (unsigned i = 0; i < count_; ++i) {   // those whose labels could not be read were closed
    device_[i] = set->device[i];
    label_[i] = set->label[i];
  }
  any_ = set->newest;
  LocalSession *mine = nullptr, *empty = nullptr;
  if (status == 0 && local_) {
    for (LocalSession* one = local_sessions; one; one = one->next) {
      if (one->users && memcmp(one->uuid, set->label[any_].set_uuid, sizeof one->uuid) == 0) mine = one;
      if (!one->users && !one->readers) empty = one;
    }
    if (mine) {
      shared_ = mine->shared;
      first = 0;
    } else if (!empty && !read_only) {
      empty = arena_new<LocalSession>();
      if (!empty) status = why->set(-ENOMEM, "LUN %s: out of memory", uri);
      else empty->next = local_sessions, local_sessions = empty;
    }
  }
  if (status == 0) status = first ? begin_session(uri, set, missing, why) : join_session(uri, set, why);
  if (status == 0 && local_ && !read_only) {
    if (!mine) {
      mine = empty;
      mine->shared = shared_;
      memcpy(mine->uuid, set->label[any_].set_uuid, sizeof mine->uuid);
    }
    ++mine->users;
  } else if (status == 0 && mine) {
    joined_ = true;
    ++mine->readers;
  }
  if (!read_only) unlock_gate();
  return status;
}

int MirrorState::hold(int fd) { return sys::lock_range(fd, sys::RangeLock::kShared, kOpenByte, 1); }

// The session's memory is let go; the last one removes it. True when this was the last.
bool MirrorState::leave() {
  if (!local_ && !read_only_) {
    char path[64];
    path_of(shared_->session, path, sizeof path);
    (void)unlink(path);
    (void)sys::unmap(shared_, sizeof(MirrorShared));
  } else if (local_ && !read_only_) {
    leave_local();
  } else {
    unmap_private(shared_, sizeof(MirrorShared));
  }
  shared_ = nullptr;
  return true;
}

// pre: counted out already. Readers that joined keep the memory.
void MirrorState::leave_local() {
  for (const LocalSession* one = local_sessions; one; one = one->next) {
    if (one->shared == shared_ && (one->users || one->readers)) return;
  }
  unmap_private(shared_, sizeof(MirrorShared));
}

void MirrorState::close() {
  const sys::Locked<sys::Mutex> locked(local_lock);
  if (!shared_) return;
  if (read_only_) {
    if (joined_) {
      LocalSession* mine = local_sessions;
      while (mine->shared != shared_ || !mine->readers) mine = mine->next;
      --mine->readers;
      leave_local();
    } else if (!borrowed_) (void)leave();
    else (void)sys::unmap(shared_, sizeof(MirrorShared));
    shared_ = nullptr;
    return;
  }
  bool last = static_cast<int>(getpid()) == pid_;   // a forked child shares its parent's locks: it cannot tell
  bool gate = false;
  if (local_) {
    LocalSession* mine = local_sessions;
    while (mine->shared != shared_ || !mine->users) mine = mine->next;
    last = --mine->users == 0;
  } else if (last) {
    gate = lock_all(true) == 0;
    last = gate && alone() == 1;
    for (const MirrorSlot& slot : shared_->slot) {   // children that go on with what they inherited
      const uint64_t owner = slot.owner.load(std::memory_order_acquire);
      if (owner && static_cast<int>(owner >> 32) != pid_) last = false;
    }
  }
  if (last) {
    bool clean = shared_->unclean.load(std::memory_order_seq_cst) == 0;
    for (const MirrorSlot& slot : shared_->slot)
      for (const std::atomic<uint16_t>& writes : slot.writes) clean &= writes.load(std::memory_order_seq_cst) == 0;
    const uint32_t states = shared_->states.load(std::memory_order_seq_cst);
    uint32_t failed = 0;
    Command flush;
    flush.op = Op::kFlush;
    for (unsigned i = 0; i < count_; ++i) {
      if (device_[i] && (mask_of(states, CopyState::kInSync) >> i & 1)) clean &= device_[i]->transfer(flush) >= 0;
    }
    if (clean) (void)write_labels(states, 0, &failed, false);
    (void)leave();
    for (unsigned i = 0; i < count_; ++i) {
      if (device_[i] && device_[i]->fd_count()) (void)device_lock(device_[i], sys::RangeLock::kNone, kOpenByte, 1);
    }
  } else if (!local_) {
    (void)sys::unmap(shared_, sizeof(MirrorShared));
  }
  shared_ = nullptr;
  if (gate) unlock_gate();
}

}  // namespace lunar
