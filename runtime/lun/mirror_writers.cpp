// SPDX-License-Identifier: Apache-2.0
// Writers and the copier of a mirror keep out of each other's way: see mirror_state.h.
// Threading: begin_write and end_write are lock-free, for the data path; the copier's calls block.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/log.h"
#include "lun/mirror_state.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kDeadGraceNs = 1'000'000'000;
// How long the copier waits for the writes of a bucket it has locked, and then lets others by. A writer may be slow to take its
// responses, or wait for the very bucket (a thread with writes in flight that does a blocking one).
constexpr uint64_t kWindowMinNs = 5'000'000, kWindowMaxNs = 160'000'000;
constexpr uint64_t kLookAfterNs = 200'000'000;   // a writer that takes so long may be dead

// Start time of a process, in the kernel's ticks (low bits, never 0); 0 when there is none, or only what its parent has not waited
// for (a zombie whose other threads are gone too).
uint32_t start_time(uint32_t pid) {
  char path[48], text[1024];
  format_to(path, sizeof path, "/proc/%u/stat", pid);
  if (sys::read_text(path, text, sizeof text) <= 0) return 0;
  const char* at = strrchr(text, ')');   // the name may hold anything
  char state = 0;
  long threads = 0;
  for (int field = 2; at && field < 22; ++field) {
    at = strchr(at + 1, ' ');
    if (at && field == 2) state = at[1];
    if (at && field == 19) threads = strtol(at + 1, nullptr, 10);
  }
  if (!at || ((state == 'Z' || state == 'X') && threads <= 1)) return 0;
  uint64_t value = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at) value = value * 10 + static_cast<uint64_t>(*at - '0');
  return static_cast<uint32_t>(value) | 1u;
}

uint32_t pid_name_space() {
  struct stat status;
  return sys::path_status("/proc/self/ns/pid", &status) == 0 ? static_cast<uint32_t>(status.st_ino) | 1u : 1u;
}

bool dead(const MirrorSlot& slot, uint64_t owner) {
  if (slot.name_space.load(std::memory_order_acquire) != pid_name_space()) return false;
  return start_time(static_cast<uint32_t>(owner >> 32)) != static_cast<uint32_t>(owner);
}

void clear(MirrorSlot* slot) {
  for (std::atomic<uint16_t>& writes : slot->writes) writes.store(0, std::memory_order_seq_cst);
  slot->name_space.store(0, std::memory_order_release);
}

struct Buckets {
  unsigned first, count;
};
Buckets buckets_of(uint64_t offset, uint64_t length) {
  const uint64_t first = offset / kMirrorRegionBytes, last = (offset + (length ? length - 1 : 0)) / kMirrorRegionBytes;
  const uint64_t count = last - first + 1;
  return {static_cast<unsigned>(first % kMirrorBuckets), static_cast<unsigned>(count < kMirrorBuckets ? count : kMirrorBuckets)};
}

}  // namespace

int MirrorState::claim_slot() {
  const auto pid = static_cast<uint32_t>(getpid());
  const uint64_t mine = uint64_t{pid} << 32 | start_time(pid);
  const uint32_t space = pid_name_space();
  for (int round = 0; round < 2; ++round) {
    for (unsigned i = 0; i < kMirrorSlots; ++i) {
      MirrorSlot& slot = shared_->slot[i];
      uint64_t owner = slot.owner.load(std::memory_order_acquire);
      if (owner != 0 && round == 1 && dead(slot, owner)) {   // what it had under way counts till the copier has seen it
        bool idle = true;
        for (std::atomic<uint16_t>& writes : slot.writes) idle &= writes.load(std::memory_order_seq_cst) == 0;
        if (!idle) continue;
      } else if (owner != 0) {
        continue;
      }
      if (!slot.owner.compare_exchange_strong(owner, mine, std::memory_order_acq_rel)) continue;
      slot.name_space.store(space, std::memory_order_release);
      return static_cast<int>(i);
    }
  }
  return -1;
}

void MirrorState::free_slot(int index) {
  MirrorSlot& slot = shared_->slot[index];
  uint64_t owner = slot.owner.load(std::memory_order_acquire);
  if (owner >> 32 != static_cast<uint64_t>(getpid())) return;   // somebody else's by now, or the parent's
  slot.name_space.store(0, std::memory_order_release);
  (void)slot.owner.compare_exchange_strong(owner, 0, std::memory_order_acq_rel);
}

bool MirrorState::begin_write(int index, uint64_t offset, uint64_t length) {
  MirrorSlot& slot = shared_->slot[index];
  const Buckets range = buckets_of(offset, length);
  const auto passable = [&] {
    const int32_t locked = shared_->locked.load(std::memory_order_seq_cst);
    return locked < 0 || (static_cast<unsigned>(locked) + kMirrorBuckets - range.first) % kMirrorBuckets >= range.count;
  };
  if (!passable()) {   // so that those who ask again and again are not seen as writers
    slot.blocked.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  for (unsigned i = 0; i < range.count; ++i) slot.writes[(range.first + i) % kMirrorBuckets].fetch_add(1, std::memory_order_seq_cst);
  if (passable()) return true;
  end_write(index, offset, length);
  slot.blocked.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void MirrorState::end_write(int index, uint64_t offset, uint64_t length) {
  MirrorSlot& slot = shared_->slot[index];
  const Buckets range = buckets_of(offset, length);
  for (unsigned i = 0; i < range.count; ++i) slot.writes[(range.first + i) % kMirrorBuckets].fetch_sub(1, std::memory_order_seq_cst);
}

void MirrorState::rescue() {
  if (copy_trylock()) copy_unlock();
}

bool MirrorState::copy_trylock() {
  const int status = pthread_mutex_trylock(&shared_->copy_lock);
  if (status != 0 && status != EOWNERDEAD) return false;
  if (status == EOWNERDEAD) pthread_mutex_consistent(&shared_->copy_lock);
  shared_->locked.store(-1, std::memory_order_seq_cst);
  return true;
}

void MirrorState::copy_unlock() {
  shared_->locked.store(-1, std::memory_order_seq_cst);
  pthread_mutex_unlock(&shared_->copy_lock);
}

// Waits for the writes of a bucket that is locked, until `end`. A writer that is dead is cleared.
bool MirrorState::drained(unsigned bucket, uint64_t end, uint64_t* looked, const std::atomic<bool>* stop) {
  for (MirrorSlot& slot : shared_->slot) {
    for (unsigned tries = 0; slot.writes[bucket].load(std::memory_order_seq_cst) != 0; ++tries) {
      if (tries < 200) {
        sys::cpu_relax();
        continue;
      }
      const uint64_t now = sys::now_ns();
      if (now > end || stop->load(std::memory_order_relaxed)) return false;
      sys::sleep_ns(20'000);
      if (now - *looked < kLookAfterNs) continue;
      *looked = now;
      const uint64_t owner = slot.owner.load(std::memory_order_acquire);
      if (owner == 0 || !dead(slot, owner)) continue;
      sys::sleep_ns(kDeadGraceNs);
      if (slot.owner.load(std::memory_order_acquire) != owner) continue;
      log_warning("mirror: process %u died in a write", static_cast<unsigned>(owner >> 32));
      shared_->unclean.store(1, std::memory_order_seq_cst);
      clear(&slot);
      slot.owner.store(0, std::memory_order_release);
    }
  }
  return true;
}

bool MirrorState::lock_region(uint64_t offset, const std::atomic<bool>* stop) {
  const auto bucket = static_cast<unsigned>(offset / kMirrorRegionBytes % kMirrorBuckets);
  uint64_t looked = sys::now_ns();
  for (uint64_t window = kWindowMinNs;; window = window < kWindowMaxNs ? window * 2 : window) {
    shared_->locked.store(static_cast<int32_t>(bucket), std::memory_order_seq_cst);
    if (drained(bucket, sys::now_ns() + window, &looked, stop)) return true;
    unlock_region();
    for (uint64_t slept = 0; slept < window && !stop->load(std::memory_order_relaxed); slept += kWindowMinNs) sys::sleep_ns(kWindowMinNs);
    if (stop->load(std::memory_order_relaxed)) return false;
  }
}

void MirrorState::unlock_region() { shared_->locked.store(-1, std::memory_order_seq_cst); }

}  // namespace lunar
