// SPDX-License-Identifier: Apache-2.0
// A process joins and leaves a mirror: see mirror_state.h.
//
// Idea: the gate is held from before the labels are read until the session is there, and shared by those who only read. The first one
// decides what the members hold, by the labels alone; everybody else takes over what the session's memory says. Memory that readers
// have kept is taken on by the next who writes, so that they see what he finds out.
// Threading: open and close on one thread at a time a mirror; blocking. Not for the fault path.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <new>

#include "base/arena.h"
#include "base/log.h"
#include "lun/fan_out.h"
#include "lun/held_locks.h"
#include "lun/mirror_memory.h"
#include "lun/mirror_state.h"
#include "superpipe/device_files.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kGateByte = (uint64_t{1} << 62) + (uint64_t{1} << 40), kOpenByte = kGateByte + 1, kReadByte = kGateByte + 2;
constexpr uint64_t kGateWaitNs = 10'000'000'000, kGatePauseNs = 2'000'000;
// A process that has ended holds its members some milliseconds more (the kernel ends its rings in the background).
constexpr unsigned kEndingTries = 50;
constexpr uint64_t kEndingPauseNs = 20'000'000;

// Sessions of mirrors without descriptors, which this process alone has.
struct LocalSession {
  LocalSession* next;
  MirrorShared* shared;
  unsigned users, readers;   // both 0: to be used again
  uint8_t uuid[16];
};
sys::Mutex local_lock;
LocalSession* local_sessions = nullptr;

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

int explain_strange(uint64_t session, const char* uri, ErrorText* why) {
  char path[64];
  session_path(session, path, sizeof path);
  return why->set(-EPERM, "LUN %s: %s was put there by somebody who may not write to its members, or is no plain file; remove it when nobody "
                  "uses the mirror", uri, path);
}

// The session whose memory readers may have kept.
uint64_t former_session(const MemberLabel& label) {
  uint64_t out = label.session;
  if (out == 0) memcpy(&out, label.set_uuid, sizeof out);
  return out ? out : 1;
}

}  // namespace

// The gate of every member, in order. again: by descriptions of its own, as forked children share the devices'.
int MirrorState::lock_gate(bool shared, bool again) {
  const uint64_t end = sys::now_ns() + kGateWaitNs;
  const sys::RangeLock kind = shared ? sys::RangeLock::kShared : sys::RangeLock::kExclusive;
  for (unsigned i = 0; i < count_; ++i) {
    gate_files_[i] = device_[i] ? device_[i]->lock_count() : 0;
    for (unsigned f = 0; f < gate_files_[i]; ++f) {
      const int fresh = again ? sys::open_again(device_[i]->fd(f)) : -1;
      gate_own_[i][f] = fresh >= 0;
      if (fresh >= 0) note_held(fresh);
      gate_fd_[i][f] = fresh >= 0 ? fresh : device_[i]->fd(f);
    }
    int status;
    while ((status = files_lock(gate_fd_[i], gate_files_[i], kind, kGateByte, 1)) == -EAGAIN) {
      if (sys::now_ns() > end) {
        status = -EBUSY;
        break;
      }
      sys::sleep_ns(kGatePauseNs);
    }
    if (status < 0) {
      for (unsigned rest = i + 1; rest < count_; ++rest) gate_files_[rest] = 0;
      unlock_gate();
      return status;
    }
  }
  return 0;
}

void MirrorState::unlock_gate() {
  for (unsigned i = 0; i < count_; ++i) {
    for (unsigned f = 0; f < gate_files_[i] && device_[i]; ++f) {   // a member that was closed meanwhile took its lock along
      (void)sys::lock_range(gate_fd_[i][f], sys::RangeLock::kNone, kGateByte, 1);
      if (!gate_own_[i][f]) continue;
      forget_held(gate_fd_[i][f]);
      sys::close_file(gate_fd_[i][f]);
    }
    gate_files_[i] = 0;
  }
}

// 1: nobody else has it open for writing (and nobody else can say so while the gate is held); 0, -errno. Who writes shares the open
// byte afterwards.
int MirrorState::alone() {
  int out = 1;
  for (unsigned i = 0; i < count_ && out >= 0; ++i) {
    if (!device_[i] || device_[i]->fd_count() == 0) continue;
    int status = device_locked(device_[i], kOpenByte, 1);
    if (status == 1) out = 0;
    if (status >= 0 && !read_only_) status = device_lock(device_[i], sys::RangeLock::kShared, kOpenByte, 1);
    if (status < 0) out = status;
  }
  return out;
}

// Whether somebody reads it who follows those who write. Where that cannot be said, no.
bool MirrorState::followed() {
  bool out = false;
  for (unsigned i = 0; i < count_ && !out; ++i) out = device_[i] && device_[i]->fd_count() && device_locked(device_[i], kReadByte, 1) == 1;
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

// Where nothing can be shared: for a reader, who was warned.
int MirrorState::make_plain(const char* uri, int reason, ErrorText* why) {
  log_warning("LUN %s: cannot use /dev/shm (%s): what those who write find out later will not be known here", uri, errno_name(reason));
  shared_ = static_cast<MirrorShared*>(map_private(sizeof(MirrorShared), ForkPolicy::kInherit));
  plain_ = true;
  seen_only_ = false;
  return shared_ ? 0 : why->set(-ENOMEM, "LUN %s: out of memory", uri);
}

// The memory of a new session, or what readers have kept of the former one: shared_. *file keeps others out until it is set up.
// *joined: it is to be taken as it is. anew: whoever reads is let be. -EAGAIN: readers are there, and their memory is not.
int MirrorState::make_memory(const char* uri, const MemberLabel& label, bool anew, SessionFile* file, uint64_t* session, bool* joined,
                             ErrorText* why) {
  *session = former_session(label);
  int status = file->open(*session, read_only_);
  if (status == -EBUSY) return explain_lock(status, uri, why);
  if (status == -EPERM) return explain_strange(*session, uri, why);
  const bool used = status == 0 && file->used();
  bool keep = used && (read_only_ || !file->written()), made = false;
  if (!read_only_ && used && file->read_only())
    return why->set(-EACCES, "LUN %s: processes of another user have it open for reading; end them, or work as that user", uri);
  if (keep) {
    MirrorShared* memory = nullptr;
    keep = file->look(&memory) == 0 && session_sound(memory, label.set_uuid);
    if (memory) (void)sys::unmap(memory, sizeof(MirrorShared));
  }
  if (!keep && !read_only_) {
    if (!anew && followed()) return -EAGAIN;
    file->remove();   // its users are gone
    *session = 0;
    while (*session == 0) {
      status = sys::random_bytes(session, sizeof *session);
      if (status < 0) return why->set(status, "LUN %s: no random number: %s", uri, errno_text(status));
    }
    status = file->open(*session, true);
  }
  if (status == 0 && !keep) {
    if (read_only_ && used) status = -EBADMSG;   // not what this version makes: left to those who use it
    else if (file->read_only()) status = -EACCES;
    else made = true, status = file->clear();
    if (status == 0 && read_only_ && !file->known_to_all()) status = -EACCES;   // those who write would refuse it
  }
  if (status == 0) status = file->map(!read_only_, &shared_);
  if (status < 0 && made) file->remove();
  *joined = status == 0 && keep && read_only_;
  seen_only_ = file->read_only();
  if (status == 0) return 0;
  if (read_only_) return make_plain(uri, status, why);
  return why->set(status, "LUN %s: cannot make the memory its processes share in /dev/shm: %s", uri, errno_text(status));
}

// The first one: what the labels say becomes what the memory says, and the labels name the session.
int MirrorState::begin_session(const char* uri, const MemberSet& set, uint32_t missing, bool anew, ErrorText* why) {
  const MemberLabel& label = set.label[set.newest];
  uint32_t states = 0;
  bool dirty = false, joined = false;
  int status = decide(uri, set, missing, &states, &dirty, why);
  if (status < 0) return status;
  uint64_t session = former_session(label);
  SessionFile file(rights_);   // nobody else looks at the memory before it is ready
  if (!local_) status = make_memory(uri, label, anew, &file, &session, &joined, why);
  if (status < 0 || joined) return status;
  session_set_up(shared_, label.set_uuid, session);
  for (unsigned i = 0; i < count_; ++i) shared_->present |= device_[i] ? 1u << i : 0;
  shared_->events.store(label.events, std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i) {   // readers only: without a copier it stays out
    if (read_only_ && (states >> i * 8 & 0xff) == static_cast<uint32_t>(CopyState::kStale))
      states |= static_cast<uint32_t>(CopyState::kFailed) << i * 8;
  }
  while (!read_only_) {
    uint32_t failed = 0;
    if (write_labels(states, mask_of(states, CopyState::kInSync), &failed, true) == 0) break;
    if ((mask_of(states, CopyState::kInSync) & ~failed) == 0) {
      file.close();
      if (!local_) (void)leave(false);
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

// Others have it open. -EAGAIN: nobody is in the session that the labels name.
int MirrorState::join_session(const char* uri, MemberSet* set, ErrorText* why) {
  const MemberLabel& label = set->label[set->newest];
  if (!local_) {
    SessionFile file(rights_);
    int status = file.open(former_session(label), false);
    if (status == -EPERM) return explain_strange(former_session(label), uri, why);
    if (status == -ENOENT || (status == 0 && !file.written())) return -EAGAIN;
    if (status == -EACCES || (status == 0 && file.read_only() && !read_only_))
      return why->set(-EACCES, "LUN %s: processes of another user have it open", uri);
    if (status == 0) status = file.map(!read_only_, &shared_);
    seen_only_ = file.read_only();
    if (status == -EBUSY) return explain_lock(status, uri, why);
    if (status < 0) return why->set(status, "LUN %s: cannot map the memory its processes share: %s", uri, errno_text(status));
  }
  int status = 0;
  if (!session_sound(shared_, label.set_uuid))
    status = why->set(-EBADMSG, "LUN %s: the memory its processes share is not what this version makes; close it everywhere first", uri);
  for (unsigned i = 0; i < count_ && status == 0 && !read_only_; ++i) {
    const bool theirs = shared_->present >> i & 1;
    if (theirs && !device_[i])
      status = why->set(-ENXIO, "LUN %s: member %u cannot be opened here, and others have it open with that member", uri, i + 1);
    if (theirs || !device_[i]) continue;
    log_warning("LUN %s: member %s joins when all have closed it", uri, device_[i]->name());
    device_close(device_[i]);
    device_[i] = set->device[i] = nullptr;
  }
  if (status < 0 && !local_) (void)leave(false);
  return status;
}

int MirrorState::take_labels(const char* uri, MemberSet* set, Format format, ErrorText* why) {
  const int status = label_assemble(uri, set, format, why);
  for (unsigned i = 0; i < count_; ++i) {   // those whose labels could not be read were closed
    device_[i] = set->device[i];
    label_[i] = set->label[i];
  }
  any_ = set->newest;
  return status;
}

// pre: the gate is held
int MirrorState::open_shared(const char* uri, MemberSet* set, uint32_t missing, Format format, ErrorText* why) {
  int first = alone();
  if (first == 0 && format == Format::kForce)
    return why->set(-EBUSY, "LUN %s: in use; close it everywhere before it is formatted", uri);
  for (unsigned tries = 0;; ++tries) {
    if (first < 0) return explain_lock(first, uri, why);
    int status = take_labels(uri, set, tries ? Format::kNever : format, why);
    if (status < 0) return status;
    status = first ? begin_session(uri, *set, missing, format == Format::kForce, why) : join_session(uri, set, why);
    for (unsigned i = 0; i < count_ && status == 0 && read_only_ && !plain_; ++i) {
      if (device_[i] && device_[i]->fd_count()) (void)device_lock(device_[i], sys::RangeLock::kShared, kReadByte, 1);
    }
    if (status != -EAGAIN) return status;
    if (tries == kEndingTries && first)
      return why->set(-EBUSY, "LUN %s: open for reading in processes with another /dev/shm (a container?), or of another user; share "
                      "/dev/shm with them, or end them", uri);
    if (tries == kEndingTries)
      return why->set(-EBUSY, "LUN %s: open in processes with another /dev/shm (a container?); share /dev/shm with them", uri);
    sys::sleep_ns(kEndingPauseNs);
    first = alone();
  }
}

int MirrorState::open_local(const char* uri, MemberSet* set, uint32_t missing, Format format, ErrorText* why) {
  LocalSession *mine = nullptr, *empty = nullptr;
  if (format == Format::kForce) {
    for (LocalSession* one = local_sessions; one; one = one->next) {
      MemberLabel label;
      if (one->users && device_[0] && label_read(device_[0], &label) == 0 && memcmp(one->uuid, label.set_uuid, 16) == 0)
        return why->set(-EBUSY, "LUN %s: in use; close it everywhere before it is formatted", uri);
    }
  }
  int status = take_labels(uri, set, format, why);
  if (status < 0) return status;
  for (LocalSession* one = local_sessions; one; one = one->next) {
    const bool used = one->users || one->readers;
    if (used && memcmp(one->uuid, set->label[any_].set_uuid, sizeof one->uuid) == 0) mine = one;
    if (!used) empty = one;
  }
  if (mine) {
    shared_ = mine->shared;
  } else {
    if (!empty && (empty = arena_new<LocalSession>()) != nullptr) empty->next = local_sessions, local_sessions = empty;
    if (empty) shared_ = static_cast<MirrorShared*>(map_private(sizeof(MirrorShared), ForkPolicy::kInherit));
    if (!shared_) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  }
  status = mine && (mine->users || read_only_) ? join_session(uri, set, why) : begin_session(uri, *set, missing, true, why);
  if (status < 0) {
    if (!mine) unmap_private(shared_, sizeof(MirrorShared));
    shared_ = nullptr;
    return status;
  }
  if (!mine) {
    mine = empty;
    mine->shared = shared_;
    memcpy(mine->uuid, set->label[any_].set_uuid, sizeof mine->uuid);
  }
  ++(read_only_ ? mine->readers : mine->users);
  return 0;
}

int MirrorState::open(const char* uri, MemberSet* set, uint32_t missing, Format format, bool read_only, ErrorText* why) {
  count_ = set->count;
  read_only_ = read_only;
  local_ = true;
  for (unsigned i = 0; i < count_; ++i) {
    device_[i] = set->device[i];
    if (!device_[i]) continue;
    if (device_[i]->fd_count()) {
      if (local_) rights_ = session_rights(device_[i]->fd(0));
      local_ = false;
    } else if (!only_sim(device_[i]))
      return why->set(-ENOTSUP, "LUN %s: member %s has no descriptor to lock, so nobody can tell who else uses it; give another kind", uri,
                      device_[i]->name());
  }
  const sys::Locked<sys::Mutex> locked(local_lock);   // opens of one process, one at a time
  int status = lock_gate(read_only_, false);
  if (status < 0) return explain_lock(status, uri, why);
  status = local_ ? open_local(uri, set, missing, format, why) : open_shared(uri, set, missing, format, why);
  unlock_gate();
  return status;
}

int MirrorState::hold(int fd) { return sys::lock_range(fd, sys::RangeLock::kShared, kOpenByte, 1); }

// The last writer: all is clean, unless writes were cut off. pre: the gate is held.
void MirrorState::settle_labels() {
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
}

// Ends this process' part in the session's memory; the last one removes it. settle: the last who writes does what is to be done then.
// True when this was the last one who writes; of one who reads, the last of all.
bool MirrorState::leave(bool settle) {
  SessionFile file(rights_);
  MirrorShared* memory = nullptr;
  int status = file.open(shared_->session, false);
  if (status == 0) status = file.look(&memory);
  (void)sys::unmap(shared_, sizeof(MirrorShared));   // from here on nobody but others is in it: a forked child, too
  shared_ = memory;
  const bool used = status < 0 || file.used(), written = status < 0 || file.written();
  if (status < 0 && settle)   // a user, a root directory or a mount namespace that is not the one of the open
    log_warning("mirror of %s: cannot look for who else has it open, in /dev/shm (%s): it is not marked clean, the next open copies its members",
                device_[any_] ? device_[any_]->name() : "?", errno_name(status));
  if (!written && settle) settle_labels();
  if (!used) file.remove();
  if (memory) (void)sys::unmap(memory, sizeof(MirrorShared));
  shared_ = nullptr;
  return read_only_ ? !used : !written;
}

void MirrorState::close_local() {
  LocalSession* mine = local_sessions;
  while (mine->shared != shared_ || !(read_only_ ? mine->readers : mine->users)) mine = mine->next;
  --(read_only_ ? mine->readers : mine->users);
  if (!read_only_ && mine->users == 0) settle_labels();
  if (mine->users == 0 && mine->readers == 0) unmap_private(shared_, sizeof(MirrorShared));
}

void MirrorState::close() {
  const sys::Locked<sys::Mutex> locked(local_lock);
  if (!shared_) return;
  if (local_) close_local();
  else if (plain_) unmap_private(shared_, sizeof(MirrorShared));
  else {
    const bool gate = !read_only_ && lock_gate(false, true) == 0;
    const bool last = leave(gate);
    for (unsigned i = 0; i < count_ && last && (gate || read_only_); ++i) {   // rings that are being ended keep the description
      if (device_[i] && device_[i]->fd_count()) (void)device_lock(device_[i], sys::RangeLock::kNone, read_only_ ? kReadByte : kOpenByte, 1);
    }
    if (gate) unlock_gate();
  }
  shared_ = nullptr;
}

}  // namespace lunar
