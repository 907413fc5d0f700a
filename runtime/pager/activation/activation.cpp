// SPDX-License-Identifier: Apache-2.0
// Plain memory, descriptors opened in advance, and the adoption of present pages. See activation.h.
#include "pager/activation/activation.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>

#include "pager/activation/activate.h"
#include "pager/evict/batch.h"
#include "pager/page/present_chunks.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/numa.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr int64_t kSmallPagesMax = 512;  // a process with less stays plain even if the tree is full
constexpr unsigned kSmallWaitMs = 50;    // how long it waits for active processes to make room
constexpr uint64_t kRetryNs = 100'000'000;

bool huge_pages_always() {
  char text[128];
  if (sys::read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) < 0)
    return false;
  return strstr(text, "[always]") != nullptr;
}

// Returns by how many pages the charge changes: committed memory, with the tables that it may take.
int64_t charge_change(PagerState& state, const Region& region, Committed change) {
  const int64_t before = pages_for_units(g_activation.plain_table_units);
  g_activation.plain_table_units += change.units;
  // before activation a promise limits nothing
  if (!region.on_touch) (void)promise_change(state, change.units);
  return change.pages + pages_for_units(g_activation.plain_table_units) - before;
}

int64_t count_plain(PagerState& state, Region& region, uint64_t first, uint64_t end, int sign) {
  return charge_change(state, region, count_committed(state, region, first, end, sign));
}

int64_t small_pages(int64_t cap) { return std::min(cap / 16, kSmallPagesMax); }

bool take_waiting(Account& account, int64_t pages, int64_t limit) {
  for (unsigned waited = 0; waited < kSmallWaitMs; ++waited) {
    if (account.take_plain(pages, limit)) return true;
    account.raise_pressure();
    sys::sleep_ns(1'000'000);
  }
  return false;
}

bool may_stay_plain(PagerState& state, int64_t own, uint64_t committed_bytes) {
  Account& account = state.account;
  // children about to be forked will have the same
  const int64_t pages = own * (1 + g_activation.plain_forks);
  const int64_t cap = account.cap_pages();
  if (state.options.activate_at != 0)
    return committed_bytes <= state.options.activate_at &&
           account.take_plain(pages, cap - kKeepFreePages);
  if (account.take_plain(pages, plain_limit(state))) return true;
  return account.plain_pages() + pages <= small_pages(cap) &&
         take_waiting(account, pages, cap - kKeepFreePages);
}

}  // namespace

void keep_own_files() {
  for (const sys::OwnFile file : {sys::OwnFile::kPagemap, sys::OwnFile::kMemory})
    sys::note_own_descriptor(sys::keep_own_file(file), true);
}

void standby_open(PagerState& state, bool child) {
  sys::MakingDescriptor making;
  if (!child) {
    sys::note_own_descriptor(sys::keep_proc_directory(), true);
    state.thp_always = huge_pages_always();
  }
  keep_own_files();
  ErrorText unused;
  const int device = sys::uffd_keep_device(state.options.uffd_device);
  sys::note_own_descriptor(device, true);
  if (state.uffd >= 0) close_uffd(state);  // a parent's, or an earlier one
  if (device < 0 && open_uffd(state, &unused) < 0) state.uffd = -1;
  standby_lun(state, child);
}

void standby_descriptors(const PagerState& state, int* out, unsigned* count) {
  for (const int fd : {sys::proc_directory(), sys::keep_own_file(sys::OwnFile::kPagemap),
                       sys::keep_own_file(sys::OwnFile::kMemory), state.luns.directory})
    if (fd >= 0) out[(*count)++] = fd;
}

int64_t plain_limit(const PagerState& state) {
  const int64_t cap = state.account.cap_pages();
  const int64_t window = window_pages_for(cap);
  const int64_t needed = kFixedRoom + frame_count_for(cap) + 2 * kBatchPages + 4 * window;
  return cap - std::max(needed, cap / 8);
}

int plain_commit(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  // more than the budget: spares counting chunk by chunk
  if (static_cast<int64_t>(end - first) > state.account.cap_pages()) return -EAGAIN;
  const uint64_t committed = g_activation.committed.load() + ((end - first) << state.page_shift);
  const int64_t pages = count_plain(state, region, first, end, 1);
  if (!may_stay_plain(state, pages, committed)) {
    (void)count_plain(state, region, first, end, -1);
    return -EAGAIN;
  }
  g_activation.plain_fork_pages += pages * g_activation.plain_forks;
  if (!region.on_touch) g_activation.committed.store(committed);
  return 0;
}

void plain_uncommit(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  if (!region.on_touch) g_activation.committed.fetch_sub((end - first) << state.page_shift);
  state.account.give_plain(-count_plain(state, region, first, end, -1));
}

bool plain_allow_huge(PagerState& state, Region& region) {
  if (charged_exactly(state, region) && !region.of_maps()) {
    int64_t more = 0;  // no tables: a heap's chunks are promised all of theirs anyway
    for (uint64_t chunk = 0; chunk * kChunkPages < region.table_pages.load(); ++chunk) {
      const int32_t committed = region.chunk_committed[chunk].load(std::memory_order_relaxed);
      if (committed != 0) more += static_cast<int64_t>(region.chunk_size(chunk)) - committed;
    }
    if (!state.account.take_plain(more * (1 + g_activation.plain_forks), plain_limit(state)))
      return false;
    g_activation.plain_fork_pages += more * g_activation.plain_forks;
    region.huge.store(true);
  }
  return true;
}

bool plain_charge_fork(PagerState& state) {
  const int64_t cap = state.account.cap_pages(),
                pages = state.account.plain_pages() - g_activation.plain_fork_pages;
  const bool is_small = pages <= small_pages(cap);
  // An idle plain child cannot evict, so a tree of such children may hold a quarter of the budget.
  const int64_t limit = is_small || state.options.activate_at != 0 ? cap - kKeepFreePages : cap / 4;
  if (!(is_small ? take_waiting(state.account, pages, limit)
                 : state.account.take_plain(pages, limit)))
    return false;
  ++g_activation.plain_forks;
  g_activation.plain_fork_pages += pages;
  return true;
}

void plain_uncharge_fork(PagerState& state) {
  if (g_activation.plain_forks == 0) return;
  const int64_t part = g_activation.plain_fork_pages / g_activation.plain_forks--;
  g_activation.plain_fork_pages -= part;
  state.account.give_plain(part);
}

int plain_reserve_child(PagerState& state, uint64_t* ticket) {
  const int64_t pages = state.account.plain_pages() - g_activation.plain_fork_pages;
  const int64_t prepaid =
      g_activation.plain_forks == 0 ? 0 : g_activation.plain_fork_pages / g_activation.plain_forks;
  if (g_activation.plain_forks != 0) --g_activation.plain_forks;
  g_activation.plain_fork_pages -= prepaid;
  return state.account.reserve_plain_child(pages, prepaid, ticket);
}

CommitLock::CommitLock(PagerState& state) : state_(state) {
  constexpr int64_t kLookNs = 10'000'000;
  constexpr uint64_t kMakingThreadsNs = 30'000'000;
  for (;;) {
    locked_ = g_activation.lock.lock_within(kLookNs);
    if (locked_) return;
    const uint64_t since = g_activation.making_threads_ns.load(std::memory_order_acquire);
    if (since == 0 || sys::now_ns() - since < kMakingThreadsNs) continue;
    g_activation.passed.store(true);
    return;
  }
}

CommitLock::~CommitLock() {
  if (locked_) g_activation.lock.unlock();
}

bool CommitLock::plain() const { return locked_ && !state_.is_active(); }

void close_holes(PagerState& state) {
  sys::Locked<sys::Mutex> lock(state.regions.lock);
  for (const Region& region : state.regions) {
    (void)for_own(state.foreign, region.base, region.base + (region.pages << state.page_shift),
                  [&](char* at, size_t bytes) {
                    const uint64_t first = region.page_of(at).value;
                    claim_holes(region, first, first + (bytes >> state.page_shift));
                    return 0;
                  });
  }
}

namespace {

// Makes the words of present pages kResident. Returns how many, or -errno. Handlers fill pages
// meanwhile.
int adopt_words(PagerState& state, Region& region, uint64_t first, uint64_t count,
                const uint8_t* present) {
  int adopted = 0;
  for (uint64_t page = first; page < first + count;) {
    if (present[page - first] == 0) {
      ++page;
      continue;
    }
    const TableScope scope;
    // the leaf's DRAM is a part of the charge for plain memory
    if (int rc = table_reach(state, region, page, page + 1, 0); rc < 0) return rc;
    AtomicPageWord* word = region.table.find(page);
    PageWord seen =
        word != nullptr ? word->load(std::memory_order_relaxed) : PageWord{PageWord::kRetired};
    if (seen.retired()) continue;  // evicted zeros have just emptied the leaf: again
    ++page;
    if (seen.state() != PageState::kEmpty) continue;  // a handler was faster
    // It may be shared by a fork, or the kernel's zero page, so it is not known to be exclusive.
    const PageWord next = resident_word(seen, kNoSlot, state.luns.own, kHeatFault, shared_epoch())
                              .with_charged(region.on_touch);
    if (word->compare_exchange_strong(seen, next, std::memory_order_acq_rel)) ++adopted;
  }
  return adopted;
}

// Adopts the present pages of a chunk. Returns how many, or -errno.
int adopt_chunk(PagerState& state, Region& region, uint64_t first, uint64_t count,
                const uint8_t* present) {
  const auto there = static_cast<uint64_t>(
      std::count_if(present, present + count, [](uint8_t one) { return one != 0; }));
  if (region.on_touch && there != 0 && space_charge(state, there, true) < 0)
    fatal("activation: there is no LUN space for MAP_NORESERVE memory in use; %s",
          space_remedy(state, space_bound(state, there << state.page_shift)));
  const int adopted = adopt_words(state, region, first, count, present);
  if (adopted < 0) return adopted;
  if (region.on_touch) {
    region.committed_pages.fetch_add(static_cast<uint64_t>(adopted));
    space_uncharge(state, there - static_cast<uint64_t>(adopted));
  }
  if (adopted == 0) return 0;
  region.chunk_large[first / kChunkPages].store(1, std::memory_order_release);
  count_resident(state, region, PageIndex(first), adopted);
  return adopted;
}

}  // namespace

int64_t adopt_present(PagerState& state, Region& region) {
  const uint64_t bytes = region.pages << state.page_shift;
  // MADV_NOHUGEPAGE does not split present huge pages.
  (void)for_own(state.foreign, region.base, region.base + bytes, [](char* at, size_t part) {
    for (const int advice : {MADV_NOHUGEPAGE, MADV_DONTFORK}) (void)sys::advise(at, part, advice);
    return 0;
  });
  if (int rc = region_register(state, region, region.base, bytes); rc < 0) return rc;
  int64_t found = 0;
  // whole chunks, because a huge page may reach beyond committed memory
  const uint64_t end = std::min(round_up(region.table_pages.load(), kChunkPages), region.pages);
  const int rc = for_present_chunks(
      state.foreign, region, end, [&](uint64_t first, uint64_t count, const uint8_t* present) {
        const int adopted = adopt_chunk(state, region, first, count, present);
        if (adopted > 0) found += adopted;
        return std::min(adopted, 0);
      });
  return rc < 0 ? rc : found;
}

void activation_failure(PagerState& state, const ErrorText& why) {
  g_activation.next_ns.store(sys::now_ns() + kRetryNs);
  if (!g_activation.failed.exchange(true)) log_error("%s", why.text);
}

// Frames for writes in flight and second chances. More frames would give longer second chances, but
// leave fewer resident pages. A small budget has several batches of frames as well.
uint32_t frame_count_for(int64_t cap) {
  const int64_t batches = std::min<int64_t>(cap / 16, 8 * kBatchPages);
  return static_cast<uint32_t>(std::clamp<int64_t>(std::max(cap / 96, batches), 160, 16'384));
}

int64_t OwnNeed::pages() const {
  return frames + 2 * kBatchPages + static_cast<int64_t>(handlers) * window;
}

OwnNeed own_need(const PagerState& state, bool first, int64_t room) {
  const int64_t whole = state.account.cap_pages();
  const int64_t cap = std::min(whole / (first ? 1 : 8), room);
  const auto cpus = static_cast<unsigned>(sys::cpu_count()),
             nodes = static_cast<unsigned>(sys::numa_nodes());
  unsigned handlers = state.options.handlers != 0  ? static_cast<unsigned>(state.options.handlers)
                      : !first || room < whole / 2 ? 1
                                                   : std::min(cpus, 4u);
  if (handlers * nodes > kHandlersMax) handlers = kHandlersMax / nodes;
  handlers = std::max(handlers, 1u);
  return {frame_count_for(cap), handlers * nodes, window_pages_for(cap)};
}

bool is_first_active(const PagerState& state) {
  return state.fork.generation == 0 && !state.account.others_active();
}

unsigned window_pages_for(int64_t cap) {
  return static_cast<unsigned>(std::clamp<int64_t>(cap / 64, 64, 256));
}

}  // namespace lunar
