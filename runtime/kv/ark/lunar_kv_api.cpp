// SPDX-License-Identifier: Apache-2.0
// The calls of lunar/kv.h, which IBM's libarkdb does not have.
// Threading: any.
#include "lunar/kv.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "base/bytes.h"
#include "kv/ark/ark_store.h"

#define KV_API extern "C" __attribute__((visibility("default")))

using namespace lunar::ark;

namespace {

constexpr size_t kBytesFirst = 64;  // the size of lunar_kv_options in its first release
static_assert(sizeof(lunar_kv_options) == kBytesFirst,
              "later members lie behind these, and may be missing");

// Reads the caller's structure, of any size. Members that it lacks are 0. Bytes that it has in
// excess must be 0.
int read_options(const lunar_kv_options* from, lunar_kv_options* out) {
  if (!from || from->struct_size < kBytesFirst) return EINVAL;
  if (from->struct_size > sizeof *out &&
      !lunar::bytes_are_zero(from + 1, from->struct_size - sizeof *out))
    return E2BIG;
  *out = {};
  memcpy(out, from, std::min<size_t>(from->struct_size, sizeof *out));
  return 0;
}

int as_int(uint32_t value) { return static_cast<int>(std::min<uint32_t>(value, INT32_MAX)); }

}  // namespace

KV_API int lunar_kv_open(const lunar_kv_options* options, ARK** ark) {
  if (!ark) return EINVAL;
  *ark = nullptr;
  lunar_kv_options wanted;
  if (const int status = read_options(options, &wanted); status != 0) return status;
  CreateOptions create;
  create.caller = "lunar_kv_open";
  create.path = wanted.place;
  create.hash_count = wanted.expected_keys;
  create.threads = as_int(wanted.threads);
  create.queue_depth = as_int(wanted.queue_depth);
  create.asyncs = as_int(wanted.asyncs);
  create.flags = wanted.flags;
  create.dram_bytes = wanted.dram_bytes;
  create.place_bytes = wanted.size_bytes;
  create.durability = wanted.durability;
  uint64_t handle = 0;
  const int status = create_store(create, &handle);
  *ark = reinterpret_cast<ARK*>(handle);
  return status;
}

KV_API int lunar_kv_end(ARI* iter) {
  Object* object = iter ? table_acquire(iter, kIterator) : nullptr;
  if (!object) return EINVAL;
  end_iterator(static_cast<Iterator*>(object));
  return 0;
}
