// SPDX-License-Identifier: Apache-2.0
// Changes of a mirror's states, in memory and on the labels: see mirror_state.h. Opening and closing: mirror_session.cpp; writers
// and the copier: mirror_writers.cpp.
// Threading: any, blocking, under the states lock. Not for the fault path but for what follows an I/O error.
#include "lun/mirror_state.h"

#include <errno.h>
#include <limits.h>

#include "base/log.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint32_t with(uint32_t states, unsigned member, CopyState state) {
  return (states & ~(0xffu << member * 8)) | static_cast<uint32_t>(state) << member * 8;
}

MemberState on_media(CopyState state) {
  switch (state) {
    case CopyState::kInSync: return MemberState::kInSync;
    case CopyState::kUnsure: return MemberState::kUnsure;
    case CopyState::kStale:
    case CopyState::kFailed: break;
  }
  return MemberState::kStale;
}

}  // namespace

uint32_t MirrorState::mask_of(uint32_t states, CopyState state) const {
  uint32_t out = 0;
  for (unsigned i = 0; i < count_; ++i) {
    if ((states >> i * 8 & 0xff) == static_cast<uint32_t>(state)) out |= 1u << i;
  }
  return out;
}

uint32_t MirrorState::mask(CopyState state) const { return mask_of(shared_->states.load(std::memory_order_seq_cst), state); }

void MirrorState::lock_states() {
  // A holder that died may have written some labels: they say nothing that the next change does not say again.
  if (pthread_mutex_lock(&shared_->states_lock) == EOWNERDEAD) pthread_mutex_consistent(&shared_->states_lock);
}

void MirrorState::store_states(uint32_t states) {
  shared_->states.store(states, std::memory_order_seq_cst);
  shared_->change.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake(&shared_->change, INT_MAX, true);
}

// One more event, on every member that is written to. *failed: those of `required` whose label could not be written.
int MirrorState::write_labels(uint32_t states, uint32_t required, uint32_t* failed, bool dirty) {
  const uint64_t events = shared_->events.load(std::memory_order_relaxed) + 1;
  shared_->events.store(events, std::memory_order_relaxed);
  *failed = 0;
  for (unsigned i = 0; i < count_; ++i) {
    const auto state = static_cast<CopyState>(states >> i * 8 & 0xff);
    if (state == CopyState::kFailed) continue;
    int status = -ENXIO;
    if (device_[i]) {
      MemberLabel label = label_[i];
      label.events = events;
      label.session = shared_->session;
      label.dirty = dirty;
      for (unsigned m = 0; m < count_; ++m) label.states[m] = static_cast<uint8_t>(on_media(static_cast<CopyState>(states >> m * 8 & 0xff)));
      status = label_write(device_[i], &label);
      if (status == 0) label_[i] = label;
    }
    if (status < 0 && (required >> i & 1)) *failed |= 1u << i;
  }
  return *failed ? -EIO : 0;
}

int MirrorState::fail(uint32_t bad, uint32_t good) {
  lock_states();
  const uint32_t before = shared_->states.load(std::memory_order_seq_cst);
  uint32_t after = before;
  int status = 0;
  for (;;) {
    after = before;
    uint32_t stay = mask_of(before, CopyState::kInSync) & good & ~bad;
    if (stay == 0) {   // one that has all that was acknowledged, and this, may take over
      const uint32_t unsure = mask_of(before, CopyState::kUnsure) & good & ~bad;
      if (unsure == 0) {
        status = -EIO;
        break;
      }
      stay = unsure & (~unsure + 1);
    }
    const uint32_t held = mask_of(before, CopyState::kInSync) | mask_of(before, CopyState::kUnsure);
    uint32_t out = bad | (mask_of(before, CopyState::kInSync) & ~stay);
    out &= ~mask_of(before, CopyState::kFailed);
    for (unsigned i = 0; i < count_; ++i) {
      if (out >> i & 1) after = with(after, i, CopyState::kFailed);
      else if (stay >> i & 1) after = with(after, i, CopyState::kInSync);
    }
    if (after == before) break;
    const bool recorded = (out & (held | shared_->ahead.load(std::memory_order_relaxed))) || mask_of(after, CopyState::kInSync) != mask_of(before, CopyState::kInSync);
    uint32_t failed = 0;
    if (!recorded || write_labels(after, stay, &failed, true) == 0) break;
    bad |= failed;
  }
  if (status == 0 && after != before) {
    uint64_t generation = shared_->generation.load(std::memory_order_relaxed);
    const uint32_t out = mask_of(after, CopyState::kFailed) & ~mask_of(before, CopyState::kFailed);
    for (unsigned i = 0; i < count_; ++i) {
      if (!(out >> i & 1)) continue;
      const uint64_t next = ((generation >> i * 16) + 1) & 0xffff;
      generation = (generation & ~(uint64_t{0xffff} << i * 16)) | next << i * 16;
      log_warning("LUN %s: failed; its mirror goes on without it", device_[i] ? device_[i]->name() : "(missing)");
    }
    shared_->generation.store(generation, std::memory_order_seq_cst);
    store_states(after);
  }
  pthread_mutex_unlock(&shared_->states_lock);
  return status;
}

void MirrorState::revive(unsigned member) {
  lock_states();
  const uint32_t states = shared_->states.load(std::memory_order_seq_cst);
  if (state(member) == CopyState::kFailed) store_states(with(states, member, CopyState::kStale));
  pthread_mutex_unlock(&shared_->states_lock);
}

int MirrorState::set_in_sync(unsigned member, uint32_t expected) {
  lock_states();
  int status = -ESTALE;
  const uint32_t before = shared_->states.load(std::memory_order_seq_cst);
  const CopyState now = state(member);
  if (generation(member) == expected && (now == CopyState::kStale || now == CopyState::kUnsure)) {
    const uint32_t after = with(before, member, CopyState::kInSync);
    uint32_t failed = 0;
    // Where this ends halfway, labels call it in sync and the memory does not: it is, but its next failure must go to the labels.
    shared_->ahead.fetch_or(1u << member, std::memory_order_relaxed);
    status = write_labels(after, mask_of(after, CopyState::kInSync), &failed, true);
    if (status == 0) {
      store_states(after);
      shared_->ahead.fetch_and(~(1u << member), std::memory_order_relaxed);
    }
  }
  pthread_mutex_unlock(&shared_->states_lock);
  return status;
}

}  // namespace lunar
