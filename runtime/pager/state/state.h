// SPDX-License-Identifier: Apache-2.0
// The pager's shared state, and the small helpers that every part of it uses. One instance per process, in static
// memory.
#pragma once
#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "config/options.h"
#include "pager/account/account.h"
#include "pager/account/slot_allocator.h"
#include "pager/fault/watched.h"
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
struct Handler;

constexpr unsigned kLunIds = 16;  // of the LUN field of a page word
constexpr unsigned kHandlersMax = 64;

// Bits of PagerState::housekeeping_word. The kernel stores 0 when a service thread ends: a word without
// kHousekeepingRuns shows that.
constexpr uint32_t kHousekeepingRuns = 1, kHousekeepingSweep = 2, kHousekeepingGrow = 4,
                   kHousekeepingProgram = 16,  // its descriptor table has been closed
    kHousekeepingTable = 32,                   // TableRequest
    kHousekeepingWake = 64,                    // all threads that wait for a page
    kHousekeepingTables = 128;                 // table_trim

struct PagerState {
  Options options;
  std::atomic<bool> created{false};
  std::atomic<bool> active{false};
  sys::Mutex activation_lock;
  std::atomic<uint64_t> making_threads_ns{0};  // since when an activation is starting its threads; 0: none is
  std::atomic<bool> activation_passed{false};  // something was committed meanwhile (CommitLock)
  size_t page_size = 4096;
  unsigned page_shift = 12;
  uint64_t dram_bytes = 0;
  uint64_t lun_bytes = 0;
  int64_t plain_table_units = 0;  // table_promise.h, charged while the process is not active. Under activation_lock
  std::atomic<uint64_t> committed_before_activation{0};
  // Forks of a plain process between their check and their prepare handler, and the charge it already has for their
  // children. Under activation_lock.
  int plain_forks = 0;
  int64_t plain_fork_pages = 0;
  // See checked_forks.h.
  struct CheckedForks {
    std::atomic<int> count{0};  // changes under the lock
    sys::SpinLock lock;
    uint64_t committed = 0;  // pages, while there were any, since the process began
  } checked_forks;
  bool thp_always = false;                      // huge pages are used without a request (at start)
  std::atomic<int> member_pid{0};               // the process that is the account's member
  std::atomic<uint32_t> member_copy{0};         // its sys::memory_copy()
  std::atomic<bool> activation_failed{false};   // and the failure was logged
  std::atomic<uint64_t> next_activation_ns{0};  // not tried again before this

  Account account;
  RegionTable regions;
  ForeignRanges foreign;

  // LUNs by the number in page words: this process' own is luns[own_lun]; the others are ancestors', only for reading.
  // A number is free for a forked child if no page refers to it (lun_ids.cpp).
  SlotAllocator luns[kLunIds];
  Device* devices[kLunIds] = {};
  struct DeviceId {
    sys::FileIdentity file;
    int flags = 0;  // with which it was opened
  };
  DeviceId device_ids[kLunIds][kDeviceFdsMax] = {};
  // If the LUN option is a directory: a descriptor of it, for when its path no longer leads there (chroot).
  int lun_directory = -1;
  sys::FileIdentity lun_directory_identity;
  unsigned own_lun = 0, parent_lun = 0;
  int carved_first = -1;  // of a shared device: the account's pieces for the own LUN
  unsigned carved_pieces = 0;
  // one bit per number: pages referred to it when this process began (fewer by now, if any)
  uint32_t luns_referred = 0;
  unsigned generation = 0;             // forks since the pager was created
  std::atomic<bool> lun_ready{false};  // the own LUN is open (a forked child opens its own at its first dirty eviction)
  // What an active process has charged that its LUN does not know of: it takes that over when it opens. kOnLun: it has.
  static constexpr int64_t kOnLun = INT64_MIN;
  std::atomic<int64_t> promised_slots{0};
  std::atomic<bool> growth_refused{false};  // of the own LUN's file, the last time that the housekeeping thread tried
  sys::Mutex lun_open_lock;
  // A request of one program thread to the housekeeping thread, in whose descriptor table the numbers of the LUN and of
  // the userfaultfd are still these: slots to charge, for which the LUN's file has to grow, or a range to register.
  struct TableRequest {
    sys::Mutex lock;                 // held by the thread that asks
    std::atomic<uint32_t> asked{0};  // futex: 0 once there is an answer
    uint64_t slots = 0;
    void* address = nullptr;  // of a range to register; nullptr: slots are to be charged
    size_t bytes = 0;
    int answer = 0;
  } table_request;

  int uffd = -1;  // same number in the program's and in the service threads' tables
  sys::FileIdentity uffd_identity;
  bool write_protect = false;  // userfaultfd protects anonymous memory against writes here

  std::atomic<uint32_t> fork_epoch{1};  // 1 before the first fork
  // advances by 1 with each 1/16 of this process' DRAM that is evicted; wraps
  std::atomic<uint16_t> eviction_time{0};
  std::atomic<uint32_t> oldest_child{0};  // fork epoch of the oldest live child; 0: none
  sys::Mutex fork_lock;                   // held by a forking thread
  std::atomic<uint32_t> mutators{0};      // threads inside discard/move/pin; fork waits for 0
  std::atomic<bool> forking{false};
  std::atomic<int> forking_tid{0};  // its faults may take the last pages: nothing is evicted meanwhile
  std::atomic<uint64_t> forking_since_ns{0};
  // a fork is closing the copy-on-write gate: pages are installed write-protected
  std::atomic<bool> gate_closing{false};
  std::atomic<bool> gate_used{false};  // pages of this process may be protected

  FramePool frames;  // created and given out by the evictor
  Evictor* evictor = nullptr;
  Handler* handlers[kHandlersMax] = {};
  // Apart from the handlers, which write to their own memory at each fault: all of these are read at each fault.
  std::atomic<int> handler_tids[kHandlersMax] = {};
  std::atomic<uint64_t> refused_bytes{0};      // of the last commit that found no space; 0: logged
  std::atomic<bool> refused_by_tables{false};  // its space was that of page tables, not of the LUN
  unsigned handler_count = 0;
  // threads that serve: a new thread may touch tiered memory before (libc reads the locale)
  std::atomic<uint32_t> handlers_running{0};
  std::atomic<uint32_t> helpers_called{0};  // futex: further handlers rest on it
  std::atomic<uint32_t> helpers_resting{0};
  pthread_t housekeeping{};  // the housekeeping thread
  std::atomic<int> housekeeping_tid{0}, evictor_tid{0};
  std::atomic<uint32_t> housekeeping_word{kHousekeepingRuns};  // pending requests; its shared futex
  // futex: sweeps of the account by the housekeeping thread that began after a request
  std::atomic<uint32_t> sweeps{0};
  std::atomic<bool> room_wanted{false};  // a handler has parked faults

  // LUN slots reserved for what children may still read: freed when the child of that fork, and those handed up in its
  // place, have ended.
  struct ForkReservation {
    uint32_t epoch = 0;  // 0: none
    uint64_t slots = 0;
  };
  ForkReservation fork_reservations[kMembersMax];

  WatchedThread watched;
  std::atomic<bool> may_pin{false};
  std::atomic<int64_t> pinned_pages{0};
  std::atomic<int64_t> resident_peak{0};
  pthread_key_t resolver_key{};
  bool resolver_key_made = false;
};

PagerState& pager_state();

// Checks a DRAM budget, at the start and later. -EINVAL with *why.
[[nodiscard]] int check_dram(const PagerState& state, uint64_t bytes, ErrorText* why);

// LUN space accounting in front of SlotAllocator: charges the tree's account, then the LUN. -ENOMEM, -EFBIG (logged).
[[nodiscard]] int space_charge(PagerState& state, uint64_t pages, bool may_block);
// Only the latter: grows the own LUN as needed. Any thread that may block; pre: it is open.
[[nodiscard]] int slots_charge(PagerState& state, uint64_t slots);
void answer_table_request(PagerState& state);  // by the housekeeping thread
void space_uncharge(PagerState& state, uint64_t pages);

uint64_t committed_pages(const PagerState& state);  // of all regions

// What limits the LUN space of this process, if it cannot have `bytes` more.
enum class SpaceBound : uint8_t {
  kSize,    // the tree's --size, given or by default
  kPart,    // this process' part of a LUN that the processes of the tree divide
  kDevice,  // the space left on the device or its file system
};
SpaceBound space_bound(PagerState& state, uint64_t bytes);
const char* space_remedy(const PagerState& state, SpaceBound bound);  // the end of a line: "give a larger --size"

// Uncharges a page that was charged at its first touch (MAP_NORESERVE) and is empty from now on. Charged pages count as
// committed.
void uncharge_touched(PagerState& state, Region& region, PageWord was);

// If this process was forked from an active one without the fork handlers: from which one. It has none of the tiered
// memory and none of the service threads, and the account's member is its parent's. Else 0. Two loads.
int forked_past_us(const PagerState& state);

// Requests work of the housekeeping thread (bits above). Any thread; never waits.
void housekeeping_wake(PagerState& state, uint32_t what);
// Wakes the threads that wait for pages there. If the program has closed this thread's descriptors, the housekeeping
// thread wakes them, for all pages.
inline void wake_waiters(PagerState& state, void* address, size_t bytes) {
  if (sys::uffd_wake(state.uffd, address, bytes) < 0) housekeeping_wake(state, kHousekeepingWake);
}
// For program threads that are short of something: when it returns, what dead members held was returned (or 200 ms have
// passed).
void wait_for_sweep(PagerState& state);
// Called by service threads when DRAM or LUN space was freed: handlers with parked faults try again. One load if there
// are none. `sure`: even if no DRAM is free (because LUN space was freed).
void hand_over_room(PagerState& state, bool sure);

// Sets up a map that was just made in a region's place: no huge pages, no merging, not inherited by children that the
// fork handlers have not seen, and registered (by the housekeeping thread, if the program has closed this thread's
// userfaultfd). 0 or -errno. Waits for the housekeeping thread, which takes no lock that a program thread waits with.
[[nodiscard]] int watch_fresh_range(PagerState& state, void* address, size_t bytes);

// Frees a slot, if it is one: at once, or when the children that may read it have ended. Slots of ancestors' LUNs
// belong to the ancestors. Pre: no word names it any more (a fork may copy the word after the slot was freed), or no
// fork can come in between (evictor, MutatorScope).
void slot_release(PagerState& state, unsigned lun, Slot slot);
void deferred_slots_release(PagerState& state);  // by the housekeeping thread
uint64_t deferred_slot_count();
[[nodiscard]] int deferred_slots_prepare(PagerState& state);  // before a fork
uint64_t deferred_slots_bytes(uint64_t slots);                // what it maps, once, for a LUN of that many slots
void deferred_slots_forget();                                 // in the child
// Sets or removes the program's own pins (mlock); pages kept for a thread (kept_pages.cpp) stay pinned. Returns how
// many of them were pinned before, and may be unpinned; -ENOMEM: they cannot have words. Any program thread.
int64_t program_pins(PagerState& state, Region& region, uint64_t first, uint64_t end, bool set);
bool pinned_by_program(Region& region, uint64_t page);  // not only for a thread. Any program thread
void kept_pages_enter_child();                          // kept_pages.cpp
// The copy-on-write gate leaves kept pages out: those, in order of their addresses, of which some may be there twice.
// What is kept from now on waits until it is closed.
unsigned kept_pages_gate_closes(const void* const** pages);
void kept_pages_gate_closed();
void kept_pages_open(PagerState& state);  // called by a fork that has closed the gate, and in its child

// lun_ids.cpp: a number for the LUN of a future child. If none is free, frees one by taking the pages of the LUN that
// has the fewest into DRAM: before a fork, while there is eviction. -EAGAIN: none available.
[[nodiscard]] int lun_id_for_child(PagerState& state);
// In the child: forgets the LUNs that none of its pages refers to, and closes their descriptors.
void lun_ids_forget_unused(PagerState& state);

// Opens a forked child's own LUN when it first needs to write. 0 or -errno. May block; not for handlers.
[[nodiscard]] int lun_open_own(PagerState& state);
void lun_close_own(PagerState& state);  // nothing was written to it

// The calling thread is about to change page mappings (discard, move): excludes forks. Never held across a wait for
// I/O. wait false: not entered while a fork is in progress (for a caller that holds locks which the fork will take). No
// signal handler runs inside, because it might fork, and wait for the end of the scope.
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

// Hash of a page's content; also tells an all-zero page.
// Random bytes of this process key the hash, and forked children inherit them with the page table: an attacker who
// chooses contents cannot make two of them look equal. (XXH3 with a secret of full length: no cryptographic hash.)
[[nodiscard]] int page_hash_key_make();  // once a process, before the first hash. 0 or -errno
uint64_t page_hash(const void* content);
bool page_is_zero(const void* content);
// Reads the content of an evicted page (word: as evicted), verified, by a blocking read. False: lost.
[[nodiscard]] bool read_slot(PagerState& state, const Region& region, uint64_t page, PageWord word, char* into);

// Counts pages whose content is only in a frame or on the LUN. Called by code that moves a page in or out of these two
// states.
void count_evicted(int64_t delta);

// Bookkeeping of installed pages. pre: the DRAM was taken before.
void count_resident(PagerState& state, Region& region, PageIndex page, int delta);

// The fork epoch to mark a page with. Read it *before* the page is installed: the installing thread may be preempted,
// and a page installed before a fork is shared after it. shared_epoch: another thread's page was found in place, which
// may be shared now.
inline uint16_t exclusive_epoch(const PagerState& state) {
  return static_cast<uint16_t>(state.fork_epoch.load(std::memory_order_seq_cst));
}
inline uint16_t shared_epoch() { return kEpochUnknown; }

// The word of a page that was installed. heat: see the policy in evictor.h.
inline PageWord resident_word(PageWord from, Slot slot, unsigned lun, unsigned heat, uint16_t epoch) {
  return from.with_state(PageState::kResident).with_slot(slot).with_lun(lun).with_heat(heat).with_epoch(epoch);
}

}  // namespace lunar
