// SPDX-License-Identifier: Apache-2.0
// Shared helpers of the pager: LUN space accounting, slots kept for children, hashes, resident counts, fork's gate.
#include "pager/state/state.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include <initializer_list>

#include "base/error.h"
#include "pager/state/descriptors.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/proc.h"
#include "sys/uffd.h"

namespace lunar {
namespace {

// Deferred slots (given up while living children may read them): a queue in order of the fork epoch at that time.
struct DeferredSlot {
  uint32_t slot;
  uint32_t epoch;
};
struct DeferredQueue {
  sys::SpinLock lock;
  DeferredSlot* entries = nullptr;  // ring, mapped at first use: one entry a slot of the LUN at most
  uint64_t capacity = 0, head = 0, count = 0;
  uint64_t* shared = nullptr;  // slots in use at forks with living children: others are released at once
};
constinit DeferredQueue g_deferred;

alignas(64) constinit unsigned char g_hash_key[192] = {};  // XXH3's own length of a secret
constinit bool g_hash_key_made = false;
static_assert(sizeof g_hash_key >= XXH3_SECRET_SIZE_MIN);

bool defer_slot(Slot slot, uint32_t epoch) {
  sys::Locked<sys::SpinLock> lock(g_deferred.lock);
  if (g_deferred.entries == nullptr || !(g_deferred.shared[slot.value / 64] >> slot.value % 64 & 1)) return false;
  LUNAR_CHECK(g_deferred.count < g_deferred.capacity, "more slots held for children than there are");
  g_deferred.entries[(g_deferred.head + g_deferred.count++) % g_deferred.capacity] = {slot.value, epoch};
  return true;
}

}  // namespace

PagerState& pager_state() {
  static constinit PagerState instance;
  return instance;
}

uint64_t deferred_slots_bytes(uint64_t slots) { return slots * sizeof(DeferredSlot) + slots / 8; }

int deferred_slots_prepare(PagerState& state) {
  if (!state.lun_ready.load()) return 0;
  const SlotAllocator& lun = state.luns[state.own_lun];
  sys::Locked<sys::SpinLock> lock(g_deferred.lock);
  if (g_deferred.entries == nullptr) {
    g_deferred.capacity = uint64_t{lun.bitmap_words()} * 64;
    g_deferred.shared =
        static_cast<uint64_t*>(map_private(lun.bitmap_words() * sizeof(uint64_t), ForkPolicy::kDontFork));
    g_deferred.entries =
        static_cast<DeferredSlot*>(map_private(g_deferred.capacity * sizeof(DeferredSlot), ForkPolicy::kDontFork));
    if (g_deferred.entries == nullptr || g_deferred.shared == nullptr) {
      unmap_private(g_deferred.shared, lun.bitmap_words() * sizeof(uint64_t));
      unmap_private(g_deferred.entries, g_deferred.capacity * sizeof(DeferredSlot));
      g_deferred.entries = nullptr;
      g_deferred.shared = nullptr;
      return -ENOMEM;
    }
  }
  // No write is in flight now, so whatever a page of the child's may refer to is in use. (Slots still held for children
  // that are gone by now are in use too.)
  lun.copy_used(g_deferred.shared, state.oldest_child.load(std::memory_order_acquire) != 0);
  return 0;
}

void deferred_slots_forget() {
  g_deferred.lock.unlock();
  g_deferred.entries = nullptr;
  g_deferred.shared = nullptr;
  g_deferred.head = g_deferred.count = g_deferred.capacity = 0;
}

void slot_release(PagerState& state, unsigned lun, Slot slot) {
  if (slot == kNoSlot || lun != state.own_lun) return;
  if (state.oldest_child.load(std::memory_order_acquire) != 0 &&
      defer_slot(slot, state.fork_epoch.load(std::memory_order_acquire)))
    return;
  state.luns[lun].release(slot);
}

void deferred_slots_release(PagerState& state) {
  for (;;) {
    Slot slot = kNoSlot;
    {
      sys::Locked<sys::SpinLock> lock(g_deferred.lock);
      if (g_deferred.count == 0) return;
      uint32_t oldest = state.oldest_child.load(std::memory_order_acquire);  // each time: a fork may come in between
      DeferredSlot& first = g_deferred.entries[g_deferred.head];
      if (oldest != 0 && first.epoch >= oldest) return;
      slot = Slot(first.slot);
      g_deferred.head = (g_deferred.head + 1) % g_deferred.capacity;
      --g_deferred.count;
    }
    state.luns[state.own_lun].release(slot);
  }
}

uint64_t deferred_slot_count() { return g_deferred.count; }

// Waits until the housekeeping thread has answered: slots to charge, or a range to register.
static int ask_housekeeping(PagerState& state, uint64_t slots, void* address, size_t bytes) {
  auto& request = state.table_request;
  sys::Locked<sys::Mutex> lock(request.lock);
  request.slots = slots;
  request.address = address;
  request.bytes = bytes;
  request.asked.store(1, std::memory_order_release);
  housekeeping_wake(state, kHousekeepingTable);
  while (request.asked.load(std::memory_order_acquire) != 0) (void)sys::futex_wait(&request.asked, 1, -1, false);
  return request.answer;
}

int slots_charge(PagerState& state, uint64_t slots) {
  SlotAllocator& lun = state.luns[state.own_lun];
  const int rc = lun.charge_fast(slots);
  if (rc != -EAGAIN) return rc;
  if (!sys::in_program_files()) return lun.charge(slots);
  // The program may have a file of its own under the LUN's number, and would find that grown.
  return ask_housekeeping(state, slots, nullptr, 0);
}

static int register_fresh(const PagerState& state, void* address, size_t bytes) {
  return sys::uffd_register(state.uffd, address, bytes, state.write_protect);
}

void answer_table_request(PagerState& state) {
  auto& request = state.table_request;
  if (request.asked.load(std::memory_order_acquire) == 0) return;
  request.answer = request.address != nullptr ? register_fresh(state, request.address, request.bytes)
                                              : state.luns[state.own_lun].charge(request.slots);
  request.asked.store(0, std::memory_order_release);
  sys::futex_wake(&request.asked, 1, false);
}

// Counts slots for a LUN that is yet to open. False: it is open.
static bool promise_slots(PagerState& state, int64_t slots) {
  int64_t before = state.promised_slots.load(std::memory_order_acquire);
  while (before != PagerState::kOnLun)
    if (state.promised_slots.compare_exchange_weak(before, before + slots, std::memory_order_acq_rel)) return true;
  return false;
}

// The LUN takes over what was promised. Other threads charge and give back meanwhile.
static int charge_promised(PagerState& state, SlotAllocator& lun) {
  int64_t charged = 0, promised = state.promised_slots.load(std::memory_order_acquire);
  do {
    const int64_t more = promised - charged;
    if (more < 0)
      lun.uncharge(static_cast<uint64_t>(-more));
    else if (const int rc = lun.charge(static_cast<uint64_t>(more)); rc < 0)
      return rc;
    charged = promised;
  } while (!state.promised_slots.compare_exchange_strong(promised, PagerState::kOnLun, std::memory_order_acq_rel));
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
  SlotAllocator& lun = state.luns[state.own_lun];
  const int rc = may_block ? slots_charge(state, pages) : lun.charge_fast(pages);
  if (!may_block && lun.runs_short()) housekeeping_wake(state, kHousekeepingGrow);
  if (rc < 0) state.account.lun_give(bytes);
  return rc;
}

void space_uncharge(PagerState& state, uint64_t pages) {
  if (pages == 0 || forked_past_us(state) != 0) return;  // it is the parent's
  if (!promise_slots(state, -static_cast<int64_t>(pages))) state.luns[state.own_lun].uncharge(pages);
  state.account.lun_give(static_cast<int64_t>(pages << state.page_shift));
}

SpaceBound space_bound(PagerState& state, uint64_t bytes) {
  if (state.account.lun_free() < static_cast<int64_t>(bytes)) {
    const bool by_size =
        state.options.size != 0 || state.account.lun_cap() >= static_cast<int64_t>(8 * state.dram_bytes);
    return by_size ? SpaceBound::kSize : SpaceBound::kDevice;
  }
  if (!state.lun_ready.load(std::memory_order_acquire) || state.carved_pieces == 0) return SpaceBound::kDevice;
  const SlotAllocator& lun = state.luns[state.own_lun];
  const bool exceeds = lun.charged_slots() + (bytes >> state.page_shift) > lun.capacity_slots();
  return exceeds ? SpaceBound::kPart : SpaceBound::kDevice;
}

const char* space_remedy(const PagerState& state, SpaceBound bound) {
  if (bound == SpaceBound::kSize) return "give a larger --size";
  if (bound == SpaceBound::kDevice) return "free space there, or give another --lun";
  const bool named = state.options.lun != nullptr && strchr(state.options.lun, '#') != nullptr;
  return named ? "enlarge it (lunar lun resize), or give --lun a directory or a device without a name"
               : "give --lun a larger one, or a directory";
}

void uncharge_touched(PagerState& state, Region& region, PageWord was) {
  if (!was.charged()) return;
  space_uncharge(state, 1);
  region.committed_pages.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t committed_pages(const PagerState& state) {
  uint64_t pages = 0;
  for (uint32_t i = 0; i < state.regions.count.load(); ++i)
    pages += state.regions.sorted[i].load()->committed_pages.load();
  return pages;
}

int lun_open_own(PagerState& state) {
  if (state.lun_ready.load(std::memory_order_acquire)) return 0;
  sys::Locked<sys::Mutex> lock(state.lun_open_lock);
  if (state.lun_ready.load(std::memory_order_acquire)) return 0;
  const unsigned own = state.own_lun;
  if (!state.active.load()) state.promised_slots.store(static_cast<int64_t>(committed_pages(state)));
  const int64_t promised = state.promised_slots.load();
  uint64_t reserve = SlotAllocator::kCleaningReserve;
  uint64_t bytes = state.generation == 0 ? state.lun_bytes : static_cast<uint64_t>(state.account.lun_cap());
  ErrorText why;
  DeviceOffset base{};
  if (state.devices[own] == nullptr) {
    Device* parent = state.generation > 0 ? state.devices[state.parent_lun] : nullptr;
    if (parent != nullptr && !parent->growable()) {
      share_device(state, own, state.parent_lun);  // one device for the tree: a piece of it each
    } else {
      DeviceOptions options;
      options.want_bytes = 0;
      options.sqpoll = state.options.sqpoll;
      int rc = open_device(state, own, options, &why);
      if (rc < 0) {
        log_error("%s", why.text);
        return rc;
      }
    }
  }
  Device* device = state.devices[own];
  int piece = -1;
  unsigned pieces = 0;
  if (!device->growable()) {
    // Half of a shared device for the first process; for a child an eighth, or what it was promised and an eighth of
    // that.
    uint64_t piece_bytes = round_down(device->size_bytes() / kCarvePieces, 64 * state.page_size);
    pieces = state.generation == 0 ? kCarvePieces / 2 : kCarvePieces / 8;
    if (state.generation > 0 && piece_bytes > 0) {
      uint64_t wanted = (static_cast<uint64_t>(promised + promised / 8) << state.page_shift) / piece_bytes + 1;
      if (wanted > pieces) pieces = wanted < kCarvePieces ? static_cast<unsigned>(wanted) : kCarvePieces;
    }
    piece = state.account.carve(pieces);
    if (piece < 0) return piece;
    base = DeviceOffset(static_cast<uint64_t>(piece) * piece_bytes);
    if (bytes > pieces * piece_bytes) bytes = pieces * piece_bytes;
    reserve = 0;
  }
  // The reserve comes out of the size where the device has no more than that; and a child's part of the tree's space
  // may lie elsewhere: what there is now is enough if what was promised fits.
  const uint64_t held = reserve * state.page_size;
  if (device->growable() && bytes + held > device->size_bytes() && device->size_bytes() > held)
    bytes = round_down(device->size_bytes() - held, 64 * state.page_size);
  int rc = state.luns[own].open(device, base, bytes + held, static_cast<uint32_t>(state.page_size));
  state.growth_refused.store(false);
  if (rc == 0) rc = charge_promised(state, state.luns[own]);
  if (rc < 0) {
    state.luns[own].close();  // tried again later
    if (piece >= 0) state.account.uncarve(piece, pieces);
    return rc;
  }
  state.carved_first = piece;
  state.carved_pieces = pieces;
  state.lun_ready.store(true, std::memory_order_release);
  return 0;
}

void lun_close_own(PagerState& state) {
  state.lun_ready.store(false);
  state.promised_slots.store(0);
  state.luns[state.own_lun].close();
  if (state.carved_pieces != 0) state.account.uncarve(state.carved_first, state.carved_pieces);
  state.carved_pieces = 0;
}

MutatorScope::MutatorScope(PagerState& state, bool wait) : state_(state) {
  for (;;) {
    state.mutators.fetch_add(1, std::memory_order_seq_cst);
    if (!state.forking.load(std::memory_order_seq_cst)) {
      tables_.emplace();
      return;
    }
    state.mutators.fetch_sub(1, std::memory_order_seq_cst);
    if (!wait) {
      entered_ = false;
      return;
    }
    signals_.unblock();
    while (state.forking.load(std::memory_order_acquire)) sys::sleep_ns(20000);
    signals_.block();
  }
}

MutatorScope::~MutatorScope() {
  tables_.reset();
  if (entered_) state_.mutators.fetch_sub(1, std::memory_order_release);
}

int page_hash_key_make() {
  if (g_hash_key_made) return 0;
  int rc = sys::random_bytes(g_hash_key, sizeof g_hash_key);
  g_hash_key_made = rc == 0;
  return rc;
}

uint64_t page_hash(const void* content) {
  return XXH3_64bits_withSecret(content, sys::page_bytes(), g_hash_key, sizeof g_hash_key);
}

void count_evicted(int64_t delta) { counters().evicted.fetch_add(delta, std::memory_order_relaxed); }

bool page_is_zero(const void* content) {
  auto* words = static_cast<const uint64_t*>(content);
  size_t count = sys::page_bytes() / sizeof(uint64_t);
  if (words[0] != 0 || words[count - 1] != 0) return false;
  // Overlapping compare: every byte equals the one before it, and the first is zero.
  return memcmp(words, words + 1, (count - 1) * sizeof(uint64_t)) == 0;
}

bool read_slot(PagerState& state, const Region& region, uint64_t page, PageWord word, char* into) {
  iovec part{into, state.page_size};
  const Command command{Op::kRead, state.luns[word.lun()].offset_of(word.slot()), &part, 1, 0, 0};
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (state.devices[word.lun()]->transfer(command) == static_cast<int64_t>(state.page_size) &&
        page_hash(into) == region.table.hash(page))
      return true;
  }
  return false;
}

void count_resident(PagerState& state, Region& region, PageIndex page, int delta) {
  region.note_resident(page, delta);
  int64_t now = counters().resident.fetch_add(delta, std::memory_order_relaxed) + delta;
  if (now > state.resident_peak.load(std::memory_order_relaxed))
    state.resident_peak.store(now, std::memory_order_relaxed);
}

int watch_fresh_range(PagerState& state, void* address, size_t bytes) {
  for (const int advice : {MADV_NOHUGEPAGE, MADV_UNMERGEABLE, MADV_DONTFORK}) (void)sys::advise(address, bytes, advice);
  if (!sys::in_program_files() || uffd_in_place(state)) return register_fresh(state, address, bytes);
  return ask_housekeeping(state, 0, address, bytes);
}

void pager_watch_thread(int thread_id) { pager_state().watched.thread_id.store(thread_id, std::memory_order_relaxed); }
const std::atomic<uint64_t>* pager_watched_reads() { return &pager_state().watched.reads; }
const std::atomic<uint64_t>* pager_watched_read_ns() { return &pager_state().watched.read_ns; }
uint64_t pager_take_longest_fault_ns() {
  return pager_state().watched.longest_ns.exchange(0, std::memory_order_relaxed);
}

}  // namespace lunar
