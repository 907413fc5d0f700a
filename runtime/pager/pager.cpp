// SPDX-License-Identifier: Apache-2.0
// Creating and activating the pager, and its housekeeping thread.
// Threading: activation happens once, under a lock, possibly inside an allocator's hook: whatever allocates here runs
// under a HostGuard. Not on the fault path.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/host_guard.h"
#include "base/test_switches.h"
#include "pager/account/account_find.h"
#include "pager/activation/activation.h"
#include "pager/evict/evictor.h"
#include "pager/fault/handler.h"
#include "pager/fork/fork.h"
#include "pager/pager.h"
#include "pager/state/descriptors.h"
#include "pager/state/program_end.h"
#include "pager/state/state.h"
#include "pager/table/table_promise.h"
#include "stats/export.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/kernel.h"
#include "sys/log.h"
#include "sys/memory_copy.h"
#include "sys/numa.h"
#include "sys/own_stack.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr uint64_t kDramMin = 16 * kMiB, kPagesMin = 1024;

// Of the thread that activates the pager, under activation_lock, which blocks signals: what becomes active may be a
// signal handler on 8 KiB, and making threads needs more.
constinit sys::OwnStack g_stack;

// 0: not known.
uint64_t meminfo(const char* key) {
  const int64_t bytes = sys::machine_memory_bytes(key);
  return bytes < 0 ? 0 : static_cast<uint64_t>(bytes);
}

// Frames, windows and what eviction keeps free are counted in pages: with large pages the least is more.
uint64_t dram_least(const PagerState& state) {
  return kDramMin > kPagesMin << state.page_shift ? kDramMin : kPagesMin << state.page_shift;
}

int check_sizes(PagerState& state, ErrorText* why) {
  const uint64_t least = dram_least(state), available = meminfo("MemAvailable");
  state.dram_bytes = state.options.dram != 0 ? state.options.dram : available / 4;
  if (state.options.dram == 0 && state.dram_bytes < least) state.dram_bytes = least;
  if (const int rc = check_dram(state, state.dram_bytes, why); rc < 0) return rc;
  state.lun_bytes = state.options.size;
  if (state.lun_bytes != 0 && state.lun_bytes < state.dram_bytes)
    return why->set(-EINVAL, "size: a LUN of %s is smaller than the DRAM budget of %s; give at least as much",
                    format_size(state.lun_bytes).text, format_size(state.dram_bytes).text);
  return 0;
}

// Opens and checks the LUN without reserving anything.
int check_lun(PagerState& state, ErrorText* why) {
  DeviceOptions options;
  options.want_bytes = state.lun_bytes;
  options.sqpoll = state.options.sqpoll;
  int rc = open_device(state, 0, options, why);
  if (rc < 0) return rc;
  Device* device = state.devices[0];
  if (state.lun_bytes == 0) {
    uint64_t spare = device->size_bytes() / 16 * 15;
    state.lun_bytes = state.dram_bytes * 8 < spare ? state.dram_bytes * 8 : spare;
    if (state.lun_bytes < state.dram_bytes)
      rc = why->set(-ENOSPC,
                    "lun: %s has room for %s only, less than the DRAM budget; free some space or name another place",
                    state.options.lun, format_size(device->size_bytes()).text);
  }
  if (rc < 0) close_device(state, 0);
  return rc;
}

// -1: the process has its own account. Searches for it where a raw system call has closed it since the start.
int account_descriptor(const Options& options, ErrorText* why) {
  if (options.account == nullptr || options.account[0] == 0) return -1;
  return account_is(account_number()) ? account_number() : account_find(options.account, sizeof(AccountShared), why);
}

void housekeeping_thread(void* argument) {
  auto& state = *static_cast<PagerState*>(argument);
  state.housekeeping_tid.store(sys::thread_id());
  // Its own descriptor table, with nothing of the program's in it: the program may close what it likes, and no reader
  // waits for an end of file that a pager thread holds back.
  int keep[kLunIds * kDeviceFdsMax + 11];
  unsigned n = 0;
  keep[n++] = state.uffd;
  keep[n++] = program_end_descriptor();
  if (const int account = state.account.descriptor(); account >= 0) keep[n++] = account;
  standby_descriptors(state, keep, &n);
  for (Device* device : state.devices)
    for (unsigned i = 0; device != nullptr && i < device->fd_count(); ++i) keep[n++] = device->fd(i);
  state.evictor->add_descriptors(keep, &n);
  sys::close_all_but(keep, n);
  state.account.lock_alive();
  // Handlers before all else that could evict or fault.
  int rc = 0;
  for (unsigned i = 0; rc == 0 && i < state.handler_count; ++i) rc = state.handlers[i]->start();
  const auto handlers_run = [&] {
    return state.handlers_running.load(std::memory_order_acquire) >= state.handler_count;
  };
  if (rc == 0) sys::wait_for_start("lunar-fault", handlers_run);
  if (rc == 0) rc = state.evictor->start();
  pthread_t stats;
  if (rc == 0 && stats_file_is_open())
    rc = sys::thread_start({"lunar-stats", stats_file_run, nullptr, false, false, &state.housekeeping_word}, &stats);
  if (rc < 0) fatal("pager: service threads cannot be started (%s)", errno_name(rc));
  // The last thread is made, and none of ours allocates any more: only now may a forked child go without the early heap
  // (its other fork handlers, the allocator's among them, run concurrently with this thread).
  host_fork_bootstrap.store(false);
  housekeeping_run(state);
}

}  // namespace

namespace {

// A first check, before anything is opened. Dead members count until a sweep, and there may be no living member to
// sweep.
bool has_room(PagerState& state) {
  if (state.account.cap_pages() - state.account.fixed_total() >= kFixedRoom) return true;
  state.account.sweep_settled();
  return state.account.cap_pages() - state.account.fixed_total() >= kFixedRoom;
}

int no_room(const PagerState& state, ErrorText* why) {
  return why->set(-ENOMEM,
                  "pager: the processes of this tree fill the DRAM budget of %s with what each needs for itself; give "
                  "more (--dram)",
                  format_size(static_cast<uint64_t>(state.account.cap_pages()) << state.page_shift).text);
}

int join_account(PagerState& state, ErrorText* why) {
  if (state.member_pid.load() == getpid()) return 0;
  const int descriptor = account_descriptor(state.options, why);
  if (descriptor < -1) return descriptor;
  int rc = state.account.open(descriptor, state.dram_bytes >> state.page_shift, pager_lun_bytes());
  if (rc == -EPROTO)
    return why->set(rc,
                    "pager: another build of Lunar made this tree's DRAM account; start the whole tree again, with "
                    "`lunar run` of one build");
  if (rc == 0) rc = state.account.join();
  if (rc < 0) return why->set(rc, "pager: the shared account cannot be joined (%s)", errno_name(rc));
  state.member_pid.store(getpid());
  state.member_copy.store(sys::memory_copy());
  return 0;
}

int activate_parts(PagerState& state, ErrorText* why) {
  if (!has_room(state)) return no_room(state, why);
  int rc = 0;
  if (!uffd_in_place(state)) rc = open_uffd(state, why);
  if (rc < 0) return rc;
  // the program has closed them
  if (state.devices[0] != nullptr && !descriptors_in_place(state)) forget_device(state, 0);
  if (state.lun_bytes == 0 || state.devices[0] == nullptr) {
    rc = check_lun(state, why);
    if (rc < 0) return rc;
  }
  rc = lun_open_own(state);
  if (rc < 0)
    return why->set(rc,
                    "lun: %s cannot be set up with %s (%s); free space there, or give a smaller size or another place",
                    state.options.lun, format_size(state.lun_bytes).text, errno_text(rc));
  return 0;
}

}  // namespace

// Uses what was reserved for it.
static int start_threads(PagerState& state, const OwnNeed& need, ErrorText* why) {
  // Frames, the pipe and the staging area are DRAM like any other.
  if (state.evictor == nullptr) state.evictor = arena_new<Evictor>(state, state.frames);
  if (state.evictor == nullptr) return why->set(-ENOMEM, "pager: out of memory");
  state.account.take_fixed(need.frames + 2 * kBatchPages);
  int rc = state.evictor->open(need.frames);
  if (rc < 0)
    return why->set(rc, "pager: frames or pipe cannot be made (%s); %s", errno_name(rc),
                    rc == -EMFILE   ? "raise the limit (ulimit -n)"
                    : rc == -ENOMEM ? "raise the limit on memory (ulimit -v, ulimit -d)"
                                    : "see pipe-user-pages-soft");
  // handler i serves node i % nodes
  const unsigned window = need.window, nodes = static_cast<unsigned>(sys::numa_nodes());
  LUNAR_DCHECK(nodes > 0);
  state.handler_count = 0;
  for (unsigned i = 0; i < need.handlers; ++i) {
    if (state.handlers[i] == nullptr) state.handlers[i] = arena_new<Handler>(state);
    if (state.handlers[i] == nullptr) return why->set(-ENOMEM, "pager: out of memory");
    rc = state.handlers[i]->open(i, i < nodes || window < 128 ? window : window / 2, static_cast<int>(i % nodes));
    if (rc < 0)
      return why->set(rc, "pager: the DRAM budget of %s has no room for handlers; give more (--dram)",
                      format_size(state.dram_bytes).text);
    ++state.handler_count;
  }
  state.account.end_reserved();  // from here on others take, too
  if (rc = program_end_prepare(); rc < 0)
    return why->set(rc, "pager: a pipe cannot be made (%s); raise the limit (ulimit -n)", errno_name(rc));
  state.making_threads_ns.store(sys::now_ns(), std::memory_order_release);
  // Making threads allocates. A thread that forks meanwhile holds the allocator's locks and waits for us.
  host_fork_bootstrap.store(true);
  state.handlers_running.store(0);
  rc = sys::thread_start({"lunar-housekeep", housekeeping_thread, &state, true}, &state.housekeeping);
  if (rc < 0) {
    host_fork_bootstrap.store(false);
    program_end_prepared();
    program_end_forget();
    if (rc == -EINVAL)
      return why->set(rc,
                      "pager: service threads cannot be started (EINVAL): not after unshare(CLONE_NEWPID); use the "
                      "tiered memory before, or in a child");
    const bool short_of_memory = rc == -ENOMEM || (rc == -EAGAIN && sys::memory_is_limited());
    return why->set(rc, "pager: service threads cannot be started (%s); raise the limit (%s)", errno_name(rc),
                    short_of_memory ? sys::memory_limit() : "ulimit -u");
  }
  // A child may exec at once: without a lock in the account, its end is detected, and its charge given back, from here
  // on only.
  sys::wait_for_start("lunar-housekeep", [&] {
    return state.account.alive_locked() &&
           state.handlers_running.load(std::memory_order_acquire) >= state.handler_count;
  });
  // The housekeeping thread's table has them now; in the program's they would only be in the way.
  state.evictor->close_descriptors();
  program_end_prepared();
  return 0;
}

int pager_start_threads(PagerState& state, ErrorText* why) {
  // A forked child gets an eighth: it usually saves or execs, and its parent goes on. So does a process that becomes
  // active after others.
  const bool first = state.generation == 0 && !state.account.others_active();
  // The tree's fixed pages must leave room to fault in, or all its processes would wait forever. (A fork has made sure
  // of that.)
  const int64_t prepaid = state.account.reserved(), before = state.account.own_fixed();
  const OwnNeed need = own_need(state, first, state.account.cap_pages() - state.account.fixed_total() + prepaid);
  if (prepaid == 0) {
    if (!state.account.reserve_fixed(need.pages(), kWorkRoom)) return no_room(state, why);
    state.account.use_reserved(need.pages());
  }
  const int rc = start_threads(state, need, why);
  state.making_threads_ns.store(0);
  if (rc < 0) {
    if (state.activation_passed.load()) fatal("%s; memory has been committed meanwhile", why->text);
    state.account.end_reserved();
    state.account.give_fixed(state.account.own_fixed() - before);
  }
  return rc;
}

// Of a directory: an unlinked file in it, with nothing reserved. Other LUNs are opened when they are needed: that
// writes to them.
void standby_lun(PagerState& state, bool child) {
  if (child)
    close_device(state, 0);  // the parent's, which alone writes there
  else
    keep_lun_directory(state);
  if (!has_lun_directory(state)) return;
  ErrorText unused;
  if (state.devices[0] == nullptr && check_lun(state, &unused) < 0) state.devices[0] = nullptr;
}

// After pager_destroy: the service threads and the LUN are still there and serve the new tier.
static int create_again(PagerState& state, const Options& options, ErrorText* why) {
  if (strcmp(options.lun, state.options.lun) != 0)
    return why->set(-ENOTSUP, "lun: this process has used %s before and cannot change to %s; start a new process",
                    state.options.lun, options.lun);
  uint64_t lun_bytes = state.lun_bytes;
  Options before = state.options;
  state.options = options;
  int rc = check_sizes(state, why);
  state.lun_bytes = lun_bytes;
  if (rc < 0) {
    state.options = before;
    return rc;
  }
  state.account.set_cap(static_cast<int64_t>(state.dram_bytes >> state.page_shift));
  state.created.store(true, std::memory_order_release);
  return 0;
}

// Limits against which the kernel counts tiered memory, although it lies on the LUN.
static int check_limits(ErrorText* why) {
  if (sys::commits_are_counted())
    return why->set(-ENOTSUP,
                    "vm.overcommit_memory is 2, under which memory on the LUN counts against the machine's commit "
                    "limit; run `sysctl vm.overcommit_memory=0`");
  if (sys::data_is_limited())
    return why->set(-ENOTSUP,
                    "a limit on data (RLIMIT_DATA) is set, against which memory on the LUN counts; run `ulimit -d "
                    "unlimited`: --dram and --size limit the program");
  return 0;
}

void pager_read_nodes() {
  if (test_switches.numa_nodes > 1) sys::pretend_nodes(static_cast<int>(test_switches.numa_nodes));
  (void)sys::numa_nodes();
}

int pager_create(const Options& options, ErrorText* why) {
  auto& state = pager_state();
  if (state.created.load(std::memory_order_acquire)) return why->set(-EEXIST, "pager: started already");
  HostGuard guard;
  if (pager_active()) return create_again(state, options, why);
  // Nothing may remain of an earlier attempt with other options (a module whose first load failed).
  close_device(state, 0);
  state.next_activation_ns.store(0);
  state.activation_failed.store(false);
  state.options = options;
  // What loads libraries, or looks into them: now, not where the program allocates.
  pager_read_nodes();
  sys::threads_prepare();
  state.page_size = sys::page_bytes();
  state.page_shift = static_cast<unsigned>(__builtin_ctzl(state.page_size));
  int rc = check_limits(why);
  if (rc == 0) rc = check_sizes(state, why);
  if (rc < 0) return rc;
  rc = page_hash_key_make();
  if (rc < 0) return why->set(rc, "pager: no random numbers (getrandom: %s)", errno_text(rc));
  standby_open(state, false);
  if (!has_lun_directory(state)) signature_prepare();
  // `lunar run` has looked for its tree: a program of it that has fewer rights, and stays small, needs none.
  bool vouched = options.account != nullptr && options.account[0] != 0;
  if (!vouched) {
    if (rc = sys::kernel_check(why); rc < 0) return rc;
    if (state.uffd < 0) rc = open_uffd(state, why);
    if (rc < 0) return rc;
  }
  if (state.devices[0] == nullptr && (!vouched || state.lun_bytes == 0)) {
    rc = check_lun(state, why);
    if (rc < 0 && !vouched) return rc;
    if (rc == 0) close_device(state, 0);
  }
  if (rc = join_account(state, why); rc < 0) return rc;
  if (!vouched) {  // an earlier attempt may have had others
    state.account.set_cap(static_cast<int64_t>(state.dram_bytes >> state.page_shift));
    state.account.set_lun_cap(static_cast<int64_t>(pager_lun_bytes()));
  }
  if (options.stats_file != nullptr && options.stats_file[0] != 0) {
    rc = stats_file_open(options.stats_file);
    if (rc < 0) return why->set(rc, "stats_file: %s cannot be written (%s)", options.stats_file, errno_text(rc));
  }
  rc = fork_handlers_install();
  if (rc < 0) return why->set(rc, "pager: fork handlers cannot be installed (%s)", errno_name(rc));
  g_stack.make();
  sys::note_memory_owner();
  set_fatal_hook([] { pager_dump(2); });
  state.created.store(true, std::memory_order_release);
  return 0;
}

bool pager_created() { return pager_state().created.load(std::memory_order_acquire); }
bool pager_active() { return pager_state().active.load(std::memory_order_acquire); }
size_t page_bytes() { return sys::page_bytes(); }

uint64_t pager_budget_pages() { return static_cast<uint64_t>(pager_state().account.cap_pages()); }
int pager_evictor_thread() { return pager_state().evictor_tid.load(std::memory_order_relaxed); }

int check_dram(const PagerState& state, uint64_t bytes, ErrorText* why) {
  const uint64_t least = dram_least(state), total = meminfo("MemTotal");
  if (bytes < least)
    return why->set(-EINVAL, "dram: %s is too small; give at least %s", format_size(bytes).text,
                    format_size(least).text);
  if (total != 0 && bytes > total)
    return why->set(-EINVAL, "dram: %s is more than this machine has (%s); give less", format_size(bytes).text,
                    format_size(total).text);
  return 0;
}

uint64_t pager_lun_bytes() {
  auto& state = pager_state();
  return state.lun_bytes != 0 ? state.lun_bytes : state.dram_bytes * 8;
}

// pre: activation_lock is held.
static int activate_locked(PagerState& state, ErrorText* why) {
  if (state.active.load(std::memory_order_acquire)) return 0;
  if (sys::now_ns() < state.next_activation_ns.load()) return why->set(-EAGAIN, "pager: activation has just failed");
  const uint64_t began = sys::now_ns();
  close_holes(state);
  // From here on plain memory can be evicted: it is no reason to refuse.
  const int64_t plain = state.account.plain_pages();
  state.account.plain_to_evictable(plain);
  int rc = activate_parts(state, why);
  if (rc == 0) {
    uint64_t promised = state.committed_before_activation.load();
    rc = state.account.lun_take(static_cast<int64_t>(promised));
    if (rc < 0)
      (void)why->set(rc, "lun: no room for what the program holds already (%s)", format_size(promised).text);
    else if ((rc = pager_start_threads(state, why)) < 0)
      state.account.lun_give(static_cast<int64_t>(promised));
    if (rc < 0) {  // what is committed until the next attempt must be charged then
      lun_close_own(state);
    }
  }
  if (rc < 0) {
    state.account.plain_to_evictable(-plain);
    activation_failure(state, *why);
    return rc;
  }
  sys::Locked<sys::Mutex> regions(state.regions.lock);
  const uint64_t threads_run = sys::now_ns();
  int64_t found = 0;
  for (uint32_t i = 0; i < state.regions.count.load(); ++i) {
    const int64_t adopted = adopt_present(state, *state.regions.sorted[i].load());
    // Its threads run and a part is registered: there is no way back to plain memory, and none on.
    if (adopted < 0)
      fatal("activation: regions cannot be registered or looked at (%s)%s", errno_name(static_cast<int>(adopted)),
            adopted == -EBUSY ? ": the program watches a part of them by a userfaultfd of its own" : "");
    found += adopted;
  }
  // So far the charge covered all committed memory; from now on it covers present pages. (Both together are below the
  // cap: plain_limit.)
  tables_go_live(state);
  promise_go_live(state);
  state.account.give(plain - found);
  state.plain_forks = 0;  // their handlers find an active process
  state.plain_fork_pages = 0;
  state.active.store(true, std::memory_order_release);
  log_info("activated: LUN and threads in %llu us, %s adopted in %llu us",
           static_cast<unsigned long long>((threads_run - began) / 1000),
           format_size(static_cast<uint64_t>(found) << state.page_shift).text,
           static_cast<unsigned long long>((sys::now_ns() - threads_run) / 1000));
  return 0;
}

int pager_activate(ErrorText* why) {
  auto& state = pager_state();
  if (state.active.load(std::memory_order_acquire)) return 0;
  if (sys::memory_is_parents()) {
    (void)why->set(-EPERM,
                   "pager: not started by process %d, which runs in its parent's memory (vfork, clone with CLONE_VM): "
                   "its threads would end with it; memory is refused to it until the parent itself has grown so far",
                   static_cast<int>(getpid()));
    LUNAR_LOG_LIMITED(log_warning, 1, "%s", why->text);
    return -EPERM;
  }
  HostGuard guard;
  sys::Locked<sys::Mutex> lock(state.activation_lock);
  int rc = 0;
  g_stack.call([&] { rc = activate_locked(state, why); });
  return rc;
}

}  // namespace lunar
