// SPDX-License-Identifier: Apache-2.0
// Locks that children do not inherit: see lock_fds.h.
// Threading: any. Not for the fault path.
#include "lun/volume/lock_fds.h"

#include <errno.h>
#include <pthread.h>

#include <atomic>

#include "base/host_guard.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar {
namespace {

// Places are never removed from the list, only reused, because a child may be forked at any moment.
struct Place {
  std::atomic<int> held{0};    // descriptor + 1; 0: free; kTaken: about to be one
  sys::FileIdentity identity;  // the program may close the descriptor, and have its own file there
  Place* next = nullptr;
};
constexpr int kTaken = -1;
std::atomic<Place*> g_places;

void hold(Place* place, int fd) {
  place->identity = sys::file_identity(fd);
  place->held.store(fd + 1, std::memory_order_release);
}

bool take_free_place(int fd) {
  for (Place* place = g_places.load(); place != nullptr; place = place->next) {
    if (int none = 0; !place->held.compare_exchange_strong(none, kTaken)) continue;
    hold(place, fd);
    return true;
  }
  return false;
}

void close_copies_in_child() {
  for (Place* place = g_places.load(); place != nullptr; place = place->next) {
    const int fd = place->held.exchange(0) - 1;
    if (fd < 0) continue;
    sys::note_own_descriptor(fd, false);
    if (sys::is_file(fd, place->identity)) sys::close_file(fd);
  }
}

}  // namespace

int register_lock_fd(int fd) {
  static std::atomic<bool> registered{false};
  if (!sys::in_program_files()) return 0;
  sys::note_own_descriptor(fd, true);
  if (!registered.exchange(true)) {
    const HostGuard guard;
    (void)pthread_atfork(nullptr, nullptr, close_copies_in_child);
  }
  if (take_free_place(fd)) return 0;
  auto* place = arena_new<Place>();
  if (place == nullptr) {
    sys::note_own_descriptor(fd, false);
    return -ENOMEM;
  }
  hold(place, fd);
  place->next = g_places.load();
  while (!g_places.compare_exchange_weak(place->next, place)) {}
  return 0;
}

void unregister_lock_fd(int fd) {
  if (!sys::in_program_files()) return;
  sys::note_own_descriptor(fd, false);
  for (Place* place = g_places.load(); place != nullptr; place = place->next)
    if (int mine = fd + 1; place->held.compare_exchange_strong(mine, 0)) return;
}

}  // namespace lunar
