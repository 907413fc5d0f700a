// SPDX-License-Identifier: Apache-2.0
// The mirror's service thread: repairs, members that come back, copying. See mirror_device.h and mirror_state.h.
//
// One thread of all processes does it at a time (the copy lock). A pass over a member compares every region with the preferred
// copy and writes what differs, each under the region's lock; a pass that found no difference is the verification. After that
// the member is flushed and in sync.
// Threading: this thread's own, but for want_repair. Blocks. May not be used on the fault path.
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "lun/mirror_device.h"

namespace lunar {
namespace {

constexpr uint64_t kBackoffMax = 300;          // times the first wait
constexpr int64_t kLookNs = 50'000'000;        // while something is to be done that cannot be done yet
constexpr unsigned kPassesMax = 4;
constexpr unsigned kSourceTries = 3;

}  // namespace

// ---- repairs ----

void MirrorDevice::want_repair(uint32_t members, uint64_t offset, uint64_t bytes) {
  if (read_only_) return;
  {
    const sys::Locked<sys::SpinLock> locked(repairs_lock_);
    for (unsigned i = 0; i < count_; ++i) {
      if (!(members >> i & 1) || repairs_count_ == kRepairsMax) continue;   // too many: the next read asks again
      repairs_[(repairs_first_ + repairs_count_++) % kRepairsMax] = {offset, bytes, i};
    }
  }
  MirrorShared& shared = state_.shared();
  shared.change.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake(&shared.change, 1 << 20, true);
}

bool MirrorDevice::next_repair(Repair* out) {
  const sys::Locked<sys::SpinLock> locked(repairs_lock_);
  if (repairs_count_ == 0) return false;
  *out = repairs_[repairs_first_];
  repairs_first_ = (repairs_first_ + 1) % kRepairsMax;
  --repairs_count_;
  return true;
}

void MirrorDevice::repair(const Repair& what) {
  for (uint64_t at = round_down(what.offset, kMirrorRegionBytes); at < what.offset + what.bytes; at += kMirrorRegionBytes) {
    if (stop_ || state_.state(what.member) != CopyState::kInSync) return;
    bool differed = false;
    const int status = copy_region(what.member, at, true, &differed);
    if (status == -EINTR || status == -ENODATA) return;
    if (status < 0) {
      log_warning("LUN %s: a read error of %s could not be mended", name_, member_[what.member]->name());
      (void)state_.fail(1u << what.member, ((1u << count_) - 1) & ~(1u << what.member));
      return;
    }
    if (differed) state_.shared().repairs.fetch_add(1, std::memory_order_relaxed);
  }
}

// ---- copying ----

int64_t MirrorDevice::move(unsigned member, Op op, uint64_t offset, void* buffer, uint64_t bytes) {
  const iovec part = {buffer, bytes};
  Command command;
  command.op = op;
  command.offset = DeviceOffset{kMemberDataOffset + offset};
  command.iov = &part;
  command.iov_count = 1;
  const int64_t n = member_[member]->transfer(command);
  return n < 0 || static_cast<uint64_t>(n) == bytes ? n : -EIO;
}

// Makes a region of `member` what another one in sync has. force: the member is in sync and could not be read there; it is written
// wherever it cannot be read, and must be readable then. *differed: it was written. 0; -EINTR: told to stop; -ENODATA: no source;
// else the member's error.
int MirrorDevice::copy_region(unsigned member, uint64_t offset, bool force, bool* differed) {
  *differed = false;
  const uint64_t bytes = size_bytes_ - offset < kMirrorRegionBytes ? size_bytes_ - offset : kMirrorRegionBytes;
  char *from = buffer_, *there = buffer_ + kMirrorRegionBytes;
  if (!state_.lock_region(offset, &stop_)) return -EINTR;
  int64_t status = -ENODATA;
  uint32_t tried = 1u << member;
  for (unsigned source; status < 0 && (source = reader(tried)) < count_; tried |= 1u << source) {
    for (unsigned tries = 0; status < 0 && tries < kSourceTries; ++tries) status = move(source, Op::kRead, offset, from, bytes);
  }
  if (status < 0) {
    state_.unlock_region();
    return -ENODATA;
  }
  status = move(member, Op::kRead, offset, there, bytes);
  if (status < 0 || (!force && memcmp(from, there, bytes) != 0)) {
    *differed = true;
    status = move(member, Op::kWrite, offset, from, bytes);
    for (unsigned tries = 0; force && status >= 0 && tries < kSourceTries; ++tries) {
      const int64_t again = move(member, Op::kRead, offset, there, bytes);
      if (again >= 0) break;
      if (tries + 1 == kSourceTries) status = again;
    }
  }
  state_.unlock_region();
  return status < 0 ? static_cast<int>(status) : 0;
}

// Commands so far; those that only ever wait for the copier too, else a large write would not find a moment without a lock.
uint64_t MirrorDevice::foreground() const {
  uint64_t out = 0;
  for (const MirrorSlot& slot : const_cast<MirrorState&>(state_).shared().slot) out += slot.blocked.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i)
    out += const_cast<MirrorState&>(state_).shared().member[i].ios.load(std::memory_order_relaxed);
  return out;
}

int MirrorDevice::resync(unsigned member) {
  const uint32_t generation = state_.generation(member);
  const auto wanted = [&] {
    const CopyState now = state_.state(member);
    return !stop_ && (now == CopyState::kStale || now == CopyState::kUnsure) && state_.generation(member) == generation;
  };
  MirrorShared& shared = state_.shared();
  uint64_t differences = 1;
  for (unsigned pass = 0; differences; ++pass) {
    if (pass == kPassesMax) {
      log_error("LUN %s: %s does not keep what is written to it; it stays out", name_, member_[member]->name());
      return -EIO;
    }
    differences = 0;
    uint64_t before = foreground();
    for (uint64_t at = 0; at < size_bytes_; at += kMirrorRegionBytes) {
      if (!wanted()) return -EINTR;
      const uint64_t start = sys::now_ns();
      bool differed = false;
      const int status = copy_region(member, at, false, &differed);
      if (status == -ENODATA || status == -EINTR) return status;
      if (status < 0) {
        (void)state_.fail(1u << member, ((1u << count_) - 1) & ~(1u << member));
        return status;
      }
      differences += differed;
      shared.copied.store(at, std::memory_order_relaxed);
      const uint64_t after = foreground();
      if (after != before) step_back(sys::now_ns() - start);   // somebody wants the devices too
      before = after;
    }
  }
  Command flush;
  flush.op = Op::kFlush;
  if (const int64_t status = member_[member]->transfer(flush); status < 0) {
    (void)state_.fail(1u << member, ((1u << count_) - 1) & ~(1u << member));
    return static_cast<int>(status);
  }
  const int status = state_.set_in_sync(member, generation);
  if (status == 0) {
    shared.resyncs.fetch_add(1, std::memory_order_relaxed);
    log_info("LUN %s: %s is in sync", name_, member_[member]->name());
  }
  return status;
}

void MirrorDevice::step_back(uint64_t took_ns) { sys::sleep_ns(took_ns < 100'000 ? 100'000 : took_ns > 100'000'000 ? 100'000'000 : took_ns); }

// ---- the thread ----

// A failed member: does it answer, as what it was?
void MirrorDevice::try_again(unsigned member) {
  MemberLabel label;
  if (label_read(member_[member], &label) < 0) return;
  const MemberLabel& mine = state_.label(member);
  if (memcmp(label.set_uuid, mine.set_uuid, sizeof mine.set_uuid) == 0 && label.index == member) state_.revive(member);
}

// One round. True when something is still to be done.
bool MirrorDevice::look_after() {
  bool open = false;
  for (unsigned i = 0; i < count_; ++i) {
    if (state_.state(i) != CopyState::kInSync) open |= member_[i] != nullptr;
    else if (well_since_ns_[i] && sys::now_ns() - well_since_ns_[i] > kBackoffMax * probe_ns_) backoff_ns_[i] = 0;
  }
  {
    const sys::Locked<sys::SpinLock> locked(repairs_lock_);
    open |= repairs_count_ != 0;
  }
  if (!open || !state_.copy_trylock()) return open;
  for (Repair one; !stop_ && next_repair(&one);) repair(one);
  open = false;
  for (unsigned i = 0; i < count_ && !stop_; ++i) {
    if (!member_[i] || state_.state(i) == CopyState::kInSync) continue;
    open = true;
    const uint64_t now = sys::now_ns();
    if (state_.state(i) == CopyState::kFailed && next_try_ns_[i] == 0)   // it has just failed
      next_try_ns_[i] = now + (backoff_ns_[i] ? backoff_ns_[i] : probe_ns_.load());
    if (now < next_try_ns_[i]) continue;
    if (state_.state(i) == CopyState::kFailed) try_again(i);
    int status = -EIO;
    if (state_.state(i) != CopyState::kFailed) status = resync(i);
    if (status == 0) {
      next_try_ns_[i] = 0;
      well_since_ns_[i] = sys::now_ns();
      continue;
    }
    const uint64_t step = backoff_ns_[i] ? backoff_ns_[i] * 2 : probe_ns_.load();
    backoff_ns_[i] = step < kBackoffMax * probe_ns_ ? step : kBackoffMax * probe_ns_;
    next_try_ns_[i] = sys::now_ns() + backoff_ns_[i];
  }
  state_.copy_unlock();
  return open;
}

void MirrorDevice::serve(void* self) { static_cast<MirrorDevice*>(self)->serve(); }

void MirrorDevice::serve() {
  MirrorShared& shared = state_.shared();
  while (!stop_) {
    const uint32_t seen = shared.change.load(std::memory_order_seq_cst);
    const bool open = look_after();
    if (stop_) break;
    (void)sys::futex_wait(&shared.change, seen, open ? kLookNs : -1, true);
  }
}

int MirrorDevice::wait_in_sync(uint64_t timeout_ns) {
  const uint64_t end = sys::now_ns() + timeout_ns;
  for (;;) {
    bool all = true;
    for (unsigned i = 0; i < count_; ++i) all &= !member_[i] || state_.state(i) == CopyState::kInSync;
    if (all) return 0;
    if (sys::now_ns() > end) return -ETIME;
    sys::sleep_ns(1'000'000);
  }
}

}  // namespace lunar
