/* SPDX-License-Identifier: Apache-2.0
 * capiblock.h: the block interface of CAPI Flash, as implemented by Lunar's libcflsh_block.
 *
 * A *chunk* is what a program opens: a whole physical LUN (a file, a block device, or any URI that
 * Lunar knows; see `man 3 cblk_open`), or a virtual LUN that lives as long as the chunk. All sizes
 * and addresses are in blocks of 4096 bytes.
 *
 * Conventions
 *   errors      Calls return -1 (or NULL_CHUNK_ID) and set errno. Each call lists its own errors;
 *               all share:
 *               EINVAL  the chunk does not exist (never opened, closed, or a virtual one that a
 *                       forked child has not cloned); an argument is NULL; an address is < 0 or
 *                       beyond the end; there are more blocks than one transfer may have; the
 *                       access mode of the open does not allow the operation
 *   results     I/O calls return the number of blocks moved.
 *   threads     Any number of threads may use any call at any time, also on one chunk. A chunk
 *               shares no lock with another one. The calls are not async-signal-safe; do not
 *               rely on them as cancellation points.
 *   time        An I/O that does not complete within CFLSH_BLK_TIMEOUT (default 15 s; 0: no limit;
 *               see `man 3 cblk_open`) fails with ETIMEDOUT. The device may still carry it out, but
 *               that does not touch the caller's memory: data move through a buffer of the library,
 *               and reach the caller's only in a call that succeeds (of a RAID 0: in shares that
 *               succeed). A late write writes what the buffer contained at the time of the call. A
 *               later write or unmap of the same blocks through the chunk (or its group) waits for
 *               it, and may itself fail with ETIMEDOUT because of it. Until the device releases a
 *               late I/O, its command remains in use, a shrinking cblk_set_size fails with EBUSY,
 *               and cblk_close waits, then fails with EBUSY. Opening and resizing have no time
 *               limit. Devices that are memory (pmem:) need none.
 *   ownership   Buffers, tags and status structures belong to the caller. Those of an asynchronous
 *               command must stay valid until its result is fetched (or its status is filled in). A
 *               buffer may have any alignment.
 *   fork        A forked child can use an inherited physical chunk at once, a virtual one after
 *               cblk_clone_after_fork(). Commands that were in progress at fork() belong to the
 *               parent.
 */
#ifndef LUNAR_CAPIBLOCK_H
#define LUNAR_CAPIBLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPI_FLASH_BLOCK_SIZE 4096 /* bytes of a block */

typedef int chunk_id_t;           /* a chunk; > 0, never reused within a process */
typedef int chunk_cg_id_t;        /* a group of chunks; > 0, never reused; not a chunk_id_t */
typedef int chunk_r0_id_t;        /* a group that is a RAID 0 */
typedef uint64_t chunk_ext_arg_t; /* with CBLK_OPN_GROUP the number of chunks, otherwise 0 */
typedef off_t cflash_offset_t;    /* the number of a block, from 0 */

#define NULL_CHUNK_ID (-1)
#define NULL_CHUNK_CG_ID (-1)

/* ---- flags ---- */
/* clang-format off */
#define CBLK_SCRUB_DATA_FLG 1        /* close, set_size: first overwrite the space that a
                                        virtual LUN gives up with zeros */

#define CBLK_OPN_SCRUB_DATA 1        /* every cblk_close and cblk_set_size acts as with
                                        CBLK_SCRUB_DATA_FLG */
#define CBLK_OPN_VIRT_LUN 2          /* a virtual LUN on the device instead of the whole device */
#define CBLK_OPN_NO_INTRP_THREADS 4  /* no background thread for this chunk, so no
                                        CBLK_ARW_USER_STATUS_FLAG */
#define CBLK_OPN_SHARE_CTXT 8        /* accepted and ignored: each chunk has its own rings */
#define CBLK_OPN_RESERVE 0x10        /* physical: no one else may have the device open, as a
                                        chunk or as a LUN of Lunar */
#define CBLK_OPN_FORCED_RESERVE 0x20 /* physical: as RESERVE where possible, but also opens a
                                        device in use, and a device with Lunar's own format,
                                        which I/O may then destroy */
#define CBLK_OPN_MPIO_FO 0x40        /* the path names several paths to one device (d1:d2..):
                                        I/O fails over. Not with a reservation */
#define CBLK_OPN_GROUP 0x100         /* cblk_open: a group of `ext` chunks; see cblk_cg_open */

#define CBLK_GROUP_ID 0x100          /* cblk_cg_open: several chunks on one physical LUN, used
                                        in turn */
#define CBLK_GROUP_RAID0 0x200       /* cblk_cg_open: one chunk per device, striped block by
                                        block */
#define CBLK_GROUP_MASK 0x300        /* either flag, in a call without cg_ in its name: the id
                                        is that of a group. cblk_aread, cblk_awrite, cblk_aunmap
                                        and cblk_aresult reject it, because their tags are those
                                        of a chunk */

#define CBLK_ARW_WAIT_CMD_FLAGS 1    /* wait for a free command instead of failing with
                                        EWOULDBLOCK */
#define CBLK_ARW_USER_TAG_FLAG 2     /* the caller chooses the tag, in *tag */
#define CBLK_ARW_USER_STATUS_FLAG 4  /* a background thread stores the result in *status; there
                                        is nothing to fetch */

#define CBLK_ARESULT_NEXT_TAG 1      /* any complete command, the oldest first; its tag is
                                        stored in *tag */
#define CBLK_ARESULT_BLOCKING 2      /* wait until the command is complete */
#define CBLK_ARESULT_USER_TAG 4      /* *tag is a tag that the caller chose
                                        (CBLK_ARW_USER_TAG_FLAG) */
#define CBLK_ARESULT_NO_HARVEST 8    /* do not ask the device, report only completions that the
                                        library knows of already (ignored with BLOCKING) */

#define CBLK_LISTIO_WAIT_ISSUE_CMD 1 /* wait for free commands */
#define CBLK_IO_USER_TAG 1           /* cblk_io_t.flags: the caller chooses .tag */
#define CBLK_IO_USER_STATUS 2        /* a background thread fills in .stat */
#define CBLK_IO_PRIORITY_REQ 4       /* accepted and ignored */
#define CBLK_IO_TYPE_READ 1          /* cblk_io_t.request_type */
#define CBLK_IO_TYPE_WRITE 2
#define CBLK_IO_TYPE_UNMAP 3

#define CFLSH_ATTR_UNMAP 1           /* chunk_attrs_t.flags1: cblk_unmap works on this chunk */
/* clang-format on */

/* ---- structures ---- */
typedef enum {
  CBLK_ARW_STATUS_PENDING = 0, /* in progress */
  CBLK_ARW_STATUS_SUCCESS = 1, /* complete; blocks_transferred is set */
  CBLK_ARW_STATUS_INVALID = 2, /* cblk_listio refused the call because of it; fail_errno is set */
  CBLK_ARW_STATUS_FAIL = 3     /* failed, or refused before it started; fail_errno is set */
} cblk_status_type_t;

/* The result of a command. `status` changes last: read it first, with acquire order, then the other
   members. */
typedef struct cblk_arw_status_s {
  cblk_status_type_t status;
  size_t blocks_transferred;
  int fail_errno;
} cblk_arw_status_t;

/* One I/O of cblk_listio. The caller sets all members but `stat` (and `tag`, unless
   CBLK_IO_USER_TAG is set). */
typedef struct cblk_io {
  uint8_t version;      /* 0 */
  int flags;            /* CBLK_IO_... */
  uint8_t request_type; /* CBLK_IO_TYPE_... */
  void *buf;            /* nblocks * 4096 bytes */
  cflash_offset_t lba;  /* first block */
  size_t nblocks;
  int tag;
  cblk_arw_status_t stat;
} cblk_io_t;

typedef struct chunk_attrs_s {
  uint64_t flags1;            /* CFLSH_ATTR_... */
  uint64_t flags2;            /* 0 */
  uint32_t block_size;        /* bytes: 4096 */
  uint32_t num_paths;         /* paths to the device */
  uint64_t max_transfer_size; /* maximum number of blocks of one I/O */
                              /* clang-format off */
#ifdef __GNUC__
  __extension__
#endif
      /* clang-format on */
      union {
    uint64_t data[64]; /* reserved: 0 */
  };
} chunk_attrs_t;

/* Counters of a chunk since it was opened (in a forked child: since the fork). Counters of hardware
 * that Lunar does not use are 0. */
typedef struct chunk_stats_s {
  uint32_t block_size; /* bytes: 4096 */
  uint32_t num_paths;
  uint64_t max_transfer_size; /* blocks */
  uint64_t num_reads;         /* cblk_read calls that moved data */
  uint64_t num_writes;
  uint64_t num_areads; /* asynchronous reads that have completed */
  uint64_t num_awrites;
  uint32_t num_act_reads; /* in progress now */
  uint32_t num_act_writes;
  uint32_t num_act_areads; /* issued, result not fetched yet (with CBLK_ARW_USER_STATUS_FLAG: not
                              complete yet) */
  uint32_t num_act_awrites;
  uint32_t max_num_act_writes; /* maximum at any one time */
  uint32_t max_num_act_reads;
  uint32_t max_num_act_awrites;
  uint32_t max_num_act_areads;
  uint64_t num_blocks_read;
  uint64_t num_blocks_written;
  uint64_t num_errors;           /* commands that failed */
  uint64_t num_aresult_no_cmplt; /* cblk_aresult found no complete command */
  uint64_t num_retries;
  uint64_t num_timeouts;      /* I/Os that did not complete in time: ETIMEDOUT */
  uint64_t num_fail_timeouts; /* the same */
  uint64_t num_no_cmds_free;  /* a command was needed and none was free */
  uint64_t num_no_cmd_room;   /* the device's ring was full; the command waited in the library */
  uint64_t num_no_cmds_free_fail; /* no command was free, and the call failed for that reason */
  uint64_t num_fc_errors;
  uint64_t num_port0_linkdowns;
  uint64_t num_port1_linkdowns;
  uint64_t num_port0_no_logins;
  uint64_t num_port1_no_logins;
  uint64_t num_port0_fc_errors;
  uint64_t num_port1_fc_errors;
  uint64_t num_cc_errors;
  uint64_t num_afu_errors;
  uint64_t num_capi_false_reads;
  uint64_t num_capi_read_fails;
  uint64_t num_capi_adap_resets;
  uint64_t num_capi_adap_chck_err;
  uint64_t num_capi_reserved_errs;
  uint64_t num_capi_data_st_errs;
  uint64_t num_capi_afu_errors;
  uint64_t num_capi_afu_intrpts;
  uint64_t num_capi_unexp_afu_intrpts;
  uint64_t num_success_threads; /* background threads that were started */
  uint64_t num_failed_threads;  /* background threads that could not be started */
  uint64_t num_canc_threads;
  uint64_t num_fail_canc_threads;
  uint64_t num_fail_detach_threads;
  uint64_t num_active_threads;
  uint64_t max_num_act_threads;
  uint64_t num_cache_hits; /* reads answered from the chunk's cache */
  uint64_t num_reset_contexts;
  uint64_t num_reset_contxt_fails;
  uint32_t primary_path_id;
  uint64_t num_path_fail_overs;
} chunk_stats_t;

/* A command of a group: the chunk it runs on, and its tag there. */
typedef struct cflsh_cg_tag_s {
  chunk_id_t id;
  int tag;
} cflsh_cg_tag_t;

/* ---- chunks ---- */

/* Do nothing and return 0: the library needs no setup and no teardown. */
int cblk_init(void *arg, uint64_t flags);
int cblk_term(void *arg, uint64_t flags);

/* Opens a chunk. Blocks; allocates.
 *   path              a regular file or a block device, or a URI: file:, nvme:, pmem:, capi:,
 *                     mem:SIZE, sim:SIZE, stripe:, paths:
 *   max_num_requests  how many asynchronous commands may exist at a time; <= 0: 64; at most 8192
 *                     (otherwise ENOMEM)
 *   mode              O_RDONLY, O_WRONLY or O_RDWR
 *   ext               0; with CBLK_OPN_GROUP the number of chunks
 *   flags             CBLK_OPN_...
 * Physical chunks of any number of processes share a device, and so do virtual ones, but not both
 * kinds at a time (EBUSY, after a second). They can use the device in turn. A virtual open formats
 * a device that begins with zeros; it refuses any other device without Lunar's format (EEXIST). A
 * physical open for writing removes the format, after which the device begins with zeros, unless a
 * virtual LUN is open or has a name (EBUSY; see `lunar lun list`). A read-only physical open keeps
 * the format.
 * Returns the chunk, or NULL_CHUNK_ID: EINVAL, ENOENT, EACCES, EBUSY, EEXIST, ENOMEM, ENOSPC,
 * EROFS, EMFILE, ... */
chunk_id_t cblk_open(const char *path, int max_num_requests, int mode, chunk_ext_arg_t ext,
                     int flags);

/* Closes a chunk; a virtual LUN ends with it. Waits up to 5 s until no command is in progress and
 * every result is fetched, then fails with EBUSY and leaves the chunk open. Meanwhile new commands
 * fail with EWOULDBLOCK. flags: 0 or CBLK_SCRUB_DATA_FLG. A virtual LUN that was open during a fork
 * is scrubbed neither by the parent nor by the child, because the other process may still use it.
 * EINVAL: also if the chunk is closed already. */
int cblk_close(chunk_id_t chunk, int flags);

/* The size in blocks of the LUN under the chunk, and of the chunk. A virtual chunk has size 0 until
   cblk_set_size. */
int cblk_get_lun_size(chunk_id_t chunk, size_t *nblocks, int flags);
int cblk_get_size(chunk_id_t chunk, size_t *nblocks, int flags);

/* Resizes a virtual chunk. Growing keeps its content, shrinking drops the tail. (size_t)-1: all
 * that remains of the device. Blocks. flags: 0 or CBLK_SCRUB_DATA_FLG.
 *   EINVAL  a physical chunk, or more blocks than the whole LUN has
 *   ENOMEM  the device does not have that many free blocks; the size is unchanged. The format of
 *           virtual LUNs takes some, 2 MiB on devices of up to 16 GiB, so a LUN of 1 GiB needs 1026
 *           MiB
 *   EBUSY   the chunk cannot shrink: asynchronous commands or late I/O are in progress, blocking
 *           I/O did not end within 5 s (meanwhile, blocking I/O to the remaining part continues),
 *           or another process uses the LUN: the one that opened it, or a forked child that cloned
 *           it, until that process closes it or ends
 * Scrubbing comes first: if shrinking then fails, the size stays as it was and the tail contains
 * zeros. */
int cblk_set_size(chunk_id_t chunk, size_t nblocks, int flags);

int cblk_get_stats(chunk_id_t chunk, chunk_stats_t *stats, int flags);
int cblk_get_attrs(chunk_id_t chunk, chunk_attrs_t *attrs, int flags);

/* Transfer nblocks blocks (at most max_transfer_size; 1 on a virtual chunk) between buf and the
 * chunk, on the calling thread. buf must point to readable or writable memory; any other address
 * terminates the program or fails with EFAULT. cblk_unmap returns blocks to the device; they then
 * read as zeros (a file does not shrink). It does not use buf, but buf must not be NULL. flags: 0.
 * Return the number of blocks moved (0 if nblocks is 0), or -1: EIO and other errors of the device;
 * cblk_unmap: EPROTONOSUPPORT if the device does not support it. */
int cblk_read(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_write(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_unmap(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int flags);

/* Start the same operations and return without waiting. *tag is set for cblk_aresult (or read, with
 * CBLK_ARW_USER_TAG_FLAG); `status` is used only with CBLK_ARW_USER_STATUS_FLAG. Allocate nothing.
 * Return
 *   0    the command was issued
 *   > 0  that many blocks were moved at once (from the cache); there is no result to fetch
 *   -1   EWOULDBLOCK: no command is free. EBUSY: with CBLK_ARW_WAIT_CMD_FLAGS, no command became
 *        free within CFLSH_BLK_TIMEOUT (or 5 s), or within 0.2 s in which no I/O was in progress
 *        and hardly any result was fetched: then the threads that could fetch results are waiting
 *        too */
int cblk_aread(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int *tag,
               cblk_arw_status_t *status, int flags);
int cblk_awrite(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int *tag,
                cblk_arw_status_t *status, int flags);
int cblk_aunmap(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int *tag,
                cblk_arw_status_t *status, int flags);

/* Fetches the result of *tag, or, with CBLK_ARESULT_NEXT_TAG, of the oldest complete command. The
 * id may also be that of a group's tag. Returns
 *   > 0  the command is complete and moved that many blocks (also stored in *status); the tag is
 *        free
 *   0    the command is not complete (with NEXT_TAG, *tag is set to -1)
 *   -1   the command failed with this errno (with EIO also if it had 0 blocks, or if the device's
 *        own error is one of the following), or: EINVAL, no such tag; ENOMSG, the tag is free,
 *        because its result was fetched or went to the caller's structure; ENOENT, no command is
 *        active (NEXT_TAG); ETIMEDOUT, the command did not complete in time: it is over and its tag
 *        is free */
int cblk_aresult(chunk_id_t chunk, int *tag, uint64_t *status, int flags);

/* Issues the I/Os of `issue`, then waits for those of `wait`, which are also in `issue` or were
 * issued before.
 *   pending      I/Os that an earlier call issued, to be checked again. Entries that are not
 *                CBLK_ARW_STATUS_PENDING are skipped
 *   wait         Entries of `wait` and `pending` may be copies, including copies made before the
 *                issue. An entry stands for the I/O of the same type, buf, lba and nblocks (and,
 *                with CBLK_IO_USER_TAG, the same tag). The library looks for it at the entry's tag
 *                first, so the tag distinguishes I/Os that agree in all of these. stat and tag are
 *                set in all entries. An entry that stands for no I/O fails with ENOMSG
 *   completion   *ncompletion pointers to structures of the caller. Into these, starting with the
 *                first, the call copies the I/Os of `pending` that are complete by now and those of
 *                `issue` that were refused or answered at once, except I/Os that are in `wait`, and
 *                entries of `pending` with CBLK_IO_USER_STATUS. It sets *ncompletion to the number
 *                of I/Os copied. Those that complete a little later are reported by a later call
 *   timeout_us   limits the waiting, including that for free commands (CBLK_LISTIO_WAIT_ISSUE_CMD;
 *                an I/O for which none becomes free in time has EBUSY in its stat); 0: no limit
 * The result of each I/O is in its stat; one that was refused has CBLK_ARW_STATUS_FAIL too. Returns
 * 0, or -1:
 *   EINVAL     The lists are invalid, and nothing was issued: all of them are empty; an entry or
 *              ncompletion is NULL; an I/O has no buf or an unknown type, or is in `wait` and has
 *              CBLK_IO_USER_STATUS (its stat is CBLK_ARW_STATUS_INVALID); or nwait + *ncompletion <
 *              nissue + npending
 *   ETIMEDOUT  Not all of `wait` is complete; what is complete was reported */
int cblk_listio(chunk_id_t chunk, cblk_io_t *issue[], int nissue, cblk_io_t *pending[],
                int npending, cblk_io_t *wait[], int nwait, cblk_io_t *completion[],
                int *ncompletion, uint64_t timeout_us, int flags);

/* In a forked child: makes an inherited virtual chunk usable, with at most the parent's access
 * mode. Parent and child then share the LUN. Either can make it larger; neither can shrink it while
 * the other has it open (EBUSY). On a physical chunk the call does nothing.
 *   EBUSY   Commands were in progress at the fork, or results not fetched. (In a process that did
 *           not fork: they are now.) A command that has failed with ETIMEDOUT does not count, but a
 *           late write may still reach the device
 *   EINVAL  The mode exceeds the parent's */
int cblk_clone_after_fork(chunk_id_t chunk, int mode, int flags);

/* ---- groups of chunks ---------------------------------------------------------------------------
 * CBLK_GROUP_ID: num_chunks chunks on one physical LUN; I/O goes to them in turn.
 * CBLK_GROUP_RAID0: path is d1:d2:.. (1 to 8 devices), or RAID0, RAID0:* or RAID0:N for the devices
 * that LUNAR_RAID0_DEVICES names (with N: exactly N, otherwise ENODEV). num_chunks must be above 0
 * and is otherwise ignored. Block b is block b / n of device b % n. The size is n times that of the
 * smallest device. max_num_requests applies to each chunk. `man 3 cblk_cg_open` says how a path
 * with URIs in it is split. The calls do what those on a chunk do, except:
 *   cblk_cg_a*            on a RAID 0, move at most one block (EINVAL)
 *   cblk_cg_aresult       with CBLK_ARESULT_NEXT_TAG: returns 0 and a tag of -1 if no command is
 *                         active (with CBLK_ARESULT_BLOCKING: ENOENT), and fails with ETIME instead
 *                         of ETIMEDOUT
 *   cblk_cg_set_size      only on a RAID 0 of virtual chunks; not 0; rounded up to a multiple of
 *                         the number of devices
 *   cblk_cg_get_lun_size  fails with ENODEV instead of EINVAL if the id is not that of a group
 * Differences from IBM's library: a blocking call on a RAID 0 may have many blocks, and each is
 * transferred from or to its own device (IBM's library takes all from the first block's device);
 * any path is split at its colons; the cblk_cg_ calls need no flag; all devices count as large as
 * the smallest. */
chunk_cg_id_t cblk_cg_open(const char *path, int max_num_requests, int mode, int num_chunks,
                           chunk_ext_arg_t ext, int flags);
int cblk_cg_close(chunk_cg_id_t group, int flags);
int cblk_cg_get_num_chunks(chunk_cg_id_t group, int flags);
int cblk_cg_get_lun_size(chunk_cg_id_t group, size_t *nblocks, int flags);
int cblk_cg_get_size(chunk_cg_id_t group, size_t *nblocks, int flags);
int cblk_cg_set_size(chunk_cg_id_t group, size_t nblocks, int flags);
int cblk_cg_get_stats(chunk_cg_id_t group, chunk_stats_t *stats, int flags);
int cblk_cg_get_attrs(chunk_cg_id_t group, chunk_attrs_t *attrs, int flags);
int cblk_cg_read(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_cg_write(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_cg_unmap(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_cg_aread(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks,
                  cflsh_cg_tag_t *tag, cblk_arw_status_t *status, int flags);
int cblk_cg_awrite(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks,
                   cflsh_cg_tag_t *tag, cblk_arw_status_t *status, int flags);
int cblk_cg_aunmap(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks,
                   cflsh_cg_tag_t *tag, cblk_arw_status_t *status, int flags);
int cblk_cg_aresult(chunk_cg_id_t group, cflsh_cg_tag_t *tag, uint64_t *status, int flags);
int cblk_cg_clone_after_fork(chunk_cg_id_t group, int mode, int flags);

/* IBM's daemon that watches error rates (IBM declares these calls in a header of that daemon).
 * Lunar has no such daemon: init and term return 0, the others -1 with ENOSYS. Any thread. */
int cblk_eras_init(void);
int cblk_eras_term(void);
int cblk_eras_register(char *device, void **handle);
int cblk_eras_unregister(void *handle);
int cblk_eras_set_trace(void *handle, int verbosity, char *file, uint64_t flags);
int cblk_eras_live_dump(void *handle, char *reason, uint64_t flags);
int cblk_eras_get_stat(void *handle, char *disk, chunk_stats_t *stats, uint64_t flags);

#if defined(__LP64__)
#if defined(__cplusplus) && __cplusplus >= 201103L
#define LUNAR_CBLK_ASSERT(condition) static_assert(condition, #condition)
#elif !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define LUNAR_CBLK_ASSERT(condition) _Static_assert(condition, #condition)
#endif
#ifdef LUNAR_CBLK_ASSERT
LUNAR_CBLK_ASSERT(sizeof(cblk_arw_status_t) == 24);
LUNAR_CBLK_ASSERT(sizeof(cblk_io_t) == 72);
LUNAR_CBLK_ASSERT(sizeof(chunk_attrs_t) == 544);
LUNAR_CBLK_ASSERT(sizeof(chunk_stats_t) == 400);
#undef LUNAR_CBLK_ASSERT
#endif
#endif

#ifdef __cplusplus
}
#endif
#endif
