// SPDX-License-Identifier: Apache-2.0
// Answerer: answers a fault message. README.md has a row for each state of the page.
// Threading: the handler's thread. Never waits: an answer that is not possible now is refused.
#pragma once
#include <optional>

#include "pager/fault/resolver.h"
#include "pager/fault/streams.h"
#include "sys/uffd.h"

namespace lunar {

class Answerer {
 public:
  Answerer(PagerState& state, Resolver& resolver) : state_(state), resolver_(resolver) {}
  void open();  // by the handler's thread
  // False: not possible now (no DRAM, or a fork is under way): call it again later with the
  // message, with `again`.
  [[nodiscard]] bool answer(const sys::UffdMessage& message, bool again);

 private:
  struct Missing {  // a fault on a missing page, while it is answered
    Region& region;
    PageIndex page;
    int thread_id;
    FillRequest request{1, kHeatFault, true};
    ReadAhead ahead{};
    bool planned = false, first_touch = false;
  };
  bool answer_missing(Region& region, PageIndex page, int thread_id);
  std::optional<FillResult> resolve(Missing& fault);
  void plan(Missing& fault, bool first_touch);
  void after_answer(const Missing& fault, const FillResult& result);
  bool answer_protected(Region& region, PageIndex page, int thread_id);
  void answer_outside(const sys::UffdMessage& message);
  void answer_evictor(const sys::UffdMessage& message);
  void check_resident(Region& region, PageIndex page);
  bool check_guard(Region& region, PageIndex page, PageWord was);
  void mark_lost(Region& region, PageIndex page, PageWord seen);
  ReadAhead ahead_of(const Region& region, PageIndex page, int thread_id, bool first_touch);
  void read_ahead(Region& region, PageIndex page, const ReadAhead& ahead, unsigned taken);
  bool may_pass_budget(int thread_id);
  bool is_forking(int thread_id) const;

  PagerState& state_;
  Resolver& resolver_;
  Streams streams_;
  int pagemap_ = -1;  // in the service threads' table
  // faults that have exceeded the budget during a fork, and since when they are counted
  uint64_t passed_since_ = 0;
  unsigned passed_ = 0;
};

}  // namespace lunar
