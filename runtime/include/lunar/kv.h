/* SPDX-License-Identifier: Apache-2.0
 * lunar/kv.h: calls of libarkdb that IBM's library does not have. lunar_kv_open() takes explicit
 * options, where ark_create() takes the environment's. Every ark_* call works on the store. The
 * conventions (errors, lengths, handles, threads) are those of arkdb.h.
 *
 *   lunar_kv_options options = {sizeof options, "/dev/sdb"};
 *   options.flags = ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD;
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

/* lunar_kv_options.durability: when a change of a store with ARK_KV_PERSIST_STORE is durable.
 *   FLUSH  with the next ark_flush or ark_delete
 *   GROUP  when the set or delete returns (an asynchronous one: calls back); concurrent calls share
 *          a write of the device
 *   EACH   the same, but a call does not wait for others */
#define LUNAR_KV_DURABLE_FLUSH 1u
#define LUNAR_KV_DURABLE_GROUP 2u
#define LUNAR_KV_DURABLE_EACH 3u

/* Zero-initialise, then set struct_size and the members you need. 0 and NULL select the default.
 * The library keeps no pointer into the structure. */
typedef struct lunar_kv_options {
  size_t struct_size;  /* sizeof(lunar_kv_options): lets the structure grow */
  const char *place;   /* as ark_create's path. NULL: in memory */
  uint64_t flags;      /* ARK_KV_... */
  uint64_t dram_bytes; /* DRAM that the store may use, a hard limit. 0: LUNAR_KV_DRAM, otherwise a
                          quarter of the available memory */
  uint64_t size_bytes; /* in memory, a limit for the pairs; otherwise the space to take of a file
                          that grows or for a virtual LUN, a limit too. 0: LUNAR_KV_SIZE, otherwise
                          as for ark_create */
  uint64_t expected_keys; /* a hint. 0: 1 Mi */
  uint32_t threads;       /* for asynchronous calls, each started when needed; 1..256. 0: 20 */
  uint32_t queue_depth;   /* asynchronous calls that may wait for a thread; 48..65536. 0: 400 */
  uint32_t asyncs;        /* asynchronous calls that may be in progress; 1..1048576. 0: 8192 */
  uint32_t durability; /* LUNAR_KV_DURABLE_..., with ARK_KV_PERSIST_STORE. 0: LUNAR_KV_DURABILITY,
                          otherwise ..._FLUSH */
} lunar_kv_options;

/* Opens a store. Blocks; allocates. Errors as for ark_create, and: EINVAL if struct_size is too
 * small, or durability is none of these values or is set without ARK_KV_PERSIST_STORE; E2BIG if a
 * member is set that this version of the library does not know. A line on standard error says why,
 * as for ark_create. On failure *ark is NULL. */
int lunar_kv_open(const lunar_kv_options *options, ARK **ark);

/* Ends an iterator that ark_next has not brought to its end. Waits for its other users. EINVAL: the
 * iterator is freed already. */
int lunar_kv_end(ARI *iter);

#ifdef __cplusplus
}
#endif
#endif
