// SPDX-License-Identifier: Apache-2.0
// The pager's shared state, by owners, and the small helpers that every part of the pager uses. One
// instance per process, in static memory.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "config/options.h"
#include "pager/account/account.h"
#include "pager/account/slot_allocator.h"
#include "pager/page/foreign.h"
#include "pager/page/frames.h"
#include "pager/page/page_word.h"
#include "pager/page/region.h"
#include "stats/counters.h"
#include "superpipe/device.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {

class Evictor;

constexpr unsigned kLunIds = 16;  // of the LUN field of a page word
constexpr unsigned kHandlersMax = 64;

// LUNs by the number in page words: this process' own is slots[own]; the others are ancestors',
// only for reading. A number is free for a forked child if no page refers to it (fork/lun_ids.h).
struct Luns {
  SlotAllocator slots[kLunIds];
  Device* devices[kLunIds] = {};
  struct DeviceId {
    sys::FileIdentity file;
    int flags = 0;  // with which it was opened
  };
  DeviceId device_ids[kLunIds][kDeviceFdsMax] = {};
  uint64_t bytes = 0;  // option `size`, or its default
  // If the LUN option is a directory: a descriptor of it, for when its path no longer leads there
  // (chroot).
  int directory = -1;
  sys::FileIdentity directory_identity;
  unsigned own = 0, parent = 0;
  int carved_first = -1;  // of a shared device: the account's pieces for the own LUN
  unsigned carved_pieces = 0;
  // one bit per number: pages referred to it when this process began (fewer by now, if any)
  uint32_t referred = 0;
  // the own LUN is open (a forked child opens its own at its first dirty eviction)
  std::atomic<bool> ready{false};
  // What an active process has charged that its LUN does not know of: it takes that over when it
  // opens. kOnLun: it has.
  static constexpr int64_t kOnLun = INT64_MIN;
  std::atomic<int64_t> promised_slots{0};
  // the own LUN's file could not grow when the housekeeping thread last tried
  std::atomic<bool> growth_refused{false};
  sys::Mutex open_lock;
};

struct ForkState {
  unsigned generation = 0;                // forks since the pager was created
  std::atomic<uint32_t> epoch{1};         // 1 before the first fork
  std::atomic<uint32_t> oldest_child{0};  // fork epoch of the oldest live child; 0: none
  sys::Mutex lock;                        // held by a forking thread
  std::atomic<uint32_t> mutators{0};      // threads inside discard/move/pin; fork waits for 0
  std::atomic<bool> forking{false};
  // its faults may take the last pages: nothing is evicted meanwhile
  std::atomic<int> thread_id{0};
  std::atomic<uint64_t> since_ns{0};
  // a fork is closing the copy-on-write gate: pages are installed write-protected
  std::atomic<bool> gate_closing{false};
  std::atomic<bool> gate_used{false};  // pages of this process may be protected
};

// Bits of ServiceThreads::housekeeping_word. The kernel stores 0 when a service thread ends: a word
// without kHousekeepingRuns shows that.
constexpr uint32_t kHousekeepingRuns = 1;      // not a request
constexpr uint32_t kHousekeepingSweep = 2;     // sweep the account
constexpr uint32_t kHousekeepingGrow = 4;      // reserve LUN space ahead
constexpr uint32_t kHousekeepingProgram = 16;  // the program's descriptor table has been closed
constexpr uint32_t kHousekeepingTable = 32;    // answer a TableRequest
constexpr uint32_t kHousekeepingWake = 64;     // wake all threads that wait for a page
constexpr uint32_t kHousekeepingTables = 128;  // table_trim

// A request of one program thread to the housekeeping thread, in whose descriptor table the numbers
// of the LUN and of the userfaultfd are still these: slots to charge, for which the LUN's file has
// to grow, or a range to register.
struct TableRequest {
  sys::Mutex lock;                 // held by the thread that asks
  std::atomic<uint32_t> asked{0};  // futex: 0 once there is an answer
  uint64_t slots = 0;
  void* address = nullptr;  // of a range to register; nullptr: slots are to be charged
  size_t bytes = 0;
  int answer = 0;
};

// Of a handler: an eventfd in the service threads' table. Something is in its inbox, or room came
// and it wants some.
struct Bell {
  std::atomic<int> descriptor{-1};  // -1: not made yet; the handler looks into its inbox once it is
  std::atomic<bool> wants_room{false};
};

// Words and ids of the service threads, by which other parts reach them (requests.h).
struct ServiceThreads {
  // Apart from the handlers, which write to their own memory at each fault: all of these are read
  // at each fault.
  std::atomic<int> handler_tids[kHandlersMax] = {};
  unsigned handler_count = 0;
  // threads that serve: a new thread may touch tiered memory before (libc reads the locale)
  std::atomic<uint32_t> handlers_running{0};
  pthread_t housekeeping{};  // the housekeeping thread
  std::atomic<int> housekeeping_tid{0}, evictor_tid{0};
  std::atomic<uint32_t> housekeeping_word{kHousekeepingRuns};  // pending requests; its shared futex
  // futex: sweeps of the account by the housekeeping thread that began after a request
  std::atomic<uint32_t> sweeps{0};
  TableRequest table_request;
  // Apart: these change under load.
  alignas(64) std::atomic<bool> evictor_asleep{false};
  std::atomic<bool> room_wanted{false};  // a handler has parked faults
  Bell bells[kHandlersMax];
};

struct PagerState {
  bool is_active() const { return active.load(std::memory_order_acquire); }

  Options options;
  std::atomic<bool> created{false};
  std::atomic<bool> active{false};
  size_t page_size = 4096;
  unsigned page_shift = 12;
  uint64_t dram_bytes = 0;
  bool thp_always = false;  // huge pages are used without a request (at start)
  struct Member {
    std::atomic<int> pid{0};        // the process that is the account's member
    std::atomic<uint32_t> copy{0};  // its sys::memory_copy()
  } member;

  Account account;
  RegionTable regions;
  ForeignRanges foreign;
  Luns luns;

  int uffd = -1;  // same number in the program's and in the service threads' tables
  sys::FileIdentity uffd_identity;
  bool write_protect = false;  // userfaultfd protects anonymous memory against writes here

  ForkState fork;
  // advances by 1 with each 1/16 of this process' DRAM that is evicted; wraps
  std::atomic<uint16_t> eviction_time{0};
  FramePool frames;  // created and given out by the evictor
  Evictor* evictor = nullptr;
  ServiceThreads services;
  std::atomic<int64_t> pinned_pages{0};
  std::atomic<int64_t> resident_peak{0};
};

PagerState& pager_state();

uint64_t committed_pages(const PagerState& state);  // of all regions

Region* own_region(const PagerState& state, const void* address);  // as region_find

// If this process was forked from an active one without the fork handlers: from which one. It has
// none of the tiered memory and none of the service threads, and the account's member is its
// parent's. Else 0. Two loads.
int forked_past_us(const PagerState& state);
void say_limited(const PagerState& state, size_t bytes);  // see pager_say_limited

// The calling thread is about to change page mappings (discard, move): excludes forks. Never held
// across a wait for I/O. wait false: not entered while a fork is in progress (for a caller that
// holds locks which the fork will take). No signal handler runs inside, because it might fork, and
// wait for the end of the scope.
class MutatorScope {
 public:
  explicit MutatorScope(PagerState& state, bool wait = true);
  ~MutatorScope();
  MutatorScope(const MutatorScope&) = delete;
  MutatorScope& operator=(const MutatorScope&) = delete;
  bool entered() const { return entered_; }

 private:
  PagerState& state_;
  sys::ScopedSignalBlock signals_;
  std::optional<TableScope> tables_;  // once entered
  bool entered_ = true;
};

// Counts pages whose content is only in a frame or on the LUN. Called by code that moves a page in
// or out of these two states.
void count_evicted(int64_t delta);

// Bookkeeping of installed pages. pre: the DRAM was taken before.
void count_resident(PagerState& state, Region& region, PageIndex page, int delta);

// The fork epoch to mark a page with. Read it *before* the page is installed: the installing thread
// may be preempted, and a page installed before a fork is shared after it. shared_epoch: another
// thread's page was found in place, which may be shared now.
inline uint16_t exclusive_epoch(const PagerState& state) {
  return static_cast<uint16_t>(state.fork.epoch.load(std::memory_order_seq_cst));
}
inline uint16_t shared_epoch() { return kEpochUnknown; }

// The word of a page that was installed. heat: see evict/choose.h.
inline PageWord resident_word(PageWord from, Slot slot, unsigned lun, unsigned heat,
                              uint16_t epoch) {
  return from.with_state(PageState::kResident)
      .with_slot(slot)
      .with_lun(lun)
      .with_heat(heat)
      .with_epoch(epoch);
}

}  // namespace lunar
