// SPDX-License-Identifier: Apache-2.0
// The backing device under sim: devices: see sim_backing.h.
// Threading: as there. May not: allocate but in find_or_make.
#include "superpipe/sim/sim_backing.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "base/format.h"
#include "base/units.h"
#include "superpipe/sim/device_copy.h"
#include "sys/arena.h"

namespace lunar {
namespace {

sys::Mutex names_lock;
SimBacking* named = nullptr;

uint64_t mixed(uint64_t seed, uint64_t a, uint64_t b) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + a * 0xbf58476d1ce4e5b9 + b + 1;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x;
}

bool lands(uint64_t seed, uint64_t record, uint64_t sector) {
  return mixed(seed, record, 1 + sector) % 2 != 0;
}

}  // namespace

int SimBacking::find_or_make(const char* uri, const char* name, uint64_t bytes,
                             uint64_t cache_bytes, SimBacking** out, ErrorText* why) {
  const sys::Locked<sys::Mutex> locked(names_lock);
  for (SimBacking* one = *name ? named : nullptr; one; one = one->next_named_) {
    if (strcmp(one->name_, name) != 0) continue;
    if (one->bytes_ != bytes)
      return why->set(-EINVAL, "LUN %s: that name is of a memory of %s", uri,
                      format_size(one->bytes_).text);
    if (cache_bytes && one->log_size_ != cache_bytes)
      return why->set(-EINVAL, "LUN %s: that name is of a memory with a cache of %s", uri,
                      format_size(one->log_size_).text);
    *out = one;
    return 0;
  }
  void* memory = map_private(sizeof(SimBacking), ForkPolicy::kInherit);
  auto* backing = memory ? new (memory) SimBacking : nullptr;
  if (backing) {
    backing->bytes_ = bytes;
    backing->log_size_ = cache_bytes;
    format_to(backing->name_, sizeof backing->name_, "%s", name);
    backing->memory_ = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
    if (cache_bytes)
      backing->durable_ = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
    if (cache_bytes)
      backing->log_ = static_cast<char*>(map_private(cache_bytes, ForkPolicy::kInherit));
  }
  if (!backing || !backing->memory_ || (cache_bytes && !(backing->durable_ && backing->log_))) {
    if (backing) {
      backing->name_[0] = '\0';
      backing->close();
    }
    return why->set(-ENOMEM, "LUN %s: out of memory; give a smaller size", uri);
  }
  if (*name) {
    backing->next_named_ = named;
    named = backing;
  }
  *out = backing;
  return 0;
}

void SimBacking::close() {
  if (*name_) return;
  if (memory_) unmap_private(memory_, bytes_);
  if (durable_) unmap_private(durable_, bytes_);
  if (log_) unmap_private(log_, log_size_);
  unmap_private(this, sizeof(SimBacking));
}

// Begins a command. True: the power goes off in the middle of it.
// pre: lock_ held
bool SimBacking::begin() {
  const uint64_t left = cut_in_.load(std::memory_order_relaxed);
  if (left) cut_in_.store(left - 1, std::memory_order_relaxed);
  return left == 1;
}

namespace {

void copy_in(char* to, const iovec* iov, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes; ++iov) {
    const uint64_t part = std::min<uint64_t>(iov->iov_len, bytes - done);
    copy_to_device(to + done, iov->iov_base, part);
    done += part;
  }
}

// Copies some sectors of a vector.
template <class Lands>
void copy_some(char* to, const iovec* iov, uint64_t bytes, Lands lands) {
  for (uint64_t done = 0; done < bytes; ++iov) {
    for (uint64_t within = 0; within < iov->iov_len && done < bytes;) {
      uint64_t part = SimBacking::kSector - done % SimBacking::kSector;
      if (part > iov->iov_len - within) part = iov->iov_len - within;
      if (part > bytes - done) part = bytes - done;
      if (lands(done / SimBacking::kSector))
        copy_to_device(to + done, static_cast<const char*>(iov->iov_base) + within, part);
      within += part;
      done += part;
    }
  }
}

}  // namespace

void SimBacking::ring_write(uint64_t place, const void* from, uint64_t bytes) {
  const uint64_t at = place % log_size_, first = std::min(bytes, log_size_ - at);
  memcpy(log_ + at, from, first);
  memcpy(log_, static_cast<const char*>(from) + first, bytes - first);
}

void SimBacking::ring_read(uint64_t place, void* to, uint64_t bytes) const {
  const uint64_t at = place % log_size_, first = std::min(bytes, log_size_ - at);
  memcpy(to, log_ + at, first);
  memcpy(static_cast<char*>(to) + first, log_, bytes - first);
}

// Puts a record into the cache. A record that is too large goes to stable storage, after all
// others.
// pre: lock_ held
void SimBacking::put(const Record& record, const iovec* iov) {
  const uint64_t need = log_bytes(record);
  while (tail_ != head_ && need > log_size_ - (tail_ - head_)) destage();
  if (need > log_size_) {
    if (record.data)
      copy_in(durable_ + record.at, iov, record.bytes);
    else
      memset(durable_ + record.at, 0, record.bytes);
    return;
  }
  ring_write(tail_, &record, sizeof record);
  uint64_t place = tail_ + sizeof record;
  for (uint64_t left = record.data ? record.bytes : 0; left; ++iov) {
    const uint64_t part = std::min<uint64_t>(iov->iov_len, left);
    ring_write(place, iov->iov_base, part);
    place += part;
    left -= part;
  }
  tail_ += need;
}

// Writes the sectors of a record that a power loss leaves to stable storage. seed 0: all of them.
// pre: lock_ held
void SimBacking::apply(const Record& record, uint64_t place, uint64_t seed) {
  enum : uint64_t { kLost, kWhole, kPart, kFates };
  const bool sure = seed == 0 || record.fua;
  const uint64_t fate =
      sure ? uint64_t{kWhole}
           : mixed(seed, record.number, 0) % (record.whole ? uint64_t{kPart} : uint64_t{kFates});
  if (fate == kLost) return;
  for (uint64_t done = 0; done < record.bytes; done += kSector) {
    const uint64_t part = std::min(record.bytes - done, kSector);
    if (fate == kPart && !lands(seed, record.number, done / kSector)) continue;
    if (record.data)
      ring_read(place + done, durable_ + record.at + done, part);
    else
      memset(durable_ + record.at + done, 0, part);
  }
}

// Writes the oldest record of the cache to stable storage.
// pre: lock_ held, there is one
void SimBacking::destage() {
  Record record;
  ring_read(head_, &record, sizeof record);
  apply(record, head_ + sizeof record, 0);
  head_ += log_bytes(record);
}

// pre: lock_ held
void SimBacking::lose_power(uint64_t seed) {
  Record record;
  for (uint64_t at = head_; cached() && at != tail_; at += log_bytes(record)) {
    ring_read(at, &record, sizeof record);
    if (seed != 0 || record.fua) apply(record, at + sizeof record, seed);
  }
  // Memory and stable storage differ only in the places of these records.
  for (; cached() && head_ != tail_; head_ += log_bytes(record)) {
    ring_read(head_, &record, sizeof record);
    memcpy(memory_ + record.at, durable_ + record.at, record.bytes);
  }
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  powered_.store(false, std::memory_order_release);
}

bool SimBacking::write(uint64_t at, const iovec* iov, uint64_t bytes, bool whole, bool fua) {
  if (plain()) {
    copy_in(memory_ + at, iov, bytes);
    return true;
  }
  const sys::Locked lock(lock_);
  const bool cut = begin();
  const uint64_t number = next_.load(std::memory_order_relaxed);
  if (cached()) put({number, at, bytes, true, whole, fua && !cut}, iov);
  if (!cut)
    copy_in(memory_ + at, iov, bytes);
  else if (!cached())
    copy_some(memory_ + at, iov, bytes, [&](uint64_t sector) {
      return cut_seed_ != 0 && lands(cut_seed_, number, whole ? 0 : sector);
    });
  next_.store(number + 1, std::memory_order_release);
  if (cut) lose_power(cut_seed_);
  return !cut;
}

bool SimBacking::zero(uint64_t at, uint64_t bytes) {
  if (plain()) {
    memset(memory_ + at, 0, bytes);
    return true;
  }
  const sys::Locked lock(lock_);
  const bool cut = begin();
  const uint64_t number = next_.load(std::memory_order_relaxed);
  if (cached()) put({number, at, bytes, false, false, false}, nullptr);
  for (uint64_t done = 0; done < bytes; done += kSector) {
    const bool there =
        !cut || (!cached() && cut_seed_ != 0 && lands(cut_seed_, number, done / kSector));
    if (there) memset(memory_ + at + done, 0, std::min(bytes - done, kSector));
  }
  next_.store(number + 1, std::memory_order_release);
  if (cut) lose_power(cut_seed_);
  return !cut;
}

bool SimBacking::flush(uint64_t until) {
  if (plain()) return true;
  const sys::Locked lock(lock_);
  if (begin()) {
    lose_power(cut_seed_);
    return false;
  }
  while (cached() && head_ != tail_) {
    Record record;
    ring_read(head_, &record, sizeof record);
    if (record.number >= until) break;
    destage();
  }
  return true;
}

void SimBacking::cut_power(uint64_t seed) {
  const sys::Locked lock(lock_);
  lose_power(seed);
}

void SimBacking::cut_power_at(uint64_t n, uint64_t seed) {
  const sys::Locked lock(lock_);
  cut_in_.store(n, std::memory_order_release);
  cut_seed_ = seed;
}

}  // namespace lunar
