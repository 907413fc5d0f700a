// SPDX-License-Identifier: Apache-2.0
// The request to make a page resident, its result, and the DRAM for it.
#pragma once
#include <cstdint>

#include "pager/account/account.h"
#include "pager/state/state.h"
#include "sys/fatal.h"

namespace lunar {

enum class Outcome : uint8_t {
  kResident,  // the page is resident now
  kStarted,   // a read is in flight; Resolver::progress() will install the page
  kBusy,      // another thread has locked the page, and will wake the waiters
  kNoRoom,    // there is no DRAM, window or ring now: try again later
  kChanged,   // its word has changed: look again
};

struct FillResult {
  Outcome outcome = Outcome::kChanged;
  unsigned pages = 0;  // kResident, kStarted: how many, from the page on
};

struct FillRequest {
  unsigned run = 1;  // most pages to bring in, from the page on
  unsigned heat = 0;
  bool fault = false;                  // a thread waits for this page
  int64_t keep_free = kKeepFreePages;  // pages of the budget that must stay free
};

// DRAM for pages that will become resident. Pages that are not kept are given back at the end.
class Reservation {
 public:
  explicit Reservation(Account& account) : account_(account) {}
  ~Reservation() { shrink(0); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  // False: the budget would have fewer than `keep_free` pages free then. Pre: it holds none.
  [[nodiscard]] bool take(unsigned pages, int64_t keep_free) {
    LUNAR_DCHECK(pages_ == 0);
    if (!account_.take(pages, keep_free)) return false;
    pages_ = pages;
    return true;
  }
  unsigned pages() const { return pages_; }
  void shrink(unsigned to) {
    if (pages_ > to) account_.give(pages_ - to);
    pages_ = to;
  }
  void keep(unsigned pages) {  // they are resident, or belong to a read
    LUNAR_DCHECK(pages <= pages_);
    pages_ -= pages;
  }

 private:
  Account& account_;
  unsigned pages_ = 0;
};

}  // namespace lunar
