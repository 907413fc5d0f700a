/* SPDX-License-Identifier: Apache-2.0
 * lunar/kv.h: what libarkdb has in addition to IBM's calls. Opens a store with options of its own, where ark_create()
 * takes the environment's; every ark_* call works on it. Conventions (errors, lengths, handles, threads) are those of
 * arkdb.h.
 *
 *   lunar_kv_options options = {sizeof options, "/dev/sdb", ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD};
 *   options.dram_bytes = 1ull << 30;
 *   ARK *ark;
 *   if (lunar_kv_open(&options, &ark) != 0) ...
 */
#ifndef LUNAR_KV_H
#define LUNAR_KV_H

#include <arkdb.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* lunar_kv_options.durability: when what is set with ARK_KV_PERSIST_STORE is durable: with the next ark_flush or
 * ark_delete; when the call that sets or deletes it returns (asynchronous: calls back), where calls at the same time
 * share a write of the device; the same, without waiting for others. */
#define LUNAR_KV_DURABLE_FLUSH 1u
#define LUNAR_KV_DURABLE_GROUP 2u
#define LUNAR_KV_DURABLE_EACH 3u

/* Zero-initialise, set struct_size, then what is wanted. 0 and NULL: the default. The library keeps none of it. */
typedef struct lunar_kv_options {
  size_t struct_size;     /* sizeof(lunar_kv_options): lets the structure grow */
  const char *place;      /* as ark_create's path. NULL: in memory */
  uint64_t flags;         /* ARK_KV_... */
  uint64_t dram_bytes;    /* DRAM that the store may have, hard. 0: LUNAR_KV_DRAM, else a quarter of what is
                             available */
  uint64_t size_bytes;    /* in memory a limit of what pairs take; what is taken of a file that grows, or as a virtual
                             LUN. 0: LUNAR_KV_SIZE, else as ark_create */
  uint64_t expected_keys; /* a hint. 0: 1 Mi */
  uint32_t threads;       /* for asynchronous calls, each started when first needed; 1..256. 0: 20 */
  uint32_t queue_depth;   /* asynchronous calls that may wait for one of these; 48..65536. 0: 400 */
  uint32_t asyncs;        /* asynchronous calls that may be under way; 1..1048576. 0: 8192 */
  uint32_t durability;    /* LUNAR_KV_DURABLE_..., with ARK_KV_PERSIST_STORE. 0: LUNAR_KV_DURABILITY, else ..._FLUSH */
} lunar_kv_options;

/* Opens a store. Blocks; allocates. Errors as ark_create; EINVAL also: struct_size is too small, durability is none, or
 * set without ARK_KV_PERSIST_STORE; E2BIG: a member is set that this version of the library does not know. A line on
 * standard error says why, for this function as for ark_create. On failure *ark is NULL. */
int lunar_kv_open(const lunar_kv_options *options, ARK **ark);

/* Ends an iterator that was not brought to its end (ark_next). Waits for its other users. EINVAL: it is gone
 * already. */
int lunar_kv_end(ARI *iter);

#ifdef __cplusplus
}
#endif
#endif
