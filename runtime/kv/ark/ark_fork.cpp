// SPDX-License-Identifier: Apache-2.0
// Stores across fork.
//
// fork(): all handles of the child return EINVAL, because other threads may have been in the middle
// of a change. The descriptors of devices are closed in the child, or it would keep the place in
// use after the parent's ark_delete.
// ark_fork(): the store is paused: new calls wait, and calls in progress end. Then the process
// forks, and the child has a copy of the store at that moment. It has no pool threads and none of
// their queued operations; threads start again with its first asynchronous call. Only stores in
// DRAM fork: on a device, both processes would write to the same place, and one might still read
// what the other frees.
// Threading: the forking thread. May not, in the child: allocate, wait.
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "kv/ark/ark_store.h"
#include "sys/log.h"

namespace lunar::ark {
namespace {

thread_local ArkStore* forking = nullptr;  // the store that ark_fork() forks

void in_child() {
  ArkStore* store = forking;
  Pool::end_forked_thread();
  table_after_fork_in_child(store);
  if (!store) return;
  store->lock.reset_in_child();
  store->closers.store(0, std::memory_order_relaxed);
  store->pool.forget_in_child();
  for (Object* object = store->objects; object; object = object->next) {
    if (object->kind == kIterator)
      static_cast<Iterator*>(object)->lock.reset_in_child();
    else
      static_cast<Connection*>(object)->forget_in_child();
  }
  store->paused.store(0, std::memory_order_relaxed);
}

}  // namespace

int fork_handlers_install() {
  static const int status = pthread_atfork(table_before_fork, table_after_fork_in_parent, in_child);
  return status;
}

namespace {

// Installs the handlers when the library is loaded, before the program registers its own. The
// program's then run first in a fork, and may wait for a lock that another thread holds while it
// opens a store.
[[gnu::constructor]] void install_early() { (void)fork_handlers_install(); }

// Pauses the store, and forks if no call is in progress. 1: done, with *pid. 0: try again, because
// calls are in progress or another thread forks the store.
int try_fork(ArkStore* store, bool* pauses, int64_t* pid) {
  sys::Locked<sys::Mutex> guard(store->lock);  // for the list of objects
  if (!*pauses && store->paused.exchange(1, std::memory_order_seq_cst) != 0) return 0;
  *pauses = true;
  if (!store->idle()) return 0;
  forking = store;
  *pid = fork();
  if (*pid < 0) *pid = -errno;
  forking = nullptr;
  if (*pid == 0) store->lock.lock();  // in_child() has reset it; the guard unlocks it
  store->paused.store(0, std::memory_order_seq_cst);
  return 1;
}

}  // namespace

int64_t fork_store(const void* handle) {
  Object* object = table_acquire(handle, kArk);
  if (!object) return -EINVAL;
  ArkStore* store = object->store;
  int status = store->pool.is_mine() ? -EDEADLK : store->in_memory ? 0 : -ENOTSUP;
  if (status == -ENOTSUP)
    log_warning(
        "ark_fork: this store lies on a device, which parent and child cannot share; only stores "
        "in memory fork");
  if (status == 0) {
    sys::Locked<sys::Mutex> guard(store->lock);
    if (store->closing)
      status = -EINVAL;
    else
      store->closers.fetch_add(1, std::memory_order_relaxed);
  }
  table_release(object);
  if (status < 0) return status;
  int64_t pid = 0;
  bool pauses = false;
  while (try_fork(store, &pauses, &pid) == 0) sys::sleep_ns(50'000);
  if (pid != 0) store->closers.fetch_sub(1, std::memory_order_release);
  return pid;
}

}  // namespace lunar::ark
