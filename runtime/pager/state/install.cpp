// SPDX-License-Identifier: Apache-2.0
#include "pager/state/install.h"

#include <errno.h>

#include "pager/state/requests.h"
#include "sys/by_halves.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

struct StallReader {
  void (*read)(void* self) = nullptr;
  void* self = nullptr;
};
constinit thread_local StallReader t_stall_reader __attribute__((tls_model("initial-exec")));

InstallOutcome outcome_of(int error, unsigned pages) {
  switch (error) {
    case -EEXIST:
      return InstallOutcome::kThere;
    case -ENOENT:
      return pages > 1 ? InstallOutcome::kBorder : InstallOutcome::kGone;
    case -EFAULT:
    case -ESRCH:
      return InstallOutcome::kGone;
    default:
      return InstallOutcome::kRefused;
  }
}

void wait_out_stall() {
  const StallReader reader = t_stall_reader;
  reader.read != nullptr ? reader.read(reader.self) : sys::yield_cpu();
}

}  // namespace

void set_stall_reader(void (*read)(void* self), void* self) { t_stall_reader = {read, self}; }

InstallResult install(PagerState& state, void* address, const void* content, unsigned pages,
                      bool protect) {
  LUNAR_DCHECK(pages > 0 && round_down(reinterpret_cast<uintptr_t>(address), state.page_size) ==
                                reinterpret_cast<uintptr_t>(address));
  for (;;) {
    const int64_t rc =
        sys::uffd_copy(state.uffd, address, content, pages * state.page_size,
                       protect || state.fork.gate_closing.load(std::memory_order_seq_cst));
    if (rc > 0)
      return {InstallOutcome::kDone,
              static_cast<unsigned>(static_cast<uint64_t>(rc) / state.page_size), 0};
    const int error = static_cast<int>(rc);
    if (error != -EAGAIN) return {outcome_of(error, pages), 0, error};
    wait_out_stall();
  }
}

int protect_pages(PagerState& state, void* address, size_t bytes, bool on) {
  int rc;
  while ((rc = sys::uffd_protect(state.uffd, address, bytes, on)) == -EAGAIN) wait_out_stall();
  return rc;
}

void protect_where_possible(PagerState& state, char* from, size_t bytes) {
  constexpr int kRefused = -ENOENT;
  (void)sys::by_halves(from, bytes, kRefused, [&](char* at, size_t part) {
    const bool done = protect_pages(state, at, part, true) == 0;
    return done || part == state.page_size ? 0 : kRefused;
  });
}

bool set_waiter(Region& region, PageIndex page, PageWord seen) {
  AtomicPageWord* word = region.table.find(page.value);
  if (word == nullptr) return false;
  LUNAR_DCHECK(seen.state() == PageState::kBusy);
  return seen.waiter() ||
         word->compare_exchange_strong(seen, seen.with_waiter(), std::memory_order_acq_rel);
}

void release_page(PagerState& state, Region& region, PageIndex page, PageWord next, Wake wake) {
  AtomicPageWord& word = region.table.at(page.value);
  LUNAR_DCHECK(word.load().state() == PageState::kBusy && next.state() != PageState::kBusy);
  if (page_unlock(word, next) || wake == Wake::kAll)
    wake_waiters(state, region.address_of(page), state.page_size);
}

}  // namespace lunar
