// SPDX-License-Identifier: Apache-2.0
// The pager: makes a virtual range hold more than DRAM. This is its interface to heap/ and
// adapters/, together with page_view.h (and account_find.h).
//
// There is one pager per process, in which regions are created. Pages of a region are resident or
// evicted; the pager's threads, or callers of range operations, bring them in. README.md describes
// the states of a page, and links to the documents about a fault, an eviction and a fork.
//
// Activation. A pager that is created but not *active* only keeps accounts: regions are plain
// memory, it has no thread and watches no page. It becomes active when the process tree nears its
// budget (activation.h), so that a program that fits costs nothing.
//
// Errors: 0 or -errno; -ENOMEM if the LUN's capacity (or the tree's --size) does not allow a
// commit. Threading: any thread may make every call, also concurrently, unless stated otherwise;
// except service threads, which make none.
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

// Creates the process' pager from options (dram, lun, size, ...; 0 means the documented default of
// a size). Checks what can be checked without side effects: whether the LUN path is usable, sizes
// are possible, and userfaultfd is permitted. *why names what to fix. Does not activate. -EEXIST:
// there is one already.
[[nodiscard]] int pager_create(const Options& options, ErrorText* why);
// Reads the NUMA topology, which pager_create needs. Called earlier if libc's calls of malloc will
// be replaced before pager_create.
void pager_read_nodes();
bool pager_created();
bool pager_active();
// Activates now (lunar_init does that). 0 or -errno with *why.
[[nodiscard]] int pager_activate(ErrorText* why);
// Ends the tier. -EBUSY: regions exist. Service threads and LUN remain, asleep, for a later
// pager_create, which may change the DRAM budget, but not the LUN.
[[nodiscard]] int pager_destroy();

uint64_t pager_budget_pages();  // DRAM budget of the process tree now
int pager_evictor_thread();     // the evictor's thread id; 0: not active
uint64_t pager_lun_bytes();     // LUN space of the process tree (option `size`, or its default)
[[nodiscard]] int pager_set_dram(uint64_t bytes);  // see lunar_set_dram

// ---- Regions ------------------------------------------------------------------------------------

struct Region;  // opaque here: a virtual range that the pager owns

enum RegionFlags : unsigned {
  kRegionHeap = 0,
  // MAP_NORESERVE: no commit needed, LUN space is charged at first touch
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
// The region that holds `address`. nullptr: none, or the place is foreign (region_map_over).
// Lock-free; callable anywhere.
Region* region_find(const void* address);
// The lowest address above `address`, at most `end`, where a region or a foreign place starts or
// ends.
char* region_boundary(char* address, char* end);

// Makes [offset, offset+bytes) usable: it reads as zeros, and is charged against the LUN. -ENOMEM:
// nothing has changed. pre: the range is not committed. protection: the initial one in a
// kRegionStrict region.
[[nodiscard]] int region_commit(Region* region, size_t offset, size_t bytes,
                                int protection = PROT_READ | PROT_WRITE);
// Only charges the range: the caller makes it usable, by mprotect.
[[nodiscard]] int region_charge(Region* region, size_t offset, size_t bytes);
// The reverse of region_commit: the content is lost and the space uncharged. pre: committed. (If
// the caller touches the range without a commit, which is its error, it reads as zeros.)
void region_decommit(Region* region, size_t offset, size_t bytes);
// For maps: removes content and access (PROT_NONE); the pager's charges remain. 0, or an error of
// pager_discard.
[[nodiscard]] int region_clear(Region* region, size_t offset, size_t bytes);
// The same for kRegionChargeOnTouch, called around the caller's mprotect. While the process is not
// active such memory is charged as a whole; if there is no room for that, the process becomes
// active. pre (uncommit): the range is discarded.
[[nodiscard]] int region_commit_on_touch(Region* region, size_t offset, size_t bytes);
void region_uncommit_on_touch(Region* region, size_t offset, size_t bytes);
// region_decommit for an allocator's hook: never waits for a fork. -EAGAIN: the range stays
// committed (its content may be lost).
[[nodiscard]] int region_try_decommit(Region* region, size_t offset, size_t bytes);
// Uncharges the range's LUN space. Its pages are not touched, because the pager no longer owns
// them. pre: the range was committed.
void region_forget(Region* region, size_t offset, size_t bytes);
// Logs, once per process, that an allocation was refused, if the last commit was. For callers that
// have no other way to get the memory.
void pager_say_refused();
bool pager_tree_says_once();  // true for the first process of the tree that asks
// Logs, once per process, that the kernel refuses this many bytes.
void pager_say_limited(size_t bytes);

// These three give places of a region to the kernel and take them back (foreign.h). One call at a
// time. Hands over a range to the kernel, with its content: it is foreign from now on, in DRAM and
// outside of the budget. *done: bytes handed over, also after an error. The caller uncharges
// what was committed (region_forget).
[[nodiscard]] int region_hand_over(Region* region, size_t offset, size_t bytes, bool committed,
                                   size_t* done);
// Replaces a range by another map in one step, like mmap with MAP_FIXED: a read finds the old
// content or the new one. The caller uncharges what was charged at commit (region_forget,
// region_uncommit_on_touch).
struct OtherMap {
  int prot, flags, fd;
  int64_t offset;
};
[[nodiscard]] int region_map_over(Region* region, size_t offset, size_t bytes, const OtherMap& map);
// Ends foreign places: the range is the region's again, not committed. vacated: the kernel has
// unmapped some of it; only these parts are taken back, unless other maps lie there by now
// (region_find shows which).
[[nodiscard]] int region_reclaim(Region* region, size_t offset, size_t bytes, bool vacated);

// ---- Ranges -------------------------------------------------------------------------------------

// A range may be any bytes inside one region. touch, prefetch and pin include pages that it covers
// partly, discard excludes them. (madvise needs page-aligned addresses; adapters check that first.)
//   touch      the pages are resident when it returns (unless evicted again since)
//   prefetch   reads evicted pages with many reads in flight, as many as the budget holds. -EIO: a
//              page is poisoned; the others are still brought in
//   discard    the content becomes zeros, LUN slots are freed. After an error other than -EINVAL
//              for the range, pages that could not be dropped are as they were
[[nodiscard]] int pager_touch(const void* address, size_t bytes);
// The empty page at `address` will probably be touched next: fills it with zeros now, which saves
// the fault, if a quarter of the budget is free. Never waits.
void pager_fill_ahead(const void* address);
[[nodiscard]] int pager_prefetch(const lunar_range* ranges, size_t count);
enum class Discard : uint8_t {
  // MADV_DONTNEED, MADV_FREE: stops at the first pinned page with -EINVAL, like the kernel
  kContents,
  kLocked,   // MADV_DONTNEED_LOCKED: also pinned pages, which stay pinned
  kMapping,  // the mapping ends, or another takes its place: pins end with it
};
[[nodiscard]] int pager_discard(void* address, size_t bytes, Discard what);
// Guard pages (MADV_GUARD_INSTALL, MADV_GUARD_REMOVE): the content is lost, and a touch raises
// SIGSEGV until the guard page is removed (then it reads as zeros) or its mapping ends. -EINVAL:
// this kernel has none (before 6.13), or pages are pinned; the content is then as it was.
[[nodiscard]] int pager_guard(void* address, size_t bytes, bool install);
// MADV_WIPEONFORK, MADV_KEEPONFORK: a forked child finds zeros there. -ENOMEM: too many such
// ranges.
[[nodiscard]] int pager_wipe_on_fork(void* address, size_t bytes, bool wipe);
// As discard (kMapping), but returns -EAGAIN while this process forks: for an allocator's hooks,
// which run with the allocator's locks held. The allocator's fork handlers may take these locks
// after the pager's handlers have begun to exclude discards.
[[nodiscard]] int pager_try_discard(void* address, size_t bytes);
// Hints. cold: evicts now; hot: keeps longer; sequential: reads ahead, and evicts behind the
// reader; random: does not read ahead; normal: none of these.
[[nodiscard]] int pager_advise(const void* address, size_t bytes, lunar_advice advice);
// MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE: passed to the kernel while the process is not
// active. Afterwards pages are small: MADV_COLLAPSE fails with -EINVAL, the others change nothing.
[[nodiscard]] int pager_advise_huge(void* address, size_t bytes, int advice);
// Pinned pages are resident until unpin; pins do not nest. -ENOMEM: more than half of the budget
// would be pinned, or the page tables promised to the tree would not fit beside them.
[[nodiscard]] int pager_pin(const void* address, size_t bytes);
bool pager_pinned(const void* address);  // whether its page is
[[nodiscard]] int pager_unpin(const void* address, size_t bytes);
void pager_unpin_all();
// Evicts the resident pages of the range now. Returns the number of evicted pages or -errno.
[[nodiscard]] int64_t pager_evict(const void* address, size_t bytes);

// For mremap: moves the content of src to dst, in the same region or another one; src is empty
// afterwards. Evicted pages move without I/O. Other threads may use both: a page at dst changes in
// one step from its old content to the moved one; a write to src is in one of the two places, or
// (`ends`) raises SIGSEGV. pre: both are committed, page-aligned and disjoint; one call at a time.
// An error leaves src as it was; the old content of dst may be lost.
struct Move {
  int prot;   // of src, and of dst in the end
  bool ends;  // src becomes PROT_NONE
  // dst may have content and another protection. Otherwise it is empty, unused, and in all else
  // like src
  bool replaces;
};
[[nodiscard]] int pager_move(void* dst, void* src, size_t bytes, const Move& how);

// ---- Reports, and what tests ask ----------------------------------------------------------------

void pager_stats(lunar_stats* out);
// Times the faults of that thread from now on (0: of none).
void pager_watch_thread(int thread_id);
uint64_t pager_take_longest_fault_ns();  // since the last call
// The number of that thread's faults that needed a read, since the start, and their time in sum.
const std::atomic<uint64_t>* pager_watched_reads();
const std::atomic<uint64_t>* pager_watched_read_ns();
// Prints page states, threads and counters to `fd`, at timeouts of tests and fatal errors. Takes no
// lock.
void pager_dump(int fd);
// Checks the whole page table, in tests. pre: no faults meanwhile. True: it is consistent.
bool pager_validate();
// The PageState of an address, for tests; -1: outside of regions.
int pager_page_state(const void* address);

// ---- The pager and the program's other calls ----------------------------------------------------

// Whether `fd` is a descriptor of the pager that the process could not open again with fewer rights
// or below another root directory: /proc, this process' files there, the LUNs. Any thread,
// including signal handlers and children of vfork.
[[nodiscard]] bool pager_keeps_descriptor(int fd);

// From now on devices may write into memory of this process (io_uring registered buffers, O_DIRECT,
// RDMA), so the pager evicts by UFFDIO_MOVE. Cannot be undone. Waits for the eviction batch in
// progress. sign: the evidence, for the log.
void pager_note_pinning(const char* sign);
// process_vm_writev with these arguments, whose target may be any process of the tree (MPI does
// that). The kernel pins up to 1024 pages of the target, waits for faults meanwhile, and then
// copies. So until it returns all members evict by UFFDIO_MOVE, which refuses pinned pages. Returns
// bytes, or -1 with errno, as libc's.
long pager_write_elsewhere(const long (&arguments)[6]);

}  // namespace lunar
