// SPDX-License-Identifier: Apache-2.0
// Delegate threads: see delegate.h.
// Threading: as in the header. May not: allocate but in create and start.
#include "superpipe/ring/delegate.h"

#include <errno.h>
#include <sys/mman.h>

#include <new>

#include "sys/arena.h"
#include "sys/mem.h"

namespace lunar {
namespace {

// The number of run_some() calls for one client before a delegate serves the next.
constexpr unsigned kTurns = 16;

}  // namespace

int DelegatePool::create() {
  if (state_.load(std::memory_order_acquire)) return 0;
  void* memory = map_private(sizeof(State), ForkPolicy::kWipe);
  if (!memory) return -ENOMEM;
  State* none = nullptr;
  // Another thread was faster.
  if (!state_.compare_exchange_strong(none, new (memory) State))
    unmap_private(memory, sizeof(State));
  return 0;
}

int DelegatePool::start(unsigned wanted, const char* name) {
  State* state = state_.load(std::memory_order_acquire);
  if (started()) return 0;
  const sys::Locked lock(state->starting);
  if (started()) return 0;
  if (wanted > kThreadsMax) wanted = kThreadsMax;
  sys::ThreadSpec spec;
  spec.name = name;
  spec.run = thread_main;
  spec.argument = state;
  spec.program_files = sys::in_program_files();
  int err = 0;
  for (; state->thread_count < wanted; ++state->thread_count) {
    err = sys::thread_start(spec, &state->threads[state->thread_count]);
    if (err < 0) break;
  }
  if (state->thread_count == 0) return err;
  state->epoch.store(epochs_.fetch_add(1) + 1, std::memory_order_release);
  return 0;
}

void DelegatePool::destroy() {
  State* state = state_.exchange(nullptr);
  if (!state) return;
  state->stopping.store(1);
  state->event.fetch_add(1);
  sys::futex_wake(&state->event, static_cast<int>(kThreadsMax), false);
  for (uint32_t i = 0; i < state->thread_count; ++i) sys::thread_end(state->threads[i]);
  unmap_private(state, sizeof(State));
}

void DelegatePool::push(State* state, DelegateClient* client) {
  client->next_ = nullptr;
  client->queued_ = true;
  if (state->last)
    state->last->next_ = client;
  else
    state->first = client;
  state->last = client;
}

DelegateClient* DelegatePool::pop(State* state) {
  DelegateClient* client = state->first;
  if (!client) return nullptr;
  state->first = client->next_;
  if (!state->first) state->last = nullptr;
  client->queued_ = false;
  return client;
}

void DelegatePool::offer(DelegateClient* client) {
  State* state = state_.load(std::memory_order_acquire);
  {
    const sys::Locked lock(state->lock);
    if (!client->queued_) push(state, client);
  }
  state->event.fetch_add(1);
  // Wakes one thread, which wakes the next if there is more work.
  if (state->idle.load()) sys::futex_wake(&state->event, 1, false);
}

void DelegatePool::leave(DelegateClient* client) {
  State* state = state_.load(std::memory_order_acquire);
  {
    const sys::Locked lock(state->lock);
    DelegateClient** link = &state->first;
    DelegateClient* before = nullptr;
    while (*link && *link != client) {
      before = *link;
      link = &before->next_;
    }
    if (*link) {
      *link = client->next_;
      if (state->last == client) state->last = before;
    }
    client->queued_ = false;
  }
  while (client->visitors_.load(std::memory_order_acquire)) sys::yield_cpu();
}

// Takes the next client that has work, with the caller as its visitor, and moves it to the end of
// the ring. Clients without work leave the ring.
DelegateClient* DelegatePool::take(State* state) {
  DelegateClient* client;
  bool more;
  {
    const sys::Locked lock(state->lock);
    do client = pop(state);
    while (client && !client->has_work());
    if (!client) return nullptr;
    client->visitors_.fetch_add(1, std::memory_order_relaxed);
    push(state, client);
    more = state->first != client || client->has_work();
  }
  if (more && state->idle.load()) sys::futex_wake(&state->event, 1, false);
  return client;
}

void DelegatePool::thread_main(void* argument) {
  auto* state = static_cast<State*>(argument);
  (void)sys::set_batch_policy();  // does not preempt submitting threads
  // The program handles a copy that faults, as if it had made the copy itself.
  sys::allow_fault_signals();
  while (!state->stopping.load()) {
    if (DelegateClient* client = take(state)) {
      for (unsigned i = 0; i < kTurns && client->run_some(true); ++i) {}
      client->visitors_.fetch_sub(1, std::memory_order_release);
      continue;
    }
    state->idle.fetch_add(1);
    const uint32_t event = state->event.load();
    bool nothing;
    {
      const sys::Locked lock(state->lock);
      nothing = !state->first;
    }
    if (nothing && !state->stopping.load()) (void)sys::futex_wait(&state->event, event, -1, false);
    state->idle.fetch_sub(1);
  }
}

}  // namespace lunar
