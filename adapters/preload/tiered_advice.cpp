// SPDX-License-Identifier: Apache-2.0
// madvise and mlock on tiered memory. One table maps each advice of the kernel. Unknown advice is
// refused, as a kernel would refuse it, because in the kernel it could drop or replace pages unseen
// by the pager.
//
// Threading: any thread. The lock of the maps is not held while advice waits for I/O: if the
// program unmaps the range in the meantime, that is its own race.
#include <errno.h>
#include <sys/mman.h>

#include "pager/pager.h"
#include "sys/mem.h"
#include "tiered_maps.h"

namespace lunar::preload {
namespace {

// The kernel's numbers, some of which are newer than the headers.
enum Advice : int {
  kNormal = 0,
  kRandom = 1,
  kSequential = 2,
  kWillNeed = 3,
  kDontNeed = 4,
  kFree = 8,
  kRemove = 9,
  kDontFork = 10,
  kDoFork = 11,
  kMergeable = 12,
  kUnmergeable = 13,
  kHugePage = 14,
  kNoHugePage = 15,
  kDontDump = 16,
  kDoDump = 17,
  kWipeOnFork = 18,
  kKeepOnFork = 19,
  kCold = 20,
  kPageOut = 21,
  kPopulateRead = 22,
  kPopulateWrite = 23,
  kDontNeedLocked = 24,
  kCollapse = 25,
  kHwPoison = 100,
  kSoftOffline = 101,
  kGuardInstall = 102,
  kGuardRemove = 103,
};

enum class Effect : uint8_t {
  kNothing,      // a hint that means nothing for tiered memory
  kUsual,        // LUNAR_NORMAL
  kReadAhead,    // LUNAR_SEQUENTIAL
  kNoReadAhead,  // LUNAR_RANDOM
  kFetch,        // starts and finishes the reads, at queue depth
  kTouch,        // resident when it returns
  kDrop,         // zeros from now on; locked pages are refused
  kDropLocked,   // zeros from now on, locked or not
  kEvict,        // to the LUN now
  kGuard,        // this and the following also apply to a reservation
  kUnguard,
  kHuge,    // the kernel's while memory is plain; tiered memory has small pages
  kWipe,    // a forked child finds zeros
  kKeep,    // undoes kWipe
  kKernel,  // passed to the kernel: it does not change contents
  kRefuse,  // EINVAL: the kernel refuses it for memory like this, or Lunar could not keep the
            // promise
};

struct Rule {
  int advice;
  Effect effect;
};

constexpr Rule kRules[] = {
    {kNormal, Effect::kUsual},
    {kRandom, Effect::kNoReadAhead},
    {kSequential, Effect::kReadAhead},
    {kWillNeed, Effect::kFetch},
    {kDontNeed, Effect::kDrop},
    {kFree, Effect::kDrop},         // at once, as the old content may go at any time
    {kRemove, Effect::kRefuse},     // for files
    {kDontFork, Effect::kNothing},  // a child sees tiered memory
    {kDoFork, Effect::kNothing},
    // merged pages are copy-on-write: eviction could lose writes to them
    {kMergeable, Effect::kNothing},
    {kUnmergeable, Effect::kNothing},
    {kHugePage, Effect::kHuge},
    {kNoHugePage, Effect::kHuge},
    {kDontDump, Effect::kKernel},
    {kDoDump, Effect::kKernel},
    {kWipeOnFork, Effect::kWipe},
    {kKeepOnFork, Effect::kKeep},
    {kCold, Effect::kEvict},
    {kPageOut, Effect::kEvict},
    {kPopulateRead, Effect::kTouch},
    {kPopulateWrite, Effect::kTouch},
    {kDontNeedLocked, Effect::kDropLocked},
    {kCollapse, Effect::kHuge},
    {kHwPoison, Effect::kKernel},  // needs CAP_SYS_ADMIN: the page is lost, as anywhere
    {kSoftOffline, Effect::kKernel},
    {kGuardInstall, Effect::kGuard},
    {kGuardRemove, Effect::kUnguard},
};

const Rule* rule_of(int advice) {
  for (const Rule& rule : kRules)
    if (rule.advice == advice) return &rule;
  return nullptr;
}

bool wholly_committed(char* begin, char* end) {
  for (const Mapping* piece; begin < end;) {
    begin = maps_table().piece(begin, end, &piece);
    if (piece == nullptr || piece->kind != MappingKind::kTiered || !piece->committed) return false;
  }
  return true;
}

// Calls apply(mapping, address, bytes) for one piece after the other. A hole is reported (-ENOMEM)
// after the rest, as madvise does.
template <class Apply>
int for_pieces(char* address, size_t bytes, Apply apply) {
  if (maps_are_gone(bytes)) return -ENOMEM;
  char* end = address + bytes;
  int result = 0;
  while (address < end) {
    const Mapping* piece;
    Mapping now;
    char* stop;
    {
      MapsLock lock;
      stop = maps_table().piece(address, end, &piece);
      if (piece != nullptr) now = *piece;
    }
    int rc = piece == nullptr ? -ENOMEM : apply(now, address, static_cast<size_t>(stop - address));
    if (rc < 0 && rc != -ENOMEM) return rc;
    if (rc < 0) result = rc;
    address = stop;
  }
  return result;
}

// On a guard page, mlock fails with ENOMEM.
int lock_error(int rc) { return rc == -EFAULT ? -ENOMEM : rc; }

}  // namespace

int advise_tiered(char* address, size_t bytes, int advice) {
  const Rule* rule = rule_of(advice);
  lunar_range range{address, bytes};
  switch (rule != nullptr ? rule->effect : Effect::kRefuse) {
    case Effect::kNothing:
      return 0;
    case Effect::kUsual:
      return pager_advise(address, bytes, LUNAR_NORMAL);
    case Effect::kReadAhead:
      return pager_advise(address, bytes, LUNAR_SEQUENTIAL);
    case Effect::kNoReadAhead:
      return pager_advise(address, bytes, LUNAR_RANDOM);
    case Effect::kFetch:
      return pager_prefetch(&range, 1);
    case Effect::kTouch:
      return pager_touch(address, bytes);
    case Effect::kDrop:
      return pager_discard(address, bytes, Discard::kContents);
    case Effect::kDropLocked:
      return pager_discard(address, bytes, Discard::kLocked);
    case Effect::kEvict: {
      int64_t evicted = pager_evict(address, bytes);
      return evicted < 0 ? static_cast<int>(evicted) : 0;
    }
    case Effect::kGuard:
      return pager_guard(address, bytes, true);
    case Effect::kUnguard:
      return pager_guard(address, bytes, false);
    case Effect::kHuge:
      return pager_advise_huge(address, bytes, advice);
    case Effect::kWipe:
      return pager_wipe_on_fork(address, bytes, true);
    case Effect::kKeep:
      return pager_wipe_on_fork(address, bytes, false);
    case Effect::kKernel:
      return sys::advise(address, bytes, advice);
    case Effect::kRefuse:
      break;
  }
  return -EINVAL;
}

int maps_advise(char* address, size_t bytes, int advice) {
  if (maps_are_gone(bytes)) return -ENOMEM;
  bool plain;
  {
    MapsLock lock;
    plain = wholly_committed(address, address + bytes);
  }
  if (plain) return advise_tiered(address, bytes, advice);
  const Rule* rule = rule_of(advice);
  // Most advice has no effect on a reservation, but it can have guard pages and settings that the
  // kernel keeps per mapping.
  bool reserved_too = rule != nullptr && rule->effect >= Effect::kGuard;
  return for_pieces(address, bytes, [=](const Mapping& now, char* at, size_t part) {
    if (now.kind == MappingKind::kForeign) return sys::advise(at, part, advice);
    return now.committed || reserved_too || rule == nullptr ? advise_tiered(at, part, advice) : 0;
  });
}

int maps_lock(char* address, size_t bytes, unsigned flags) {
  return for_pieces(address, bytes, [=](const Mapping& now, char* at, size_t part) {
    if (now.kind == MappingKind::kForeign) return sys::lock_memory(at, part, flags);
    return now.committed ? lock_error(pager_pin(at, part)) : -ENOMEM;  // nothing can be brought in
  });
}

int maps_unlock(char* address, size_t bytes) {
  return for_pieces(address, bytes, [](const Mapping& now, char* at, size_t part) {
    if (now.kind == MappingKind::kForeign) return sys::unlock_memory(at, part);
    return now.committed ? pager_unpin(at, part) : 0;
  });
}

}  // namespace lunar::preload
