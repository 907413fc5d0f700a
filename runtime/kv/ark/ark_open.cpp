// SPDX-License-Identifier: Apache-2.0
// Opening the engine where ark_create's path says.
//
//   NULL, ""         in DRAM
//   mem:[SIZE]       the same, of that size
//   a path or URI    lun/compose.h: scratch_open, which takes no place that holds data
//   a=b[=c..]        a stripe over these, unless the whole is a URI or the name of a file
//
// LUNAR_KV_DRAM, LUNAR_KV_SIZE: kv/store_path.h. A place can grow if it is a file that was missing
// or empty, or a requested virtual LUN. There the store begins with ark_create_verbose's `size` and
// grows, or has LUNAR_KV_SIZE and does not grow. The parameters of lunar_kv_open() take precedence
// over these variables.
//   LUNAR_KV_DURABILITY  flush (default), group, each: when sets of a store with
//                        ARK_KV_PERSIST_STORE are durable
// Threading: any, blocking. No variable counts in a setuid program (config/trust.h).
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>

#include "arkdb.h"
#include "config/trust.h"
#include "kv/ark/ark_store.h"
#include "kv/store_path.h"
#include "lun/compose.h"
#include "lun/raid/stripe_device.h"
#include "lunar/kv.h"
#include "superpipe/registry.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar::ark {
namespace {

constexpr unsigned kDevicesMax = 8;
// The least size of a store in memory, and of a file that is made for a persistent store.
constexpr uint64_t kSizeLeast = kGiB;
constexpr uint64_t kSizeFirst = 1 * kMiB;  // of a store that grows
constexpr uint64_t kPathMax = 4096;

int durability_of(const CreateOptions& options, kv::Durability* out, ErrorText* why) {
  if (options.durability != 0) {
    if (options.durability > LUNAR_KV_DURABLE_EACH)
      return why->set(-EINVAL, "%s: durability %u is not one of LUNAR_KV_DURABLE_...",
                      options.caller, options.durability);
    if ((options.flags & ARK_KV_PERSIST_STORE) == 0)
      return why->set(-EINVAL, "%s: durability needs ARK_KV_PERSIST_STORE", options.caller);
    *out = options.durability == LUNAR_KV_DURABLE_FLUSH   ? kv::Durability::kFlush
           : options.durability == LUNAR_KV_DURABLE_GROUP ? kv::Durability::kGroup
                                                          : kv::Durability::kEach;
    return 0;
  }
  const char* text = environment_value("LUNAR_KV_DURABILITY");
  if (!text || !*text || strcmp(text, "flush") == 0)
    *out = kv::Durability::kFlush;
  else if (strcmp(text, "group") == 0)
    *out = kv::Durability::kGroup;
  else if (strcmp(text, "each") == 0)
    *out = kv::Durability::kEach;
  else
    return why->set(-EINVAL, "%s: LUNAR_KV_DURABILITY=%s is not one of flush, group and each",
                    options.caller, text);
  return 0;
}

bool is_stripe(const char* path) {
  struct stat unused;
  return strchr(path, '=') && scheme_length(path) == 0 && sys::path_status(path, &unused) != 0;
}

// Whether the device is a file that grows into its file system's free space.
bool is_growing_file(const Device* device) {
  return strcmp(device->kind(), "file") == 0 &&
         (device->growable() || !device->capabilities().persistent);
}

int open_stripe(const CreateOptions& options, Device** out, bool* grows, ErrorText* why) {
  const char* path = options.path;
  Device* members[kDevicesMax];
  uint64_t least = UINT64_MAX;
  unsigned count = 0;
  int status = 0;
  const char* at = path;
  while (at && status == 0) {
    const char* end = strchrnul(at, '=');
    const auto length = static_cast<size_t>(end - at);
    char name[kPathMax];
    if (length == 0 || length >= sizeof name || count == kDevicesMax) {
      status = why->set(-EINVAL, "%s: %s: a stripe is DEVICE=DEVICE[=..], at most %u of them",
                        options.caller, path, kDevicesMax);
      break;
    }
    memcpy(name, at, length);
    name[length] = 0;
    status = scratch_open(name, DeviceOptions{}, &members[count], why);
    if (status == 0) {
      least = std::min(least, members[count]->size_bytes());
      *grows |= is_growing_file(members[count++]);
    }
    at = *end ? end + 1 : nullptr;
  }
  if (status == 0) return StripeDevice::create(path, members, count, 0, least, out, why);
  while (count > 0) device_close(members[--count]);
  return status;
}

// The log gets three quarters of the budget, unless the caller asked for less. A program that
// passes the small initial size of IBM's library may still store a GiB, as there.
void size_in_memory(const CreateOptions& options, uint64_t dram, uint64_t wanted,
                    kv::StoreOptions* out) {
  const uint64_t most = dram / 4 * 3;
  uint64_t bytes = most;
  if (wanted)
    bytes = wanted;
  else if (options.size && !(options.flags & ARK_KV_VIRTUAL_LUN))
    bytes = std::max(options.size, kSizeLeast);
  if (bytes > most && (wanted || options.size > kSizeLeast))
    log_warning("%s: %s are wanted, but the DRAM budget leaves %s for pairs; raise LUNAR_KV_DRAM",
                options.caller, format_size(bytes).text, format_size(most).text);
  out->log_bytes = std::min(bytes, most);
  out->dram_bytes = out->log_bytes == most ? dram : std::min(dram, bytes + bytes / 3 + 16 * kMiB);
}

unsigned shards_for(int threads) {
  unsigned shards = 16;
  while (shards < 256 && threads > 0 && shards < static_cast<unsigned>(threads) * 4) shards *= 2;
  return shards;
}

int open_persistent(const CreateOptions& options, uint64_t bytes_if_empty, kv::StoreOptions* store,
                    kv::Store** out, ErrorText* why) {
  const char* path = options.path ? options.path : "";
  const uint64_t flags = options.flags;
  if (flags & ARK_KV_VIRTUAL_LUN || !*path || strncmp(path, "mem:", 4) == 0 || is_stripe(path))
    return why->set(
        -EINVAL,
        "%s: %s: ARK_KV_PERSIST_STORE and _LOAD need a file, a device or a URI of one (stripe: for "
        "several); memory and virtual LUNs end with their process",
        options.caller, *path ? path : "no path");
  const bool loads = (flags & ARK_KV_PERSIST_LOAD) != 0,
             stores = (flags & ARK_KV_PERSIST_STORE) != 0;
  kv::StorePath place;
  place.path = path;
  place.mode = !loads   ? kv::OpenMode::kReplaceStore
               : stores ? kv::OpenMode::kLoadOrMake
                        : kv::OpenMode::kLoad;
  place.bytes_if_empty = bytes_if_empty;
  place.caller = options.caller;
  place.advice = "; give an empty file or device, or erase it (wipefs -a)";
  return kv::persistent_store_open(place, store, out, why);
}

}  // namespace

int open_engine(const CreateOptions& options, kv::Store** out, bool* in_memory, ErrorText* why) {
  uint64_t dram = options.dram_bytes, wanted = options.place_bytes;
  int status = dram ? 0 : kv::dram_of_stores(options.caller, &dram, why);
  if (status == 0 && !wanted)
    status = kv::size_variable("LUNAR_KV_SIZE", options.caller, &wanted, why);
  kv::Durability durability = kv::Durability::kFlush;
  if (status == 0) status = durability_of(options, &durability, why);
  if (status < 0) return status;
  kv::StoreOptions store;
  store.says_when_full = true;
  store.shards = shards_for(options.threads);
  store.expected_keys = options.hash_count ? options.hash_count : 1 << 20;
  const char* path = options.path ? options.path : "";
  const bool persistent = (options.flags & (ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD)) != 0;
  *in_memory = !persistent && (!*path || strncmp(path, "mem:", 4) == 0);
  if (*in_memory) {
    if (*path && path[4] && parse_size(path + 4, &wanted) < 0)
      return why->set(-EINVAL, "%s: %s: not mem:SIZE, such as mem:512m", options.caller, path);
    size_in_memory(options, dram, wanted, &store);
    // expected_keys is a hint, which must not take the budget.
    store.expected_keys = std::min(store.expected_keys, store.dram_bytes / 32);
    return kv::Store::open(store, out, why);
  }
  store.dram_bytes = dram;
  store.expected_keys = std::min(store.expected_keys, dram / 32);
  if (persistent) {
    store.log_bytes = 0;
    if (options.flags & ARK_KV_PERSIST_STORE) store.durability = durability;
    return open_persistent(options, wanted ? wanted : std::max(options.size, kSizeLeast), &store,
                           out, why);
  }
  const bool wants_virtual = (options.flags & ARK_KV_VIRTUAL_LUN) != 0;
  bool grows = wants_virtual;
  if (!is_stripe(path))
    status = scratch_open(path, DeviceOptions{}, &store.device, why);
  else if (wants_virtual)
    status = why->set(-EINVAL, "%s: %s: no virtual LUN on several devices", options.caller, path);
  else
    status = open_stripe(options, &store.device, &grows, why);
  if (status != 0) return status;
  grows |= is_growing_file(store.device);
  const uint64_t asked = wanted ? wanted : options.size, room = store.device->size_bytes();
  if (grows && asked > room) {
    status = why->set(-ENOSPC, "%s: %s: %s are wanted, and %s are free", options.caller, path,
                      format_size(asked).text, format_size(room).text);
    device_close(store.device);
    return status;
  }
  // A store on a device that does not grow takes all of it.
  store.log_bytes = !grows ? 0 : wanted ? wanted : std::max(options.size, kSizeFirst);
  store.log_bytes_most = grows && !wanted ? room : 0;
  return kv::Store::open(store, out, why);
}

}  // namespace lunar::ark
