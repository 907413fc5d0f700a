// SPDX-License-Identifier: Apache-2.0
// Places of stores that are kept: a file, a block device, or a URI of one, taken as it is; and what of the environment
// they go by.
//
//   LUNAR_KV_DRAM    DRAM that a store may have, hard; default a quarter of what is available, 64 MiB at least
//   LUNAR_KV_SIZE    what a store takes of a place that could give it more and more
//
// Threading: any, blocking. Neither variable counts in a setuid program (config/trust.h).
#pragma once
#include "base/error.h"
#include "kv/store.h"

namespace lunar::kv {

// What for, and what may be overwritten.
enum class Take : uint8_t {
  kLook,          // a store is there; nothing is written. Others may look at the same time
  kLoad,          // a store is there
  kLoadOrMake,    // the same, or the place is blank
  kReplaceStore,  // a store is there and goes, or the place is blank
  kMake,          // the place is blank, or the path leads to nothing: then a file is made
  kReplaceAll,    // whatever is there goes
};

constexpr uint64_t kPlaceBytesLeast = 2 * kMiB;  // of less, two saved states and what cleaning needs may leave nothing

struct KeptPlace {
  const char* path = "";
  Take take = Take::kLoad;
  uint64_t bytes_if_empty = kGiB;  // of a file that is empty, or is made
  const char* caller = "";         // for messages: "ark_create"
  const char* advice = "";         //   what to do about a place that holds something: "; give another"
};

// Opens the store of a place; its device is for this process alone (but kLook). options: all but device and contents.
// 0; -ENOENT, -EEXIST, -EBUSY, -ENOSPC (too small) and the like, with *why and nothing changed, but with kReplaceStore
// and kReplaceAll.
[[nodiscard]] int kept_store_open(const KeptPlace& place, StoreOptions* options, Store** out, ErrorText* why);

// A size from the environment; 0: not set. -EINVAL with *why.
[[nodiscard]] int size_variable(const char* name, const char* caller, uint64_t* bytes, ErrorText* why);
// What LUNAR_KV_DRAM says, or its default.
[[nodiscard]] int dram_of_stores(const char* caller, uint64_t* bytes, ErrorText* why);

}  // namespace lunar::kv
