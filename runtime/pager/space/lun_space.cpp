// SPDX-License-Identifier: Apache-2.0
#include "pager/space/lun_space.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "pager/state/descriptors.h"
#include "pager/state/requests.h"
#include "sys/log.h"

namespace lunar {

int slots_charge(PagerState& state, uint64_t slots) {
  SlotAllocator& lun = state.luns.slots[state.luns.own];
  const int rc = lun.charge_fast(slots);
  if (rc != -EAGAIN) return rc;
  if (!sys::in_program_files()) return lun.charge(slots);
  // The program may have a file of its own under the LUN's number, and would find that grown.
  return ask_table_request(state, slots, nullptr, 0);
}

// Counts slots for a LUN that is not open yet. False: it is open.
static bool promise_slots(PagerState& state, int64_t slots) {
  int64_t before = state.luns.promised_slots.load(std::memory_order_acquire);
  while (before != Luns::kOnLun)
    if (state.luns.promised_slots.compare_exchange_weak(before, before + slots,
                                                        std::memory_order_acq_rel))
      return true;
  return false;
}

// Charges the LUN for what was promised before it was open. Other threads charge and give back
// meanwhile.
static int charge_promised(PagerState& state, SlotAllocator& lun) {
  int64_t charged = 0, promised = state.luns.promised_slots.load(std::memory_order_acquire);
  do {
    const int64_t more = promised - charged;
    if (more < 0)
      lun.uncharge(static_cast<uint64_t>(-more));
    else if (const int rc = lun.charge(static_cast<uint64_t>(more)); rc < 0)
      return rc;
    charged = promised;
  } while (!state.luns.promised_slots.compare_exchange_strong(promised, Luns::kOnLun,
                                                              std::memory_order_acq_rel));
  return 0;
}

int space_charge(PagerState& state, uint64_t pages, bool may_block) {
  int64_t bytes = static_cast<int64_t>(pages << state.page_shift);
  if (state.account.lun_take(bytes) < 0) {
    if (!may_block) return -ENOMEM;
    wait_for_sweep(state);
    if (state.account.lun_take(bytes) < 0) return -ENOMEM;
  }
  if (promise_slots(state, static_cast<int64_t>(pages))) return 0;
  SlotAllocator& lun = state.luns.slots[state.luns.own];
  const int rc = may_block ? slots_charge(state, pages) : lun.charge_fast(pages);
  if (!may_block && lun.runs_short()) housekeeping_wake(state, kHousekeepingGrow);
  if (rc < 0) state.account.lun_give(bytes);
  return rc;
}

void space_uncharge(PagerState& state, uint64_t pages) {
  if (pages == 0 || forked_past_us(state) != 0) return;  // the charge is the parent's
  if (!promise_slots(state, -static_cast<int64_t>(pages)))
    state.luns.slots[state.luns.own].uncharge(pages);
  state.account.lun_give(static_cast<int64_t>(pages << state.page_shift));
}

SpaceBound space_bound(PagerState& state, uint64_t bytes) {
  if (state.account.lun_free() < static_cast<int64_t>(bytes)) {
    const bool by_size = state.options.size != 0 ||
                         state.account.lun_cap() >= static_cast<int64_t>(8 * state.dram_bytes);
    return by_size ? SpaceBound::kSize : SpaceBound::kDevice;
  }
  if (!state.luns.ready.load(std::memory_order_acquire) || state.luns.carved_pieces == 0)
    return SpaceBound::kDevice;
  const SlotAllocator& lun = state.luns.slots[state.luns.own];
  const bool exceeds = lun.charged_slots() + (bytes >> state.page_shift) > lun.capacity_slots();
  return exceeds ? SpaceBound::kPart : SpaceBound::kDevice;
}

const char* space_remedy(const PagerState& state, SpaceBound bound) {
  if (bound == SpaceBound::kSize) return "give a larger --size";
  if (bound == SpaceBound::kDevice) return "free space there, or give another --lun";
  const bool named = state.options.lun != nullptr && strchr(state.options.lun, '#') != nullptr;
  return named
             ? "enlarge it (lunar lun resize), or give --lun a directory or a device without a name"
             : "give --lun a larger one, or a directory";
}

void uncharge_touched(PagerState& state, Region& region, PageWord was) {
  if (!was.charged()) return;
  space_uncharge(state, 1);
  region.committed_pages.fetch_sub(1, std::memory_order_relaxed);
}

// Opens the device of the own LUN: the parent's device, if the processes of the tree divide that
// one.
static int open_own_device(PagerState& state) {
  const unsigned own = state.luns.own;
  if (state.luns.devices[own] != nullptr) return 0;
  Device* parent = state.fork.generation > 0 ? state.luns.devices[state.luns.parent] : nullptr;
  if (parent != nullptr && !parent->growable()) {
    share_device(state, own, state.luns.parent);
    return 0;
  }
  ErrorText why;
  const int rc = open_device(state, own, {}, &why);
  if (rc < 0) log_error("%s", why.text);
  return rc;
}

namespace {
struct Place {
  DeviceOffset base{};
  uint64_t bytes;
  int piece = -1;  // the first of the account's pieces that it takes
  unsigned pieces = 0;
};
}  // namespace

// Takes a place on a device that cannot grow: half of it for the first process; for a child an
// eighth, or its promise and an eighth of that if this is more.
static int carve_place(PagerState& state, uint64_t device_bytes, uint64_t promised, Place* place) {
  const uint64_t piece_bytes = round_down(device_bytes / kCarvePieces, 64 * state.page_size);
  place->pieces = state.fork.generation == 0 ? kCarvePieces / 2 : kCarvePieces / 8;
  if (state.fork.generation > 0 && piece_bytes > 0) {
    const uint64_t wanted = ((promised + promised / 8) << state.page_shift) / piece_bytes + 1;
    const auto most = static_cast<unsigned>(std::min<uint64_t>(wanted, kCarvePieces));
    place->pieces = std::max(place->pieces, most);
  }
  place->piece = state.account.carve(place->pieces);
  if (place->piece < 0) return place->piece;
  place->base = DeviceOffset(static_cast<uint64_t>(place->piece) * piece_bytes);
  place->bytes = std::min(place->bytes, place->pieces * piece_bytes);
  return 0;
}

int lun_open_own(PagerState& state) {
  if (state.luns.ready.load(std::memory_order_acquire)) return 0;
  sys::Locked<sys::Mutex> lock(state.luns.open_lock);
  if (state.luns.ready.load(std::memory_order_acquire)) return 0;
  if (!state.active.load())
    state.luns.promised_slots.store(static_cast<int64_t>(committed_pages(state)));
  int rc = open_own_device(state);
  if (rc < 0) return rc;
  Device* device = state.luns.devices[state.luns.own];
  const uint64_t device_bytes = device->size_bytes();
  Place place;
  place.bytes = state.fork.generation == 0 ? state.luns.bytes
                                           : static_cast<uint64_t>(state.account.lun_cap());
  uint64_t reserve = 0;
  if (device->growable()) {
    // If the device has no room for size and reserve, the reserve is a part of the size. A child
    // may get less than the tree's space: it is enough if the promised slots fit.
    reserve = SlotAllocator::kCleaningReserve * state.page_size;
    if (place.bytes + reserve > device_bytes && device_bytes > reserve)
      place.bytes = round_down(device_bytes - reserve, 64 * state.page_size);
  } else {
    const auto promised = static_cast<uint64_t>(state.luns.promised_slots.load());
    rc = carve_place(state, device_bytes, promised, &place);
    if (rc < 0) return rc;
  }
  SlotAllocator& slots = state.luns.slots[state.luns.own];
  rc =
      slots.open(device, place.base, place.bytes + reserve, static_cast<uint32_t>(state.page_size));
  state.luns.growth_refused.store(false);
  if (rc == 0) rc = charge_promised(state, slots);
  if (rc < 0) {
    slots.close();  // a later call tries again
    if (place.piece >= 0) state.account.uncarve(place.piece, place.pieces);
    return rc;
  }
  state.luns.carved_first = place.piece;
  state.luns.carved_pieces = place.pieces;
  state.luns.ready.store(true, std::memory_order_release);
  return 0;
}

void lun_close_own(PagerState& state) {
  state.luns.ready.store(false);
  state.luns.promised_slots.store(0);
  state.luns.slots[state.luns.own].close();
  if (state.luns.carved_pieces != 0)
    state.account.uncarve(state.luns.carved_first, state.luns.carved_pieces);
  state.luns.carved_pieces = 0;
}

}  // namespace lunar
