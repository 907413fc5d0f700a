// SPDX-License-Identifier: Apache-2.0
// Stores across fork.
//
// fork() alone: the child has no handle that answers (EINVAL): other threads may have been in the
// middle of a change. Nor has it the descriptors of devices: with them it would keep the place in
// use after the parent's ark_delete. ark_fork(): the store is paused (calls wait before they begin,
// those that are under way end), the process forks, and the child has the store as it was at that
// moment, as a copy of its own. It has none of the threads and of what they had to do; threads
// start again with its first asynchronous call. Only for stores in DRAM: on a device both would
// write to the same place, and what one frees the other may still read.
// Threading: the forking thread. May not, in the child: allocate, wait.
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "kv/ark/ark_store.h"
#include "sys/log.h"

namespace lunar::ark {
namespace {

thread_local ArkStore* forking = nullptr;  // what ark_fork() keeps for the child

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

// When the library is loaded, before the program registers handlers of its own: these run first in
// a fork then, and may wait for a lock that another thread holds while it opens a store.
[[gnu::constructor]] void install_early() { (void)fork_handlers_install(); }

// 1: done, with *pid. 0: calls are under way; again. Pauses the store in any case, unless another
// thread forks it (0).
int try_fork(ArkStore* store, bool* pauses, int64_t* pid) {
  sys::Locked<sys::Mutex> guard(store->lock);  // what handles there are
  if (!*pauses && store->paused.exchange(1, std::memory_order_seq_cst) != 0) return 0;
  *pauses = true;
  if (!store->idle()) return 0;
  forking = store;
  *pid = fork();
  if (*pid < 0) *pid = -errno;
  forking = nullptr;
  if (*pid == 0) store->lock.lock();  // was reset in the child; the guard unlocks it
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
  for (bool pauses = false; try_fork(store, &pauses, &pid) == 0;) sys::sleep_ns(50'000);
  if (pid != 0) store->closers.fetch_sub(1, std::memory_order_release);
  return pid;
}

}  // namespace lunar::ark
