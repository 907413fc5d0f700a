// SPDX-License-Identifier: Apache-2.0
// What is asked for with a page that is to become resident, and what comes of it.
#pragma once
#include <cstdint>

#include "pager/account/account.h"
#include "pager/state/state.h"

namespace lunar {

enum class Outcome : uint8_t {
  kResident,  // it is resident now
  kStarted,   // a read is in flight; Resolver::progress() will install it
  kBusy,      // another thread is working on it, and will wake the waiters
  kNoRoom,    // there is no DRAM, window or ring now: try again later
  kChanged,   // its word is not what it was: look again
};

struct Begun {
  Outcome outcome = Outcome::kChanged;
  unsigned pages = 0;  // kResident, kStarted: how many from the page on
};

// What is asked for with a page.
struct Demand {
  // pages to bring in, this one included; fewer if those behind it cannot come in with it
  unsigned run = 1;
  unsigned heat = 0;
  bool fault = false;  // a thread waits for this page
  int64_t keep_free = kKeepFreePages;
};

// DRAM for pages that are to become resident. What is not kept is given back.
class Reservation {
 public:
  explicit Reservation(Account& account) : account_(account) {}
  ~Reservation() { shrink(0); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  // False: the budget would have fewer than `keep_free` pages free then. Pre: it holds none.
  [[nodiscard]] bool take(unsigned pages, int64_t keep_free) {
    if (!account_.take(pages, keep_free)) return false;
    pages_ = pages;
    return true;
  }
  unsigned pages() const { return pages_; }
  void shrink(unsigned to) {
    if (pages_ > to) account_.give(pages_ - to);
    pages_ = to;
  }
  void keep(unsigned pages) { pages_ -= pages; }  // so many are resident now, or a read's

 private:
  Account& account_;
  unsigned pages_ = 0;
};

}  // namespace lunar
