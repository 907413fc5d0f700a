// SPDX-License-Identifier: Apache-2.0
// The pager: makes a virtual range hold more than DRAM. This is its interface to heap/ and
// adapters/, together with page_view.h (and account_find.h).
//
// There is one pager per process. Regions are created on it; pages of a region are resident or
// evicted; the pager's threads (or the caller, through range operations) resolve them. README.md
// describes the states of a page, and names the pages on a fault, an eviction and a fork.
//
// Activation. A pager that is created but not *active* is only bookkeeping: regions are plain
// memory, no thread, no page is watched. It becomes active when the process tree nears its budget
// (activation.h), so that a program that fits costs nothing.
//
// Errors: 0 / -errno; -ENOMEM if the LUN's capacity (or the tree's shared --size) does not allow a
// commit. Threads: any thread may make every call, also concurrently, unless stated otherwise. A
// service thread must not make any.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "config/options.h"
#include "lunar/lunar.h"
#include "pager/fault/keep.h"
#include "pager/fork/fork.h"

namespace lunar {

// ---- The pager ----------------------------------------------------------------------------------

// Creates the process' pager from options (dram, lun, size, ...; zero sizes = the documented
// defaults). Checks what can be checked without side effects (the LUN path is usable, sizes are
// possible, userfaultfd is permitted); *why names what to fix. Does not activate. A second call is
// -EEXIST.
[[nodiscard]] int pager_create(const Options& options, ErrorText* why);
// Reads the NUMA topology, which pager_create needs. Before it where libc's calls of malloc are
// about to be changed.
void pager_read_nodes();
bool pager_created();
bool pager_active();
// Activates now (API users: at init). 0 or -errno with *why.
[[nodiscard]] int pager_activate(ErrorText* why);
// Ends the tier: -EBUSY while regions exist. The service threads and the LUN remain, asleep, for a
// later pager_create (which may change sizes, but not the LUN).
[[nodiscard]] int pager_destroy();

uint64_t pager_budget_pages();  // DRAM budget of the process tree now
int pager_evictor_thread();     // its thread id; 0: not activated
uint64_t pager_lun_bytes();     // LUN space of the process tree (option `size`, or its default)
[[nodiscard]] int pager_set_dram(uint64_t bytes);  // -EBUSY: more is pinned, or in use

// ---- Regions ------------------------------------------------------------------------------------

struct Region;  // opaque here: a virtual range that the pager owns

enum RegionFlags : unsigned {
  kRegionHeap = 0,
  // MAP_NORESERVE: needs no commit, LUN space is charged at first touch
  kRegionChargeOnTouch = 1u << 0,
  // uncommitted memory stays PROT_NONE (maps); without this flag it is accessible up to the highest
  // commit
  kRegionStrict = 1u << 1,
};

// Reserves `bytes` of address space (page multiple; PROT_NONE + MAP_NORESERVE, nothing committed).
// -EMFILE: there are as many regions as there may be, 65,536 (kRegionsMax).
[[nodiscard]] int region_create(size_t bytes, unsigned flags, Region** out);
[[nodiscard]] int region_destroy(Region* region);
char* region_base(const Region* region);
size_t region_size(const Region* region);
// Region that holds `address`, or nullptr, also where it has given the place to the kernel
// (region_map_over). Lock-free; callable anywhere.
Region* region_find(const void* address);
// The lowest address above `address`, at most `end`, where a region, or a place that it has given
// away, starts or ends.
char* region_boundary(char* address, char* end);

// Makes [offset, offset+bytes) usable (zero-filled, charged against the LUN). -ENOMEM: nothing
// changed. pre: the range is not committed. `protection`: the initial one in a kRegionStrict
// region.
[[nodiscard]] int region_commit(Region* region, size_t offset, size_t bytes,
                                int protection = PROT_READ | PROT_WRITE);
// Only charges it: the caller makes it usable, by mprotect.
[[nodiscard]] int region_charge(Region* region, size_t offset, size_t bytes);
// The reverse of region_commit: the content is lost, space is uncharged, and the range reads as
// zeros if it is touched without a commit (an error of the caller). pre: committed.
void region_decommit(Region* region, size_t offset, size_t bytes);
// For maps: removes content and access (PROT_NONE), and with vm.overcommit_memory=2 what the kernel
// counted; the pager's own charges remain. 0, or an error of pager_discard.
[[nodiscard]] int region_clear(Region* region, size_t offset, size_t bytes);
// The pair for kRegionChargeOnTouch, called around the caller's mprotect: while the process is not
// active such memory is charged as a whole; if there is no room for that, the process becomes
// active. pre (uncommit): discarded.
[[nodiscard]] int region_commit_on_touch(Region* region, size_t offset, size_t bytes);
void region_uncommit_on_touch(Region* region, size_t offset, size_t bytes);
// region_decommit for an allocator's hook: never waits for a fork. -EAGAIN: the range stays
// committed (its content may be lost).
[[nodiscard]] int region_try_decommit(Region* region, size_t offset, size_t bytes);
// Frees the range's LUN space without touching its pages, which the pager no longer owns. pre: it
// was committed.
void region_forget(Region* region, size_t offset, size_t bytes);
// Logs, once per process, that an allocation was refused because LUN space is short. For callers
// that have tried everything.
void pager_say_refused();
bool pager_tree_says_once();  // the first process of the tree that asks
// logs, once per process, that the kernel refuses this many bytes
void pager_say_limited(size_t bytes);

// These three give places of a region to the kernel and take them back (foreign.h). One call at a
// time.
// Hands over a range to the kernel, with its content: plain memory from now on, in DRAM and outside
// of the budget. *done: bytes handed over, also on error. Uncharge what was committed with
// region_forget.
[[nodiscard]] int region_hand_over(Region* region, size_t offset, size_t bytes, bool committed,
                                   size_t* done);
// Replaces a range by another map (like mmap with MAP_FIXED) in one step: a read finds the old
// content or the new one. The caller uncharges what was charged at commit (region_forget,
// region_uncommit_on_touch).
struct OtherMap {
  int prot, flags, fd;
  int64_t offset;
};
[[nodiscard]] int region_map_over(Region* region, size_t offset, size_t bytes, const OtherMap& map);
// What is the kernel's there ends: the range is the region's again, not committed. vacated: the
// kernel has unmapped some of it; only that is taken back, as far as no other map has come to lie
// there (region_find tells).
[[nodiscard]] int region_reclaim(Region* region, size_t offset, size_t bytes, bool vacated);

// ---- Ranges -------------------------------------------------------------------------------------

// Ranges may be any bytes inside one region. Pages partly covered: touch,
// prefetch and pin include them, discard excludes them (madvise needs page-aligned addresses:
// adapters check alignment first).
//   touch      the pages are resident when it returns (unless evicted again since)
//   prefetch   makes the reads with many in flight, up to what the budget holds; -EIO if a page is
//              poisoned (others are still brought in)
//   discard    the content becomes zeros, LUN slots are freed. After an error other than -EINVAL
//              for the range, pages that could not be dropped are as they were
[[nodiscard]] int pager_touch(const void* address, size_t bytes);
// The empty page at `address` will probably be touched next: it is filled with zeros now, which
// saves the fault, if a quarter of the budget is free. Any thread; it waits for nothing.
void pager_fill_ahead(const void* address);
[[nodiscard]] int pager_prefetch(const lunar_range* ranges, size_t count);
enum class Discard : uint8_t {
  kContents,  // MADV_DONTNEED, MADV_FREE: -EINVAL from the first locked (pinned) page on, like the
              // kernel
  kLocked,    // MADV_DONTNEED_LOCKED: locked pages too; they stay locked
  kMapping,   // the mapping ends, or another takes its place: locks go with it
};
[[nodiscard]] int pager_discard(void* address, size_t bytes, Discard what);
// Guard pages (MADV_GUARD_INSTALL, MADV_GUARD_REMOVE): the content is lost, and touching one raises
// SIGSEGV until it is removed (then it reads as zeros) or its mapping ends. -EINVAL: this kernel
// has none (before 6.13), or pages are locked; the content is then as it was.
[[nodiscard]] int pager_guard(void* address, size_t bytes, bool install);
// As discard (kMapping), but -EAGAIN while this process forks: for an allocator's hooks. They run
// with the allocator's locks held, and the allocator's fork handlers take these locks after the
// pager's have begun to exclude discards (unless the pager's handlers were installed first).
[[nodiscard]] int pager_try_discard(void* address, size_t bytes);
// Hints: cold: evict now; hot: keep longer; sequential: read ahead, evict behind; random: do not
// read ahead; normal.
[[nodiscard]] int pager_advise(const void* address, size_t bytes, lunar_advice advice);
// MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE: passed to the kernel while the process is not
// active; afterwards pages are small, and these hints change nothing.
[[nodiscard]] int pager_advise_huge(void* address, size_t bytes, int advice);
// pin: resident until unpin (pins do not nest). -ENOMEM if more than half of the budget would be
// pinned.
[[nodiscard]] int pager_pin(const void* address, size_t bytes);
bool pager_pinned(const void* address);  // its page
[[nodiscard]] int pager_unpin(const void* address, size_t bytes);
void pager_unpin_all();
// Evicts now: writes out and drops the resident pages of the range (tests, cold hints). Returns the
// number of pages evicted or -errno.
[[nodiscard]] int64_t pager_evict(const void* address, size_t bytes);

// mremap that moves: dst gets the content of src, which is empty from then on (same region or not).
// Evicted pages move without I/O. Other threads may use both: a page at dst changes at once from
// its old content to the moved one; a write to src is in one of the two, or (`ends`) raises
// SIGSEGV. pre: both committed, page-aligned, disjoint; one call at a time. An error leaves src as
// it was; the old content of dst may be lost.
struct Move {
  int prot;   // of src, and of dst in the end
  bool ends;  // src becomes PROT_NONE
  // dst may have content and another protection; otherwise it is empty, like src in all other
  // respects, and not used yet
  bool replaces;
};
[[nodiscard]] int pager_move(void* dst, void* src, size_t bytes, const Move& how);

// ---- Reports, and what tests ask ----------------------------------------------------------------

void pager_stats(lunar_stats* out);
// Times the faults of that thread from now on (0: of none). take: the longest fault since the last
// call.
void pager_watch_thread(int thread_id);
uint64_t pager_take_longest_fault_ns();
// The faults of that thread that were answered by a read since the start, and how long they took.
const std::atomic<uint64_t>* pager_watched_reads();
const std::atomic<uint64_t>* pager_watched_read_ns();
// Prints page states, threads and counters to `fd` (timeouts and fatal errors of tests). Takes no
// lock.
void pager_dump(int fd);
// Whole-structure check (quiesce first; test use). True when consistent.
bool pager_validate();
// The number of the page state of an address, for tests: see page_word.h; -1 outside regions.
int pager_page_state(const void* address);

// ---- The pager and the program's other calls ----------------------------------------------------

// Whether `fd` is a descriptor that the process could not open again with fewer rights or below
// another root directory: /proc, this process' files there, the LUNs. Any thread, including signal
// handlers and children of vfork.
[[nodiscard]] bool pager_keeps_descriptor(int fd);

// From now on devices may write into memory of this process (io_uring registered buffers, O_DIRECT,
// RDMA): the pager evicts by MOVE. Cannot be undone. Waits for the eviction batch in progress.
// `sign`: what shows it, for the log.
void pager_note_pinning(const char* sign);
// process_vm_writev with these arguments, whose target may be any process of the tree, as MPI uses
// it. The kernel pins up to 1024 pages of the target, waits for faults meanwhile, and then copies:
// all members evict by MOVE until it returns, which leaves pinned pages alone. As libc's: bytes, or
// -1 and errno.
long pager_write_elsewhere(const long (&arguments)[6]);

}  // namespace lunar
