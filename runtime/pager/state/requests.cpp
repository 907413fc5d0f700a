// SPDX-License-Identifier: Apache-2.0
#include "pager/state/requests.h"

namespace lunar {

void housekeeping_wake(PagerState& state, uint32_t what) {
  if ((state.services.housekeeping_word.fetch_or(what, std::memory_order_seq_cst) & what) != what)
    sys::futex_wake(&state.services.housekeeping_word, 1, true);
}

void wait_for_sweep(PagerState& state) {
  if (!state.is_active() || sys::in_service_thread()) return;
  const uint32_t before = state.services.sweeps.load(std::memory_order_acquire);
  housekeeping_wake(state, kHousekeepingSweep);
  constexpr int64_t kSweepWaitNs = 200'000'000;
  const uint64_t end = sys::now_ns() + static_cast<uint64_t>(kSweepWaitNs);
  while (state.services.sweeps.load(std::memory_order_acquire) == before && sys::now_ns() < end)
    (void)sys::futex_wait(&state.services.sweeps, before, kSweepWaitNs / 4, false);
}

// Pairs with Evictor::sleep_or_reap(), all sequentially consistent: the caller has taken DRAM and
// then checks whether the evictor sleeps; the evictor says that it sleeps and then checks how much
// is taken.
void evictor_wake(PagerState& state) {
  if (state.services.evictor_asleep.load(std::memory_order_seq_cst)) state.account.raise_pressure();
}

void hand_over_room(PagerState& state, bool sure) {
  if (!state.services.room_wanted.load(std::memory_order_seq_cst)) return;
  if (!sure && state.account.free_pages() <= kKeepFreePages) return;
  state.services.room_wanted.store(false, std::memory_order_seq_cst);
  for (unsigned i = 0; i < state.services.handler_count; ++i) {
    Bell& bell = state.services.bells[i];
    if (bell.wants_room.exchange(false)) sys::eventfd_signal(bell.descriptor.load());
  }
}

int ask_table_request(PagerState& state, uint64_t slots, void* address, size_t bytes) {
  auto& request = state.services.table_request;
  sys::Locked<sys::Mutex> lock(request.lock);
  request.slots = slots;
  request.address = address;
  request.bytes = bytes;
  request.asked.store(1, std::memory_order_release);
  housekeeping_wake(state, kHousekeepingTable);
  while (request.asked.load(std::memory_order_acquire) != 0)
    (void)sys::futex_wait(&request.asked, 1, -1, false);
  return request.answer;
}

void answer_table_request(PagerState& state) {
  auto& request = state.services.table_request;
  if (request.asked.load(std::memory_order_acquire) == 0) return;
  request.answer =
      request.address != nullptr
          ? sys::uffd_register(state.uffd, request.address, request.bytes, state.write_protect)
          : state.luns.slots[state.luns.own].charge(request.slots);
  request.asked.store(0, std::memory_order_release);
  sys::futex_wake(&request.asked, 1, false);
}

}  // namespace lunar
