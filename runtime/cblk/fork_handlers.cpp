// SPDX-License-Identifier: Apache-2.0
// Chunks across fork: see fork_handlers.h.
// Threading: the forking thread. May not, in the child: allocate, wait.
#include "cblk/fork_handlers.h"

#include <pthread.h>

#include <new>

#include "cblk/group.h"

namespace lunar::cblk {
namespace {

template <class Do>
void for_chunks(Do what) {
  for (Handle* handle = registry_first(); handle; handle = handle->next) {
    if (handle->kind != Kind::kGroup) what(static_cast<Chunk*>(handle));
  }
}

void before() {
  registry_lock().lock();
  for_chunks([](Chunk* chunk) { chunk->before_fork(); });
}

void in_parent() {
  for_chunks([](Chunk* chunk) { chunk->after_fork_in_parent(); });
  registry_lock().unlock();
}

void in_child() {
  registry_lock().reset_in_child();
  table_forget_users();
  for_chunks([](Chunk* chunk) { chunk->after_fork_in_child(); });
  for (Handle* handle = registry_first(); handle; handle = handle->next) {
    if (handle->kind == Kind::kGroup) static_cast<Group*>(handle)->after_fork_in_child();
  }
}

}  // namespace

int fork_handlers_install() {
  static const int status = -pthread_atfork(before, in_parent, in_child);
  return status;
}

void Chunk::after_fork_in_child() {
  lock_.reset_in_child();
  resize_.reset_in_child();
  // If the parent of a grandchild has not cloned it, commands in progress at the first fork count.
  if (!inherited_.load(std::memory_order_relaxed)) active_at_fork_ = false;
  // Late commands do not count.
  active_at_fork_ |= in_ring_ - lost_ + commands_.backlog() + commands_.fetchable() != 0;
  forked_ = true;
  if (context_) device_->detach(context_);  // forgets the ring, whose commands are the parent's
  context_ = nullptr;
  commands_.reset();
  waiters_.forget_in_child();
  completer_.forget_in_child();
  in_ring_ = lost_ = 0;
  backlog_blocked_ = false;
  late_->forget_in_child();
  lanes_.forget_in_child();
  bounces_.forget_in_child();
  cache_.forget_in_child();
  new (&counters_) Counters;
  new (&phase_count_) sys::PhaseCount;  // without the parent's threads
  being_closed_.store(false, std::memory_order_relaxed);
  leader_ = designated_ = closing_ = false;
  shared_by_fork_.store(is_virtual(), std::memory_order_relaxed);
  if (is_virtual()) inherited_.store(true, std::memory_order_relaxed);
}

}  // namespace lunar::cblk
