// SPDX-License-Identifier: Apache-2.0
// Activation runs once, under a lock, possibly inside an allocator's hook: code that allocates here
// runs under a HostGuard.
#include "pager/activation/activate.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

#include "base/host_guard.h"
#include "pager/activation/activation.h"
#include "pager/activation/service_threads.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/memory_copy.h"
#include "sys/own_stack.h"

namespace lunar {

namespace {

// The stack for activation, used under the lock, which blocks signals. The calling thread may be in
// a signal handler on a stack of 8 KiB, and starting threads needs more.
constinit sys::OwnStack g_stack;

// A first check, before anything is opened. Dead members count until a sweep, which no other member
// may do.
bool has_room(PagerState& state) {
  if (state.account.cap_pages() - state.account.fixed_total() >= kFixedRoom) return true;
  state.account.sweep_settled();
  return state.account.cap_pages() - state.account.fixed_total() >= kFixedRoom;
}

int activate_parts(PagerState& state, ErrorText* why) {
  if (!has_room(state)) return no_room(state, why);
  int rc = 0;
  if (!uffd_in_place(state)) rc = open_uffd(state, why);
  if (rc < 0) return rc;
  // the program has closed its descriptors
  if (state.luns.devices[0] != nullptr && !descriptors_in_place(state)) forget_device(state, 0);
  if (state.luns.bytes == 0 || state.luns.devices[0] == nullptr) {
    rc = check_lun(state, why);
    if (rc < 0) return rc;
  }
  rc = lun_open_own(state);
  if (rc < 0)
    return why->set(rc,
                    "lun: %s cannot be set up with %s (%s); free space there, or give a smaller "
                    "size or another place",
                    state.options.lun, format_size(state.luns.bytes).text, errno_text(rc));
  return 0;
}

// Makes all that can fail. After a failure the process is as it was.
int make_parts(PagerState& state, ErrorText* why) {
  int rc = activate_parts(state, why);
  if (rc < 0) return rc;
  const auto promised = static_cast<int64_t>(g_activation.committed.load());
  rc = state.account.lun_take(promised);
  if (rc < 0) {
    (void)why->set(rc, "lun: no room for what the program holds already (%s)",
                   format_size(static_cast<uint64_t>(promised)).text);
  } else {
    rc = start_threads(state, why);
    if (rc < 0) state.account.lun_give(promised);
  }
  // the next attempt charges what is committed until then
  if (rc < 0) lun_close_own(state);
  return rc;
}

// Adopts the present pages of all regions. Returns how many. pre: the threads run.
int64_t adopt_regions(PagerState& state) {
  const sys::Locked<sys::Mutex> regions(state.regions.lock);
  int64_t found = 0;
  for (Region& region : state.regions) {
    const int64_t adopted = adopt_present(state, region);
    // The threads run and a part is registered: the process can neither go back to plain memory nor
    // go on.
    if (adopted < 0)
      fatal("activation: regions cannot be registered or looked at (%s)%s",
            errno_name(static_cast<int>(adopted)),
            adopted == -EBUSY ? ": the program watches a part of them by a userfaultfd of its own"
                              : "");
    found += adopted;
  }
  return found;
}

// pre: the lock is held.
int activate_locked(PagerState& state, ErrorText* why) {
  if (state.is_active()) return 0;
  if (sys::now_ns() < g_activation.next_ns.load())
    return why->set(-EAGAIN, "pager: activation has just failed");
  const uint64_t began = sys::now_ns();
  close_holes(state);
  // From here on plain memory counts as evictable: it does not make activation fail.
  const int64_t plain = state.account.plain_pages();
  state.account.plain_to_evictable(plain);
  if (const int rc = make_parts(state, why); rc < 0) {
    state.account.plain_to_evictable(-plain);
    activation_failure(state, *why);
    return rc;
  }
  const uint64_t threads_run = sys::now_ns();
  const int64_t found = adopt_regions(state);
  // So far the charge covered all committed memory; from now on it covers present pages.
  // plain_limit keeps both together below the cap.
  tables_go_live(state);
  promise_go_live(state);
  state.account.give(plain - found);
  g_activation.plain_forks = 0;  // the prepare handlers of these forks will find an active process
  g_activation.plain_fork_pages = 0;
  state.active.store(true, std::memory_order_release);
  log_info("activated: LUN and threads in %llu us, %s adopted in %llu us",
           static_cast<unsigned long long>((threads_run - began) / 1000),
           format_size(static_cast<uint64_t>(found) << state.page_shift).text,
           static_cast<unsigned long long>((sys::now_ns() - threads_run) / 1000));
  return 0;
}

}  // namespace

void activation_prepare() { g_stack.make(); }

int check_lun(PagerState& state, ErrorText* why) {
  DeviceOptions options;
  options.want_bytes = state.luns.bytes;
  int rc = open_device(state, 0, options, why);
  if (rc < 0) return rc;
  Device* device = state.luns.devices[0];
  if (state.luns.bytes == 0) {
    state.luns.bytes = std::min(state.dram_bytes * 8, device->size_bytes() / 16 * 15);
    if (state.luns.bytes < state.dram_bytes)
      rc = why->set(-ENOSPC,
                    "lun: %s has room for %s only, less than the DRAM budget; free some space or "
                    "name another place",
                    state.options.lun, format_size(device->size_bytes()).text);
  }
  if (rc < 0) close_device(state, 0);
  return rc;
}

// In a directory: opens an unlinked file, with no space reserved. Other LUNs are opened when they
// are needed, because opening writes to them.
void standby_lun(PagerState& state, bool child) {
  if (child)
    close_device(state, 0);  // the parent's file, to which only the parent writes
  else
    keep_lun_directory(state);
  if (!has_lun_directory(state)) return;
  ErrorText unused;
  if (state.luns.devices[0] == nullptr && check_lun(state, &unused) < 0)
    state.luns.devices[0] = nullptr;
}

int activate(PagerState& state, ErrorText* why) {
  if (state.is_active()) return 0;
  if (sys::memory_is_parents()) {
    (void)why->set(
        -EPERM,
        "pager: not started by process %d, which runs in its parent's memory (vfork, "
        "clone with CLONE_VM): its threads would end with it; memory is refused to it until "
        "the parent itself has grown so far",
        static_cast<int>(getpid()));
    LUNAR_LOG_LIMITED(log_warning, 1, "%s", why->text);
    return -EPERM;
  }
  HostGuard guard;
  sys::Locked<sys::Mutex> lock(g_activation.lock);
  int rc = 0;
  g_stack.call([&] { rc = activate_locked(state, why); });
  return rc;
}

}  // namespace lunar
