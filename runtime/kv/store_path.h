// SPDX-License-Identifier: Apache-2.0
// The places of persistent stores: a file, a block device, or a URI of one, used as it is; and the
// environment variables of stores.
//
//   LUNAR_KV_DRAM  the DRAM that a store may use, a hard limit; default: a quarter of the available
//                  memory, at least 64 MiB
//   LUNAR_KV_SIZE  how much a store takes of a place that can grow
//
// Threading: any, blocking. A setuid program ignores both variables (config/trust.h).
#pragma once
#include "base/error.h"
#include "kv/store.h"

namespace lunar::kv {

// The purpose of the open, and the content that it may overwrite.
enum class OpenMode : uint8_t {
  kReadOnly,      // there must be a store; nothing is written. Others may read it at the same time
  kLoad,          // there must be a store
  kLoadOrMake,    // there must be a store, or the place must be blank
  kReplaceStore,  // there must be a store, which is overwritten, or the place must be blank
  kMake,          // the place must be blank, or not exist: then a file is created
  kReplaceAll,    // any content is overwritten
};

// In a smaller place, two saved states and the reserve for cleaning may leave no room for pairs.
constexpr uint64_t kPlaceBytesLeast = 2 * kMiB;

struct StorePath {
  const char* path = "";
  OpenMode mode = OpenMode::kLoad;
  uint64_t bytes_if_empty = kGiB;  // the size of a file that is empty, or is created
  const char* caller = "";         // for messages: "ark_create"
  const char* advice = "";         // for messages: about a place with content, "; give another"
};

// Opens the store at a place. Except with kReadOnly, this process has the device alone. options:
// all but device and contents. 0; -ENOENT, -EEXIST, -EBUSY, -ENOSPC (too small) and others, with
// *why. An error leaves the place unchanged, except with kReplaceStore and kReplaceAll.
[[nodiscard]] int persistent_store_open(const StorePath& place, StoreOptions* options, Store** out,
                                        ErrorText* why);

// Reads a size from the environment; 0: not set. -EINVAL with *why.
[[nodiscard]] int size_variable(const char* name, const char* caller, uint64_t* bytes,
                                ErrorText* why);
// The value of LUNAR_KV_DRAM, or its default.
[[nodiscard]] int dram_of_stores(const char* caller, uint64_t* bytes, ErrorText* why);

}  // namespace lunar::kv
