/* SPDX-License-Identifier: Apache-2.0
 * arkdb.h: the key/value interface of CAPI Flash, as implemented by Lunar's libarkdb.
 *
 * A *store* maps keys to values and finds them by the hash of the key. Keys and values are
 * arbitrary bytes. A store is in memory, or on a file, a block device or any URI that Lunar knows
 * (`man 3 ark_create`). A *scratch* store ends with ark_delete() or its process. A *persistent*
 * store (ARK_KV_PERSIST_...) remains.
 *
 * Conventions
 *   errors      Calls return a positive errno value, or 0 on success. Only ark_first() and
 *               ark_fork() set the variable errno. Each call lists its own errors; all share:
 *               EINVAL       the handle is not open (NULL, closed, or in the child of a plain
 *                            fork()); an argument is NULL (a key, value or buffer may be NULL if
 *                            its length is 0); a key or value has more than 100 GiB
 *               EIO, EBADMSG and other errors of the device: a pair could not be read or written.
 *                            Damaged data are never returned
 *   lengths     Lengths are in bytes, from 0 on: a key and a value may be empty.
 *   results     With EINVAL nothing is stored through any pointer. If a call fails for another
 *               reason, *res and *klen are -1, and a handle is not stored.
 *   handles     ARK, ARC and ARI are opaque: never dereference a pointer to one. No two handles of
 *               a process are equal.
 *   threads     Any thread may use any call at any time. Calls on the same iterator run one after
 *               the other. Operations on one key take effect one after the other. The calls are not
 *               async-signal-safe.
 *   ownership   Buffers belong to the caller. The key and the value or buffer of an asynchronous
 *               call must stay valid and unchanged until its callback is called.
 *   fork        See ark_fork(). In the child of a plain fork() all handles are closed, and the
 *               child does not keep any device in use.
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
#define ARC ARK       /* a connection to a store: may be used wherever an ARK may */
typedef uint64_t ARI; /* an iterator over keys */

/* ---- flags of ark_create; other bits have no meaning ---- */
/* A virtual LUN on the device, of `size` at first. In memory: `size` is no limit. */
#define ARK_KV_VIRTUAL_LUN 0x1
/* ark_flush() and ark_delete() make the content of the store durable: after any crash, all that the
 * last successful call wrote is there. The store is on a file, a device or a URI of one, which this
 * process alone may use, and which is blank or contains a persistent store. That store is
 * overwritten. */
#define ARK_KV_PERSIST_STORE 0x2
/* The store starts with the content that was made durable before. If there is none: with _STORE a
 * new store is created, without it the call fails with ENOENT. Without _STORE, changes become
 * durable only by ark_flush(), and when a full store makes room. */
#define ARK_KV_PERSIST_LOAD 0x4
#define ARK_KV_HTC 0x8 /* a hint that is ignored: the index is always in DRAM */

/* A key as ark_nextN() returns it; the next one follows its last byte. */
typedef struct
#if defined(__GNUC__)
    __attribute__((packed))
#endif
    keye {
  uint64_t len;
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wc99-extensions"
  uint8_t p[]; /* len bytes */
#pragma clang diagnostic pop
#elif defined(__cplusplus) && defined(__GNUC__)
  __extension__ uint8_t p[]; /* len bytes */
#else
  uint8_t p[]; /* len bytes */
#endif
} keye_t;
#define BMP_KEYE(k) ((keye_t *)((k)->p + (k)->len))

/* ---- stores ---- */

/* Creates an empty store. Blocks; allocates.
 *   path      NULL or "": in memory. A regular file, a block device, a directory (an unlinked file
 *             is created in it) or a URI: file:, nvme:, pmem:, capi:, sim:, mem:SIZE, stripe:,
 *             paths:. a=b[=c..]: a stripe over up to 8 of these, if the whole string is neither a
 *             URI nor the name of a file. A file or device that contains data is refused, unless
 *             the data are left over from a scratch store
 *   ark       receives the handle; unchanged on failure
 *   size      bytes of pairs. In memory this is a limit (less than 1 GiB means 1 GiB; 0 means no
 *             limit but the DRAM budget). In a file that grows, and with ARK_KV_VIRTUAL_LUN, it is
 *             the space to begin with, at least 16 segments of 64 KiB to 1 MiB (ENOSPC: there is
 *             less than `size`); the store takes more of the file system or device as it fills. In
 *             all other cases the whole device is used
 *   bsize     ignored: pairs are packed, not stored in blocks
 *   hcount    number of keys to expect, a hint: the index grows beyond it (0: 1 Mi)
 *   nthreads  threads for asynchronous calls, 1..256 (more: 256), each started when it is first
 *             needed
 *   nqueue    how many asynchronous calls may wait for one of these threads: 48..65536 (outside:
 *             the nearest; <= 0: 400)
 *   basyncs   how many asynchronous calls may be in progress on this handle: 1..1048576 (more:
 *             1048576; <= 0: 8192)
 * ark_create: 20 threads and the other defaults.
 * Environment:
 *   LUNAR_KV_DRAM        the DRAM of a store, a hard limit (default: a quarter of the available
 *                        memory). It does not include 96 bytes for each of `basyncs`, the stacks of
 *                        threads, and the keys that an iterator holds
 *   LUNAR_KV_SIZE        overrides `size`, and is a limit: the store does not grow beyond it
 *   LUNAR_KV_DURABILITY  with ARK_KV_PERSIST_STORE, when a change is durable. flush: with the next
 *                        ark_flush or ark_delete; group: when the call returns, threads share
 *                        writes; each: the same, without waiting for others
 * EINVAL: also if nthreads <= 0, if a variable has a value of another kind, for a stripe with
 * ARK_KV_VIRTUAL_LUN, and for ARK_KV_PERSIST_... with memory, a directory, a=b or a virtual LUN.
 * ENOMEM, ENOSPC. EEXIST: the device contains data. EBADMSG: the stored content is damaged. EBUSY:
 * the device is in use. ENOENT, EACCES, ... A line on standard error says why. While one thread is
 * in this call or in ark_delete, a fork() by another waits. */
int ark_create(char *path, ARK **ark, uint64_t flags);
int ark_create_verbose(char *path, ARK **ark, uint64_t size, uint64_t bsize, uint64_t hcount,
                       int nthreads, int nqueue, int basyncs, uint64_t flags);

/* Ends the store, its connections and its iterators. Asynchronous calls that were accepted are
 * first carried out and call back; calls that their callbacks make are refused with EINVAL. With
 * ARK_KV_PERSIST_STORE the content is made durable first. If that fails (ENOSPC, EIO and others),
 * the store has ended all the same, and the content that was durable before remains. EDEADLK:
 * called in a callback of this store. A connection may be passed instead of the store. */
int ark_delete(ARK *ark);

/* Returns another handle to the store, with its own limit of `nasync` asynchronous calls (<= 0,
 * and ark_connect: 8192). ENOMEM: also if 65536 handles are open. */
int ark_connect_verbose(ARC **arc, ARK *ark, int nasync);
int ark_connect(ARC **arc, ARK *ark);
/* Waits until the asynchronous calls of a connection have called back, and closes it. In a callback
 * of this store it does not wait: the remaining calls call back later. For the handle that
 * ark_create returned it does nothing and returns 0. */
int ark_disconnect(ARC *arc);

/* ---- pairs ---- */

/* Stores a pair; an earlier value of the key is replaced. *res: vlen. ENOSPC: there is no room, and
 * nothing was changed. */
int ark_set(ARK *ark, uint64_t klen, void *key, uint64_t vlen, void *val, int64_t *res);
/* Copies up to vbuflen bytes of the value, from byte voff on; none if voff is beyond its end. *res:
 * the length of the whole value. ENOENT. */
int ark_get(ARK *ark, uint64_t klen, void *key, uint64_t vbuflen, void *vbuf, uint64_t voff,
            int64_t *res);
/* Delete a pair; check whether a key exists. *res: the length of its value. ENOENT. ark_del: ENOSPC
 * if each change is made durable and the store is completely full. */
int ark_del(ARK *ark, uint64_t klen, void *key, int64_t *res);
int ark_exists(ARK *ark, uint64_t klen, void *key, int64_t *res);

/* Start the same operations and return without waiting. If the call returns 0, cb is called once,
 * with the value that the call above would return, with dt, and with the value that it would store
 * in *res (-1 on failure). Otherwise cb is not called. EAGAIN: too many calls are in progress.
 * ENOMEM: no thread can be started. cb runs on a thread of the store, never within the call that
 * starts the operation, with all signals blocked and 8 MiB of stack. It may use every call except
 * ark_delete and ark_fork of this store. It must return: longjmp(), an exception or pthread_exit()
 * must not leave it. The first asynchronous call that it makes on the same handle never fails with
 * EAGAIN. Operations that one thread starts on one key are carried out in that order. An operation
 * that does not need to wait is carried out before the call returns. */
int ark_set_async_cb(ARK *ark, uint64_t klen, void *key, uint64_t vlen, void *val,
                     void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt);
int ark_get_async_cb(ARK *ark, uint64_t klen, void *key, uint64_t vbuflen, void *vbuf,
                     uint64_t voff, void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt);
int ark_del_async_cb(ARK *ark, uint64_t klen, void *key,
                     void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt);
int ark_exists_async_cb(ARK *ark, uint64_t klen, void *key,
                        void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt);

/* ---- keys ---- */

/* Creates an iterator, and copies the first key to kbuf, truncated to kbuflen (> 0) bytes; *klen:
 * its full length. Keys come in no particular order. A key that exists during the whole iteration
 * comes once, even if it is set in the meantime; others may or may not come, and one that is
 * deleted and set again may come twice. NULL with errno: ENOENT (the store is empty), EINVAL,
 * ENOMEM. On a device up to five iterators at a time read ahead, in large pieces; each of these
 * uses a thirty-second of the DRAM until it has read the part of the store that is on the device.
 * Further iterators read key by key. An iterator that is not brought to its end remains one of the
 * five. */
ARI *ark_first(ARK *ark, uint64_t kbuflen, int64_t *klen, void *kbuf);
/* The next key, in the same way. ENOENT: there are no more keys, and the iterator is freed. An
 * iterator that does not reach the end is freed with its store. EIO, EBADMSG: a key could not be
 * read and was skipped; the iterator remains usable. */
int ark_next(ARI *iter, uint64_t kbuflen, int64_t *klen, void *kbuf);
/* As many of the next keys as fit into kbuf, one keye_t after the other; *num_keys: how many.
 * ENOSPC: the next one does not fit (*num_keys is 0). ENOENT and others as for ark_next. */
int ark_nextN(ARI *iter, uint64_t kbuflen, void *kbuf, int64_t *num_keys);
/* A key, truncated to kbuflen (> 0) bytes; *klen: its length. Calls return each key once, in the
 * order of the keys' hashes, and then begin again. ENOENT: the store is empty. EIO, EBADMSG: a key
 * could not be read and was skipped. */
int ark_random(ARK *ark, uint64_t kbuflen, uint64_t *klen, void *kbuf);

/* ---- the store ---- */
int ark_allocated(ARK *ark, uint64_t *size); /* bytes that the log of pairs can hold */
int ark_inuse(ARK *ark, uint64_t *size);     /* of these, bytes that the records of pairs take */
int ark_actual(ARK *ark, uint64_t *size);    /* bytes of keys and values */
int ark_count(ARK *ark, int64_t *count);     /* pairs */
/* Operations so far (including steps of iterators); reads and writes of the device so far. */
int ark_stats(ARK *ark, uint64_t *ops, uint64_t *ios);
/* Makes the content of a persistent store durable: ARK_KV_PERSIST_LOAD finds it after any crash.
 * Writers are not blocked meanwhile. (A full store also does this by itself, to make room.) ENOSPC,
 * EIO and others: the device holds the content of the last successful flush, or the new one.
 * A scratch store is emptied: all pairs are deleted, as one change. */
int ark_flush(ARK *ark);

/* Forks the process when no call is in progress on the store (new ones wait meanwhile). The child
 * has its own copy of the store as it was at that moment, which it may read, change and delete;
 * asynchronous calls that are waiting belong to the parent alone. Other stores are closed in the
 * child. Returns 0 in the child, its pid in the parent, or -1 with errno: ENOTSUP, the store is not
 * in memory; EDEADLK, called in a callback of this store; EAGAIN, ENOMEM from fork(2); EINVAL. */
pid_t ark_fork(ARK *ark);
/* Tells the store that the child is finished. Lunar keeps nothing for the child, so the call does
   nothing. */
int ark_fork_done(ARK *ark);

#ifdef __cplusplus
}
#endif
#endif
