// SPDX-License-Identifier: Apache-2.0
// Creating the pager, and its sizes.
// Threading: any thread of the program. Not on the fault path.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/host_guard.h"
#include "base/test_switches.h"
#include "pager/account/account_find.h"
#include "pager/activation/activate.h"
#include "pager/activation/activation.h"
#include "pager/pager.h"
#include "pager/state/descriptors.h"
#include "pager/state/requests.h"
#include "pager/table/table_promise.h"
#include "stats/export.h"
#include "superpipe/signature.h"
#include "sys/fatal.h"
#include "sys/kernel.h"
#include "sys/memory_copy.h"
#include "sys/numa.h"
#include "sys/proc.h"
#include "sys/usable_memory.h"

namespace lunar {
namespace {

constexpr uint64_t kDramMin = 16 * kMiB, kPagesMin = 1024;

// The least budget. Frames, windows and the pages that eviction keeps free are counted in pages, so
// it is larger if pages are.
uint64_t dram_least(const PagerState& state) {
  return std::max(kDramMin, kPagesMin << state.page_shift);
}

// Whether `lunar run` has checked the options, for the whole tree.
bool has_account(const Options& options) {
  return options.account != nullptr && options.account[0] != 0;
}

int check_dram(const PagerState& state, uint64_t bytes, ErrorText* why) {
  const uint64_t least = dram_least(state);
  const uint64_t total = sys::machine_memory_bytes("MemTotal");
  if (bytes < least)
    return why->set(-EINVAL, "dram: %s is too small; give at least %s", format_size(bytes).text,
                    format_size(least).text);
  if (total != 0 && bytes > total)
    return why->set(-EINVAL, "dram: %s is more than this machine has (%s); give less",
                    format_size(bytes).text, format_size(total).text);
  // one process of a tree may be in a smaller cgroup than the others
  if (has_account(state.options)) return 0;
  if (const sys::UsableMemory memory = sys::usable_memory(); bytes > memory.limit_bytes)
    return why->set(-EINVAL, "dram: %s is more than the memory cgroup allows (%s in %s); give less",
                    format_size(bytes).text, format_size(memory.limit_bytes).text,
                    memory.limit_file);
  return 0;
}

int check_sizes(PagerState& state, ErrorText* why) {
  state.dram_bytes = state.options.dram;
  if (state.dram_bytes == 0)
    state.dram_bytes = std::max(sys::usable_memory().bytes / 4, dram_least(state));
  if (const int rc = check_dram(state, state.dram_bytes, why); rc < 0) return rc;
  state.luns.bytes = state.options.size;
  if (state.luns.bytes != 0 && state.luns.bytes < state.dram_bytes)
    return why->set(
        -EINVAL, "size: a LUN of %s is smaller than the DRAM budget of %s; give at least as much",
        format_size(state.luns.bytes).text, format_size(state.dram_bytes).text);
  return 0;
}

// Returns the account's descriptor; -1: the process makes its own account; else -errno. Searches
// for it if a raw call has closed it since the start.
int account_descriptor(const Options& options, ErrorText* why) {
  if (!has_account(options)) return -1;
  return account_is(account_number()) ? account_number()
                                      : account_find(options.account, sizeof(AccountShared), why);
}

int join_account(PagerState& state, ErrorText* why) {
  if (state.member.pid.load() == getpid()) return 0;
  const int descriptor = account_descriptor(state.options, why);
  if (descriptor < -1) return descriptor;
  int rc = state.account.open(descriptor, state.dram_bytes >> state.page_shift, pager_lun_bytes());
  if (rc == -EPROTO)
    return why->set(rc,
                    "pager: another build of Lunar made this tree's DRAM account; start the whole "
                    "tree again, with `lunar run` of one build");
  if (rc == 0) rc = state.account.join();
  if (rc < 0)
    return why->set(rc, "pager: the shared account cannot be joined (%s)", errno_name(rc));
  state.member.pid.store(getpid());
  state.member.copy.store(sys::memory_copy());
  return 0;
}

}  // namespace

// After pager_destroy: the service threads and the LUN still exist, and serve the new tier.
static int create_again(PagerState& state, const Options& options, ErrorText* why) {
  if (strcmp(options.lun, state.options.lun) != 0)
    return why->set(
        -ENOTSUP,
        "lun: this process has used %s before and cannot change to %s; start a new process",
        state.options.lun, options.lun);
  uint64_t lun_bytes = state.luns.bytes;
  Options before = state.options;
  state.options = options;
  int rc = check_sizes(state, why);
  state.luns.bytes = lun_bytes;
  if (rc < 0) {
    state.options = before;
    return rc;
  }
  state.account.set_cap(static_cast<int64_t>(state.dram_bytes >> state.page_shift));
  state.created.store(true, std::memory_order_release);
  return 0;
}

// Checks limits against which the kernel counts tiered memory, although it is on the LUN.
static int check_limits(ErrorText* why) {
  if (sys::commits_are_counted())
    return why->set(-ENOTSUP,
                    "vm.overcommit_memory is 2, under which memory on the LUN counts against the "
                    "machine's commit limit; run `sysctl vm.overcommit_memory=0`");
  if (sys::data_is_limited())
    return why->set(-ENOTSUP,
                    "a limit on data (RLIMIT_DATA) is set, against which memory on the LUN counts; "
                    "run `ulimit -d unlimited`: --dram and --size limit the program");
  return 0;
}

void pager_read_nodes() {
  if (test_switches.numa_nodes > 1) sys::pretend_nodes(static_cast<int>(test_switches.numa_nodes));
  (void)sys::numa_nodes();
}

// Nothing may remain of an earlier attempt with other options (a module whose first load failed).
static void forget_attempt(PagerState& state) {
  close_device(state, 0);
  g_activation.next_ns.store(0);
  g_activation.failed.store(false);
}

// These load libraries or search them, which is not possible later, while the program allocates, or
// make system calls that a seccomp filter may refuse later.
static void load_early(PagerState& state) {
  (void)sys::moves_flush_once();
  pager_read_nodes();
  sys::threads_prepare();
  state.page_size = sys::page_bytes();
  state.page_shift = static_cast<unsigned>(__builtin_ctzl(state.page_size));
}

// Checks what activation needs. A program of the tree for which `lunar run` has checked the options
// may have fewer rights: if it stays small, it needs none.
static int check_host(PagerState& state, bool vouched, ErrorText* why) {
  if (!vouched) {
    int rc = sys::kernel_check(why);
    if (rc == 0 && state.uffd < 0) rc = open_uffd(state, why);
    if (rc < 0) return rc;
  }
  if (state.luns.devices[0] == nullptr && (!vouched || state.luns.bytes == 0)) {
    const int rc = check_lun(state, why);
    if (rc < 0 && !vouched) return rc;
    if (rc == 0) close_device(state, 0);
  }
  return 0;
}

static int open_stats_file(const Options& options, ErrorText* why) {
  if (options.stats_file == nullptr || options.stats_file[0] == 0) return 0;
  const int rc = stats_file_open(options.stats_file, pager_stats);
  return rc == 0 ? 0
                 : why->set(rc, "stats_file: %s cannot be written (%s)", options.stats_file,
                            errno_text(rc));
}

int pager_create(const Options& options, ErrorText* why) {
  auto& state = pager_state();
  if (state.created.load(std::memory_order_acquire))
    return why->set(-EEXIST, "pager: started already");
  HostGuard guard;
  if (pager_active()) return create_again(state, options, why);
  forget_attempt(state);
  state.options = options;
  load_early(state);
  int rc = check_limits(why);
  if (rc == 0) rc = check_sizes(state, why);
  if (rc < 0) return rc;
  rc = page_hash_key_make();
  if (rc < 0) return why->set(rc, "pager: no random numbers (getrandom: %s)", errno_text(rc));
  standby_open(state, false);
  if (!has_lun_directory(state)) signature_prepare();
  const bool vouched = has_account(options);
  rc = check_host(state, vouched, why);
  if (rc == 0) rc = join_account(state, why);
  if (rc < 0) return rc;
  if (!vouched) {  // an earlier attempt may have had others
    state.account.set_cap(static_cast<int64_t>(state.dram_bytes >> state.page_shift));
    state.account.set_lun_cap(static_cast<int64_t>(pager_lun_bytes()));
  }
  rc = open_stats_file(options, why);
  if (rc < 0) return rc;
  rc = fork_handlers_install();
  if (rc < 0) return why->set(rc, "pager: fork handlers cannot be installed (%s)", errno_name(rc));
  activation_prepare();
  sys::note_memory_owner();
  set_fatal_hook([] { pager_dump(2); });
  state.created.store(true, std::memory_order_release);
  return 0;
}

bool pager_created() { return pager_state().created.load(std::memory_order_acquire); }
bool pager_active() { return pager_state().is_active(); }

uint64_t pager_budget_pages() { return static_cast<uint64_t>(pager_state().account.cap_pages()); }
int pager_evictor_thread() {
  return pager_state().services.evictor_tid.load(std::memory_order_relaxed);
}

// Whether the part of the budget that cannot be evicted leaves enough of it. `taken`: pages of that
// part that are not charged yet.
static bool has_room_to_evict(const PagerState& state, int64_t taken) {
  const int64_t not_fixed = state.account.cap_pages() - state.account.fixed_total() - taken;
  return not_fixed >= kTableRoom + state.pinned_pages.load();
}

// The pages that cannot be evicted and come when this process becomes active, less its plain
// memory, which can be evicted then. pre: it is not active; the activation lock.
static int64_t taken_by_activation(const PagerState& state) {
  const int64_t plain = state.account.plain_pages();
  const int64_t room = state.account.cap_pages() - state.account.fixed_total() + plain;
  return own_need(state, is_first_active(state), room).pages() +
         pages_for_units(g_activation.plain_table_units) - plain;
}

int pager_set_dram(uint64_t bytes) {
  auto& state = pager_state();
  ErrorText why;
  if (const int rc = check_dram(state, bytes, &why); rc < 0) return rc;
  const int64_t pages = static_cast<int64_t>(bytes >> state.page_shift);
  if (pager_active() && state.pinned_pages.load() > pages / 2) return -EBUSY;
  const int64_t before = state.account.cap_pages();
  const bool shrinks = pages < before;
  bool must_evict, fits;  // plain memory above a smaller limit, which only an active process evicts
  {
    const CommitLock lock(state);
    state.account.set_cap(pages);  // first: of this and a promise at once, one sees the other
    must_evict = shrinks && lock.plain() && state.account.plain_pages() > plain_limit(state);
    fits = !must_evict || has_room_to_evict(state, taken_by_activation(state));
    if (!fits) state.account.set_cap(before);
  }
  if (fits && must_evict) fits = pager_activate(&why) == 0;
  if (!fits || (shrinks && !has_room_to_evict(state, 0))) {
    state.account.set_cap(before);
    return -EBUSY;
  }
  state.dram_bytes = bytes;
  for (int i = 0; state.account.free_pages() < 0 && i < 600'000; ++i) {
    state.account.raise_pressure();
    sys::sleep_ns(100'000);
  }
  return state.account.free_pages() < 0 ? -EBUSY : 0;
}

uint64_t pager_lun_bytes() {
  auto& state = pager_state();
  return state.luns.bytes != 0 ? state.luns.bytes : state.dram_bytes * 8;
}

int pager_activate(ErrorText* why) { return activate(pager_state(), why); }

bool pager_keeps_descriptor(int fd) { return keeps_descriptor(pager_state(), fd); }

}  // namespace lunar
