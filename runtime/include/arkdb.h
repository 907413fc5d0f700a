/* SPDX-License-Identifier: Apache-2.0
 * arkdb.h: the key/value interface of CAPI Flash, as Lunar's libarkdb offers it.
 *
 * A *store* maps keys to values, both any bytes, found by hash. It lies in memory, or on a file, a block device or any
 * URI that Lunar knows (`man 3 ark_create`). It ends with ark_delete() or its process, unless it persists
 * (ARK_KV_PERSIST_...).
 *
 * Conventions
 *   errors      a positive errno, returned; 0 is success. Only ark_first() and ark_fork() use the variable errno. Each
 *               call lists its own in addition to those that all share:
 *               EINVAL  a handle that is not open (NULL, closed, or in a child of a plain fork()), a NULL argument (of
 *                       a key, value or buffer: unless its length is 0), a key or value of more than 100 GiB
 *               EIO, EBADMSG and others of the device: a pair could not be read or written; nothing damaged is returned
 *   lengths     bytes, from 0 on: a key and a value may be empty. *res and *klen are -1 where a call fails
 *   handles     ARK, ARC and ARI stand behind pointers that are never to be looked through. No two of a process are
 *               equal
 *   threads     every call from any thread, any number at once; one iterator waits for its other users. Operations on
 *               one key appear one after the other. The calls are not async-signal-safe
 *   ownership   buffers stay the caller's. Of an asynchronous call, key and value or buffer must live, and not be
 *               changed, until its callback is called
 *   fork        see ark_fork(). In a child of a plain fork() all handles are closed, and it keeps no
 *               device in use
 */
#ifndef LUNAR_ARKDB_H
#define LUNAR_ARKDB_H

#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t ARK; /* a store */
#define ARC ARK       /* a connection to a store: goes wherever an ARK goes */
typedef uint64_t ARI; /* an iterator over keys */

/* ---- flags of ark_create; other bits have no meaning ---- */
#define ARK_KV_VIRTUAL_LUN 0x1   /* a virtual LUN on the device, of the size asked for. In memory: `size` is no limit */
/* On a file, a device or a URI of one, for this process alone: ark_flush() and ark_delete() keep what the store holds,
 * all of it or, after any crash, what was kept before. The place is blank, or a store that persists, which is
 * overwritten. */
#define ARK_KV_PERSIST_STORE 0x2
/* Begins with what was kept there. With _STORE a new store where nothing was, alone ENOENT; alone only ark_flush()
 * keeps, and a full store that makes room. */
#define ARK_KV_PERSIST_LOAD 0x4
#define ARK_KV_HTC 0x8           /* a hint, without effect: the index always lies in DRAM */

/* A key as ark_nextN() gives it; the next one follows its last byte. */
typedef struct
#if defined(__GNUC__)
    __attribute__((packed))
#endif
    keye {
  uint64_t len;
#if defined(__cplusplus) && defined(__GNUC__)
  __extension__ uint8_t p[]; /* len bytes */
#else
  uint8_t p[];
#endif
} keye_t;
#define BMP_KEYE(k) ((keye_t *)((k)->p + (k)->len))

/* ---- stores ---- */

/* Creates an empty store. Blocks; allocates.
 *   path      NULL or "": in memory. A regular file, a block device, a directory (an unlinked file is made in it) or a
 *             URI: file:, nvme:, pmem:, capi:, sim:, mem:SIZE, stripe:, paths:. a=b[=c..]: a stripe over up to 8 of
 *             these, where the whole is neither a URI nor a file's name. What holds data that is not a former scratch
 *             store's is refused
 *   ark       gets the handle; NULL on failure
 *   size      bytes of pairs. In memory a limit where it is more than 1 GiB (less: 1 GiB; 0: none but the DRAM budget);
 *             on a file that grows, or with ARK_KV_VIRTUAL_LUN, what is taken of the place, 1 GiB at least; elsewhere
 *             all of the device is used
 *   bsize     without effect
 *   hcount    keys that are expected: a hint, the index grows (0: 1 Mi)
 *   nthreads  threads for asynchronous calls, 1..256 (more: 256), each started when first needed
 *   nqueue    asynchronous calls that may wait for one of these threads: 48..65536 (outside: the nearest; <= 0: 400)
 *   basyncs   asynchronous calls that may be under way on this handle: 1..1048576 (more: that; <= 0: 8192)
 * ark_create: 20 threads and the other defaults.
 * The environment: LUNAR_KV_DRAM, DRAM of a store, hard (default a quarter of what is available); not in it: 96 bytes
 * for each of `basyncs`, the stacks of threads, the keys that an iterator holds. LUNAR_KV_SIZE instead of `size`.
 * LUNAR_KV_DURABILITY=flush|group|each, with ARK_KV_PERSIST_STORE: when what is set is durable (with the next ark_flush
 * or ark_delete; when the call returns, threads sharing writes; the same without waiting for others).
 * EINVAL: also nthreads <= 0, a stripe with ARK_KV_VIRTUAL_LUN, ARK_KV_PERSIST_... of memory, a directory, a=b or a
 * virtual LUN; ENOMEM, ENOSPC; EEXIST: the device holds data; EBADMSG: what was kept is damaged; EBUSY: it is in use;
 * ENOENT, EACCES, ... A line on standard error says why. */
int ark_create(char *path, ARK **ark, uint64_t flags);
int ark_create_verbose(char *path, ARK **ark, uint64_t size, uint64_t bsize, uint64_t hcount, int nthreads, int nqueue,
                       int basyncs, uint64_t flags);

/* The store, its connections and iterators are gone. Asynchronous calls that were accepted are carried out and call
 * back first; what their callbacks issue is refused with EINVAL. With ARK_KV_PERSIST_STORE what it holds is kept first;
 * ENOSPC, EIO and the like: it was not, and what was kept before is there. EDEADLK: from a callback of this store. A
 * connection is as good. */
int ark_delete(ARK *ark);

/* Another handle on the store (NULL on failure), with `nasync` asynchronous calls of its own (<= 0, and ark_connect:
 * 8192).
 * ENOMEM: also 65536 handles are open. */
int ark_connect_verbose(ARC **arc, ARK *ark, int nasync);
int ark_connect(ARC **arc, ARK *ark);
/* Closes a connection when its asynchronous calls have called back; from a callback of this store it does not wait:
 * those that are left call back later. Of the handle that ark_create gave: 0, and nothing happens. */
int ark_disconnect(ARC *arc);

/* ---- pairs ---- */

/* Stores a pair, in place of one with that key. *res: vlen. ENOSPC: no room, and nothing has changed. */
int ark_set(ARK *ark, uint64_t klen, void *key, uint64_t vlen, void *val, int64_t *res);
/* *res: the length of the whole value. Of it, from byte voff on, up to vbuflen bytes are copied; none where voff is
 * beyond its end. ENOENT. */
int ark_get(ARK *ark, uint64_t klen, void *key, uint64_t vbuflen, void *vbuf, uint64_t voff, int64_t *res);
/* *res: the length of the value that was there / is there. ENOENT. */
int ark_del(ARK *ark, uint64_t klen, void *key, int64_t *res);
int ark_exists(ARK *ark, uint64_t klen, void *key, int64_t *res);

/* The same, started only: 0 means that cb will be called once, with what the call above would return and store in *res
 * (-1 on failure) and with dt. EAGAIN: too many are under way, cb is not called. ENOMEM: no thread can be started.
 * cb runs on a thread of the store's, never in the call that issued, with all signals blocked and 8 MiB of stack. It
 * may use every call but ark_delete and ark_fork of this store. It returns: no longjmp(), exception or pthread_exit()
 * leaves it. The first asynchronous call that it makes on the same handle is never EAGAIN. Calls on one key are carried
 * out in the order in which one thread issued them. What needs no wait is carried out before the call returns. */
int ark_set_async_cb(ARK *ark, uint64_t klen, void *key, uint64_t vlen, void *val,
                     void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt);
int ark_get_async_cb(ARK *ark, uint64_t klen, void *key, uint64_t vbuflen, void *vbuf, uint64_t voff,
                     void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt);
int ark_del_async_cb(ARK *ark, uint64_t klen, void *key, void (*cb)(int errcode, uint64_t dt, int64_t res),
                     uint64_t dt);
int ark_exists_async_cb(ARK *ark, uint64_t klen, void *key, void (*cb)(int errcode, uint64_t dt, int64_t res),
                        uint64_t dt);

/* ---- keys ---- */

/* Begins to iterate, in no order: keys that are there throughout come once, also when they are set meanwhile; others
 * may or may not, and one that is deleted and set again may come twice. The first key goes to kbuf, cut at kbuflen (>
 * 0), its whole length to *klen. NULL with errno: ENOENT the store is empty, EINVAL, ENOMEM.
 * On a device up to five iterators at a time read ahead, in large pieces, and hold a thirty-second of the DRAM each
 * until they have read the device's part; the others read it key by key. One that is not brought to its end keeps its
 * place. */
ARI *ark_first(ARK *ark, uint64_t kbuflen, int64_t *klen, void *kbuf);
/* The next key, likewise. ENOENT: that was all, and the iterator is gone; one that is not brought there goes with its
 * store. EIO, EBADMSG: a key that cannot be read was left out, the iterator goes on. */
int ark_next(ARI *iter, uint64_t kbuflen, int64_t *klen, void *kbuf);
/* As many next keys as fit into kbuf, as keye_t one after the other; *num_keys: how many. ENOSPC: not even the next one
 * fits (and *num_keys is 0); ENOENT and others as ark_next. */
int ark_nextN(ARI *iter, uint64_t kbuflen, void *kbuf, int64_t *num_keys);
/* Some key: cut at kbuflen (> 0), its length in *klen. ENOENT: the store is empty. */
int ark_random(ARK *ark, uint64_t kbuflen, uint64_t *klen, void *kbuf);

/* ---- the store ---- */
int ark_allocated(ARK *ark, uint64_t *size); /* bytes that the log of pairs may take */
int ark_inuse(ARK *ark, uint64_t *size);     /* ... of them, in segments that are not free */
int ark_actual(ARK *ark, uint64_t *size);    /* bytes of keys and values */
int ark_count(ARK *ark, int64_t *count);     /* pairs */
/* Operations so far (also steps of iterators); reads and writes of the device so far. */
int ark_stats(ARK *ark, uint64_t *ops, uint64_t *ios);
/* Keeps what a store holds that persists: it is durable, and what ARK_KV_PERSIST_LOAD finds after any crash. Changes
 * go on meanwhile. (A full store keeps by itself, too, to make room.) ENOSPC, EIO and the like: what was kept before is
 * there, or this. 0 of other stores. */
int ark_flush(ARK *ark);

/* Forks the process when no call is under way on the store (new ones wait meanwhile). The child has the store as it was
 * at that moment, a copy of its own that it may read, change and delete; asynchronous calls that wait are the parent's
 * alone. Other stores are closed in the child. In the child 0, in the parent its pid, or -1 with errno: ENOTSUP a store
 * that is not in memory; EDEADLK from a callback of this store; EAGAIN, ENOMEM of fork(2); EINVAL. */
pid_t ark_fork(ARK *ark);
/* The parent tells that the child is done; nothing is kept for it, so nothing happens. */
int ark_fork_done(ARK *ark);

#ifdef __cplusplus
}
#endif
#endif
