// SPDX-License-Identifier: Apache-2.0
// The pager's shared state, grouped by owner, and small helpers that every part of the pager uses.
// One instance per process, in static memory.
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

constexpr unsigned kLunIds = 16;  // LUN numbers that a page word can hold
constexpr unsigned kHandlersMax = 64;

// LUNs by the number in page words. slots[own] is this process' own; the others are ancestors'
// LUNs, which it only reads. A number is free for a forked child if no page refers to it
// (fork/lun_ids.h).
struct Luns {
  SlotAllocator slots[kLunIds];
  Device* devices[kLunIds] = {};
  struct DeviceId {
    sys::FileIdentity file;
    int flags = 0;  // of open(2)
  };
  DeviceId device_ids[kLunIds][kDeviceFdsMax] = {};
  uint64_t bytes = 0;  // option `size`, or its default
  // a descriptor of the LUN option's directory, if it is one: its path may lead elsewhere later
  // (chroot)
  int directory = -1;
  sys::FileIdentity directory_identity;
  unsigned own = 0, parent = 0;
  // the account's pieces of a shared device that are the own LUN
  int carved_first = -1;
  unsigned carved_pieces = 0;
  // a bit per number: pages referred to it when this process began; by now there may be none
  uint32_t referred = 0;
  // the own LUN is open (a forked child opens its own at its first dirty eviction)
  std::atomic<bool> ready{false};
  // slots that are charged before the own LUN is open, which takes them over then. kOnLun: it is
  // open
  static constexpr int64_t kOnLun = INT64_MIN;
  std::atomic<int64_t> promised_slots{0};
  // the own LUN's file could not grow when the housekeeping thread last tried
  std::atomic<bool> growth_refused{false};
  sys::Mutex open_lock;
};

struct ForkState {
  unsigned generation = 0;                // forks between pager_create and this process
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

// Bits of ServiceThreads::housekeeping_word. The kernel stores 0 there when a service thread ends,
// so a word without kHousekeepingRuns shows that.
constexpr uint32_t kHousekeepingRuns = 1;      // not a request
constexpr uint32_t kHousekeepingSweep = 2;     // sweep the account
constexpr uint32_t kHousekeepingGrow = 4;      // reserve LUN space ahead
constexpr uint32_t kHousekeepingProgram = 16;  // the program's descriptor table has been closed
constexpr uint32_t kHousekeepingTable = 32;    // answer a TableRequest
constexpr uint32_t kHousekeepingWake = 64;     // wake all threads that wait for a page
constexpr uint32_t kHousekeepingTables = 128;  // table_trim

// A request of one program thread to the housekeeping thread: slots to charge, for which the LUN's
// file has to grow, or a range to register. That thread's table still has the LUN's and the
// userfaultfd's descriptors.
struct TableRequest {
  sys::Mutex lock;                 // held by the thread that asks
  std::atomic<uint32_t> asked{0};  // futex: 0 when there is an answer
  uint64_t slots = 0;
  void* address = nullptr;  // of the range to register; nullptr: charge slots
  size_t bytes = 0;
  int answer = 0;
};

// A handler's eventfd, in the service threads' table. It is signalled when a message was put into
// the handler's inbox, or when DRAM was freed and the handler wants some.
struct Bell {
  std::atomic<int> descriptor{
      -1};  // -1: not made yet; when it is made, the handler reads its inbox
  std::atomic<bool> wants_room{false};
};

// Words and ids of the service threads, by which other parts reach them (requests.h).
struct ServiceThreads {
  // Read at each fault, so on other cache lines than what changes under load.
  std::atomic<int> handler_tids[kHandlersMax] = {};
  unsigned handler_count = 0;
  // handlers that serve faults: a new thread may itself touch tiered memory first (libc's locale)
  std::atomic<uint32_t> handlers_running{0};
  pthread_t housekeeping{};
  std::atomic<int> housekeeping_tid{0}, evictor_tid{0};
  std::atomic<uint32_t> housekeeping_word{kHousekeepingRuns};  // pending requests; a shared futex
  std::atomic<uint32_t> sweeps{0};  // settled sweeps of the account; a futex
  TableRequest table_request;
  // These change under load.
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
  // advances by 1 when 1/16 of this process' DRAM has been evicted; wraps
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

// If this process was forked from an active one by a raw call, without the fork handlers: the
// parent's pid. Otherwise 0. Such a process has none of the tiered memory and of the service
// threads, and the account's member is its parent's. Costs two loads.
int forked_past_us(const PagerState& state);
void say_limited(const PagerState& state, size_t bytes);  // see pager_say_limited

// The calling thread is about to change page mappings (discard, move): excludes forks. Never held
// across a wait for I/O. `wait` false: it is not entered while a fork is in progress, for a caller
// that holds locks which the fork will take. Signals are blocked inside: a handler that forks would
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
  std::optional<TableScope> tables_;  // when entered
  bool entered_ = true;
};

// Counts pages whose content is only in a frame or on the LUN. Called by code that changes a page
// to or from these two states.
void count_evicted(int64_t delta);

// Bookkeeping of installed pages. pre: the DRAM was taken before.
void count_resident(PagerState& state, Region& region, PageIndex page, int delta);

// The fork epoch to mark a page with. Read it *before* the page is installed: the installing thread
// may be preempted, and a page installed before a fork is shared after it. shared_epoch: for a page
// that was found in place, which may be shared.
inline uint16_t exclusive_epoch(const PagerState& state) {
  return static_cast<uint16_t>(state.fork.epoch.load(std::memory_order_seq_cst));
}
inline uint16_t shared_epoch() { return kEpochUnknown; }

// The word of an installed page. heat: see evict/choose.h.
inline PageWord resident_word(PageWord from, Slot slot, unsigned lun, unsigned heat,
                              uint16_t epoch) {
  return from.with_state(PageState::kResident)
      .with_slot(slot)
      .with_lun(lun)
      .with_heat(heat)
      .with_epoch(epoch);
}

}  // namespace lunar
