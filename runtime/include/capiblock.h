/* SPDX-License-Identifier: Apache-2.0
 * capiblock.h: the block interface of CAPI Flash, as Lunar's libcflsh_block offers it.
 *
 * A *chunk* is what a program opened: a whole physical LUN (a file, a block device, or any URI that Lunar knows, `man
 * 3 cblk_open`), or a virtual LUN that lives as long as the chunk. Unit of every size and address: the block, 4096
 * bytes.
 *
 * Conventions
 *   errors      -1 (or NULL_CHUNK_ID) with errno; each call lists its own in addition to those that all share:
 *               EINVAL  no such chunk (never opened, closed, or a virtual one that a forked child has not cloned), a
 *                       NULL argument, an address < 0 or beyond the end, more blocks than one transfer may have, an
 *                       access that the mode at open does not allow
 *   results     I/O calls give the number of blocks moved
 *   threads     every call may be used from any thread, any number at once, also on one chunk. A chunk shares no lock
 *               with another one. The calls are not async-signal-safe, and are no cancellation points to rely on
 *   time        an I/O that is not done within CFLSH_BLK_TIMEOUT (default 15 s; 0: no limit; see `man 3 cblk_open`)
 *               fails with ETIMEDOUT. The device may carry it out later all the same, but nothing of the caller's is
 *               touched any more: data move through a buffer of the library's and reach the caller's only in a call
 *               that succeeds (of a RAID 0: in shares that do);
 *               what a late write writes is what the buffer held at the call, and a later write or unmap of the same
 *               blocks through the chunk (or its group) waits for it (and may itself fail with ETIMEDOUT for it). Until
 *               the device releases it, its command stays taken, a shrinking cblk_set_size fails and cblk_close waits,
 *               both with EBUSY. Not bounded: opening and sizing. Devices that are memory (pmem:) need no
 *               limit
 *   ownership   buffers, tags and status structures stay the caller's. Of an asynchronous command they must live until
 *               its result was fetched (or its status filled). A buffer may have any alignment
 *   fork        a chunk of a physical LUN works on in a forked child by itself; a virtual one after
 *               cblk_clone_after_fork(). What was under way at fork() is the parent's
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

typedef int chunk_id_t;           /* a chunk; > 0, never used again within a process */
typedef int chunk_cg_id_t;        /* a group of chunks; > 0, never used again; not a chunk_id_t */
typedef int chunk_r0_id_t;        /* a group that is a RAID 0 */
typedef uint64_t chunk_ext_arg_t; /* chunks of a group, with CBLK_OPN_GROUP; else pass 0 */
typedef off_t cflash_offset_t;    /* a block's number, from 0 */

#define NULL_CHUNK_ID (-1)
#define NULL_CHUNK_CG_ID (-1)

/* ---- flags ---- */
#define CBLK_SCRUB_DATA_FLG 1        /* close, set_size: what a virtual LUN gives up is overwritten with zeros first */

#define CBLK_OPN_SCRUB_DATA 1        /* as CBLK_SCRUB_DATA_FLG, whatever way the chunk comes to its end by cblk_close */
#define CBLK_OPN_VIRT_LUN 2          /* a virtual LUN on the device instead of the whole device */
#define CBLK_OPN_NO_INTRP_THREADS 4  /* no background thread for this chunk: no CBLK_ARW_USER_STATUS_FLAG */
#define CBLK_OPN_SHARE_CTXT 8        /* accepted; chunks always have rings of their own */
#define CBLK_OPN_RESERVE 0x10        /* physical: no other may have it open, as a chunk or as a LUN of Lunar */
#define CBLK_OPN_FORCED_RESERVE 0x20 /* physical: as RESERVE where possible; opens also one in use, and a device that
                                        carries Lunar's own format too, which I/O may then destroy */
#define CBLK_OPN_MPIO_FO 0x40        /* the path names several paths to one device (d1:d2..): I/O fails over. Not with a
                                        reservation */
#define CBLK_OPN_GROUP 0x100         /* cblk_open: a group of `ext` chunks; see cblk_cg_open */

#define CBLK_GROUP_ID 0x100          /* cblk_cg_open: several chunks on one physical LUN, used in turns */
#define CBLK_GROUP_RAID0 0x200       /* cblk_cg_open: one chunk a device, striped block by block */
#define CBLK_GROUP_MASK 0x300        /* either, in a call that is not of cblk_cg_: the id is a group's. cblk_aread,
                                        cblk_awrite, cblk_aunmap and cblk_aresult refuse it: their tags are a
                                        chunk's */

#define CBLK_ARW_WAIT_CMD_FLAGS 1    /* wait for a free command instead of EWOULDBLOCK */
#define CBLK_ARW_USER_TAG_FLAG 2     /* *tag is the caller's own number */
#define CBLK_ARW_USER_STATUS_FLAG 4  /* the result goes to *status in the background; nothing to fetch */

#define CBLK_ARESULT_NEXT_TAG 1      /* any command that is done, the oldest first; its tag goes to *tag */
#define CBLK_ARESULT_BLOCKING 2      /* wait until it is done */
#define CBLK_ARESULT_USER_TAG 4      /* *tag is a tag of the caller's (CBLK_ARW_USER_TAG_FLAG) */
#define CBLK_ARESULT_NO_HARVEST 8    /* do not ask the device, look at what is known to be done (ignored with
                                        BLOCKING) */

#define CBLK_LISTIO_WAIT_ISSUE_CMD 1 /* wait for free commands */
#define CBLK_IO_USER_TAG 1           /* cblk_io_t.flags: .tag is the caller's own number */
#define CBLK_IO_USER_STATUS 2        /* .stat is filled in the background */
#define CBLK_IO_PRIORITY_REQ 4       /* accepted; has no effect */
#define CBLK_IO_TYPE_READ 1          /* cblk_io_t.request_type */
#define CBLK_IO_TYPE_WRITE 2
#define CBLK_IO_TYPE_UNMAP 3

#define CFLSH_ATTR_UNMAP 1           /* chunk_attrs_t.flags1: cblk_unmap works here */

/* ---- structures ---- */
typedef enum {
  CBLK_ARW_STATUS_PENDING = 0, /* under way */
  CBLK_ARW_STATUS_SUCCESS = 1, /* done; blocks_transferred is set */
  CBLK_ARW_STATUS_INVALID = 2, /* cblk_listio: this entry is why the call was refused; fail_errno is set */
  CBLK_ARW_STATUS_FAIL = 3     /* failed, or refused before it started; fail_errno is set */
} cblk_status_type_t;

/* The result of a command. `status` changes last: read it first (with acquire order), then the rest. */
typedef struct cblk_arw_status_s {
  cblk_status_type_t status;
  size_t blocks_transferred;
  int fail_errno;
} cblk_arw_status_t;

/* One I/O of cblk_listio. The caller fills all but `stat` (and `tag`, without CBLK_IO_USER_TAG). */
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
  uint64_t flags1; /* CFLSH_ATTR_... */
  uint64_t flags2; /* 0 */
  uint32_t block_size;        /* bytes: 4096 */
  uint32_t num_paths;         /* ways to the device */
  uint64_t max_transfer_size; /* blocks of one I/O at most */
#ifdef __GNUC__
  __extension__
#endif
  union {
    uint64_t data[64]; /* reserved: 0 */
  };
} chunk_attrs_t;

/* Counters of a chunk since it was opened (in a forked child: since fork). Those of hardware that is not here are 0. */
typedef struct chunk_stats_s {
  uint32_t block_size; /* bytes: 4096 */
  uint32_t num_paths;
  uint64_t max_transfer_size; /* blocks */
  uint64_t num_reads;         /* cblk_read calls that moved data */
  uint64_t num_writes;
  uint64_t num_areads;        /* asynchronous reads, done */
  uint64_t num_awrites;
  uint32_t num_act_reads; /* under way now */
  uint32_t num_act_writes;
  uint32_t num_act_areads; /* issued and not yet fetched (with a status of the caller's: not yet done) */
  uint32_t num_act_awrites;
  uint32_t max_num_act_writes; /* most at one time */
  uint32_t max_num_act_reads;
  uint32_t max_num_act_awrites;
  uint32_t max_num_act_areads;
  uint64_t num_blocks_read;
  uint64_t num_blocks_written;
  uint64_t num_errors;           /* commands that failed */
  uint64_t num_aresult_no_cmplt; /* cblk_aresult found nothing done */
  uint64_t num_retries;
  uint64_t num_timeouts;          /* I/Os that were not done in time: ETIMEDOUT */
  uint64_t num_fail_timeouts;     /* the same */
  uint64_t num_no_cmds_free;      /* a command was wanted and none was free */
  uint64_t num_no_cmd_room;       /* the device's ring was full; the command waited in the library */
  uint64_t num_no_cmds_free_fail; /* ... and the call failed for it */
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
  uint64_t num_success_threads; /* background threads started */
  uint64_t num_failed_threads;  /* ... that could not be started */
  uint64_t num_canc_threads;
  uint64_t num_fail_canc_threads;
  uint64_t num_fail_detach_threads;
  uint64_t num_active_threads;
  uint64_t max_num_act_threads;
  uint64_t num_cache_hits;      /* reads answered from the chunk's cache */
  uint64_t num_reset_contexts;
  uint64_t num_reset_contxt_fails;
  uint32_t primary_path_id;
  uint64_t num_path_fail_overs;
} chunk_stats_t;

/* A command of a group: of which of its chunks, and its tag there. */
typedef struct cflsh_cg_tag_s {
  chunk_id_t id;
  int tag;
} cflsh_cg_tag_t;

/* ---- chunks ---- */

/* Nothing needs to be set up or torn down; both give 0. For programs that call them. */
int cblk_init(void *arg, uint64_t flags);
int cblk_term(void *arg, uint64_t flags);

/* Opens a chunk. Blocks; allocates.
 *   path              a regular file or a block device, or a URI: file:, nvme:, pmem:, capi:, mem:SIZE, sim:SIZE,
 *                     stripe:, paths:
 *   max_num_requests  asynchronous commands that may exist at one time; <= 0: 64; at most 8192 (else ENOMEM)
 *   mode              O_RDONLY, O_WRONLY or O_RDWR
 *   ext               0; with CBLK_OPN_GROUP the number of chunks
 *   flags             CBLK_OPN_...
 * Physical chunks of any number of processes share a device, and so do virtual ones; the two kinds do not mix (EBUSY,
 * after a second). One after the other a device serves both: a virtual open formats a device whose head is all zeros,
 * and no other (EEXIST); a physical open for writing ends the format, and finds zeros, where no LUN is open and none
 * has a name (else EBUSY: `lunar lun list`). A read-only one leaves it.
 * Returns the chunk, or NULL_CHUNK_ID: EINVAL, ENOENT, EACCES, EBUSY, EEXIST, ENOMEM, ENOSPC, EROFS, EMFILE, ... */
chunk_id_t cblk_open(const char *path, int max_num_requests, int mode, chunk_ext_arg_t ext, int flags);

/* Closes it; a virtual LUN is gone. Waits up to 5 s until no command is under way and every result is fetched, then
 * EBUSY (the chunk stays open). Meanwhile no command is free: EWOULDBLOCK. flags: 0 or CBLK_SCRUB_DATA_FLG; a virtual
 * LUN that was open at a fork is not scrubbed, by none of both sides: the other may still use it. EINVAL: also when it
 * is closed already. */
int cblk_close(chunk_id_t chunk, int flags);

/* Blocks of the LUN that the chunk lies on / of the chunk. A virtual chunk has 0 until cblk_set_size. */
int cblk_get_lun_size(chunk_id_t chunk, size_t *nblocks, int flags);
int cblk_get_size(chunk_id_t chunk, size_t *nblocks, int flags);

/* Resizes a virtual chunk: growing keeps what is there, shrinking drops the tail. (size_t)-1: all that remains of the
 * device.
 * Blocks. flags: 0 or CBLK_SCRUB_DATA_FLG. EINVAL: a physical chunk, or more than the whole LUN has; ENOMEM: more
 * than remains (nothing is changed): the format of virtual LUNs takes some, 2 MiB of devices up to 16 GiB, so 1 GiB
 * fits on 1026 MiB; EBUSY: shrinking with asynchronous commands under way, late I/O, or blocking I/O that does not end
 * within 5 s (blocking I/O of the part that stays goes on meanwhile), or while another process uses the LUN: the one
 * that opened it, or a forked child that cloned it, until that closes it or ends. Scrubbing comes first: where
 * shrinking then fails, the size stays, the tail is zeros. */
int cblk_set_size(chunk_id_t chunk, size_t nblocks, int flags);

int cblk_get_stats(chunk_id_t chunk, chunk_stats_t *stats, int flags);
int cblk_get_attrs(chunk_id_t chunk, chunk_attrs_t *attrs, int flags);

/* Moves nblocks (at most max_transfer_size; 1 on a virtual chunk) between buf and the chunk, here and now. cblk_unmap
 * gives blocks back: they read as zeros (a file keeps its space); buf is not looked at but must not be NULL. flags: 0.
 * buf must be memory that can be read or written: another address ends the program or fails with EFAULT, as it comes.
 * Return the blocks moved (0 for 0), or -1: EIO and what else the device says; cblk_unmap: EPROTONOSUPPORT where the
 * device cannot. */
int cblk_read(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_write(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int flags);
int cblk_unmap(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int flags);

/* The same, started only. *tag is set (or taken, CBLK_ARW_USER_TAG_FLAG) for cblk_aresult; `status` is used with
 * CBLK_ARW_USER_STATUS_FLAG only. Return 0: issued; > 0: that many blocks are done already (from the cache), there is
 * no result to fetch; -1: EWOULDBLOCK no free command, EBUSY none became free in time (CBLK_ARW_WAIT_CMD_FLAGS;
 * CFLSH_BLK_TIMEOUT or 5 s; 0.2 s while no I/O is under way and hardly a result is fetched: the threads that could
 * fetch wait too). Allocate nothing. */
int cblk_aread(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int *tag, cblk_arw_status_t *status,
               int flags);
int cblk_awrite(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int *tag, cblk_arw_status_t *status,
                int flags);
int cblk_aunmap(chunk_id_t chunk, void *buf, cflash_offset_t lba, size_t nblocks, int *tag, cblk_arw_status_t *status,
                int flags);

/* Fetches a result: of *tag, or with CBLK_ARESULT_NEXT_TAG of the oldest that is done. Return > 0: done, that many
 * blocks (also in *status), and the tag is free; 0: not done (*tag is -1 with NEXT_TAG); -1: the command failed with
 * this errno (EIO also for one of 0 blocks, and where the device says what follows here), or EINVAL no such tag, ENOMSG
 * the tag is free (fetched before, or its status went to the caller's structure), ENOENT nothing active (NEXT_TAG),
 * ETIMEDOUT not done in time: the command is over and its tag free. The id may be that of a group's tag. */
int cblk_aresult(chunk_id_t chunk, int *tag, uint64_t *status, int flags);

/* Issues the I/Os of `issue`, then waits for those of `wait` (which are in `issue` or were issued before).
 *   pending      issued by an earlier call; looked at again. Those that are not CBLK_ARW_STATUS_PENDING are skipped
 *   wait         entries may be copies, as those of pending may, also from before the issue: one stands for the I/O
 *                of the same type, buf, lba and nblocks (and CBLK_IO_USER_TAG and its tag); the tag is where that is
 *                looked for first, and tells I/Os apart that agree in these. stat and tag are set in all. An entry that
 *                stands for no I/O fails with ENOMSG
 *   completion   *ncompletion pointers to structures of the caller's. Those of pending that are done now, and those of
 *                issue that were refused or answered at once, are copied there, from the first on, but for what is in
 *                `wait` and what has CBLK_IO_USER_STATUS; *ncompletion becomes their number. A later call reports
 *                what is done a little later
 *   timeout_us   for the waiting, also that for free commands (CBLK_LISTIO_WAIT_ISSUE_CMD; an I/O that finds none in
 *                time has EBUSY in its stat); 0: no limit
 * Every I/O's own result is in its stat: CBLK_ARW_STATUS_FAIL also for one that was refused. Returns 0, or -1: EINVAL
 * bad lists (nothing issued): all of them empty, a NULL entry or ncompletion, an I/O without buf or of no known type,
 * one to wait for with CBLK_IO_USER_STATUS (their stat is CBLK_ARW_STATUS_INVALID), nwait + *ncompletion < nissue +
 * npending; ETIMEDOUT (what is done by then is reported). */
int cblk_listio(chunk_id_t chunk, cblk_io_t *issue[], int nissue, cblk_io_t *pending[], int npending, cblk_io_t *wait[],
                int nwait, cblk_io_t *completion[], int *ncompletion, uint64_t timeout_us, int flags);

/* In a forked child: makes an inherited virtual chunk usable, with at most the parent's access mode. The LUN is then
 * one and the same for both: either may make it larger, neither may shrink it while the other has it open (EBUSY). On a
 * physical chunk there is nothing to do. EBUSY: commands were under way at fork (or are, in a process that did not
 * fork), or not fetched; one that was told ETIMEDOUT is not, but a late write may yet land; EINVAL: the mode exceeds
 * the parent's. */
int cblk_clone_after_fork(chunk_id_t chunk, int mode, int flags);

/* ---- groups of chunks ----
 * CBLK_GROUP_ID: num_chunks chunks on one physical LUN; I/O goes to them in turns. CBLK_GROUP_RAID0: path is d1:d2:..
 * (1 to 8 devices), or RAID0, RAID0:* or RAID0:N for those that LUNAR_RAID0_DEVICES names (N of them, else ENODEV);
 * num_chunks must be above 0 and is not looked at otherwise; block b is block b / n of device b % n; the size is n
 * times that of the smallest. max_num_requests is that of each chunk. How a path with URIs in it is cut: `man 3
 * cblk_cg_open`. The calls are those of a chunk, but:
 *   cblk_cg_a*            of a RAID 0 move at most one block (EINVAL)
 *   cblk_cg_aresult       with CBLK_ARESULT_NEXT_TAG: 0 and a tag of -1 when nothing is active (ENOENT with
 *                         CBLK_ARESULT_BLOCKING), ETIME instead of ETIMEDOUT
 *   cblk_cg_set_size      RAID 0 of virtual chunks only; not 0; rounded up to a multiple of the devices
 *   cblk_cg_get_lun_size  ENODEV instead of EINVAL for an id that is no group's
 * Other than in IBM's library: a blocking call of a RAID 0 may move many blocks, which lie as every block does (IBM's
 * takes all from the first one's device), any path is cut at its colons, the cblk_cg_ calls need no flag, and the size
 * counts the smallest device. */
chunk_cg_id_t cblk_cg_open(const char *path, int max_num_requests, int mode, int num_chunks, chunk_ext_arg_t ext,
                           int flags);
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
int cblk_cg_aread(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks, cflsh_cg_tag_t *tag,
                  cblk_arw_status_t *status, int flags);
int cblk_cg_awrite(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks, cflsh_cg_tag_t *tag,
                   cblk_arw_status_t *status, int flags);
int cblk_cg_aunmap(chunk_cg_id_t group, void *buf, cflash_offset_t lba, size_t nblocks, cflsh_cg_tag_t *tag,
                   cblk_arw_status_t *status, int flags);
int cblk_cg_aresult(chunk_cg_id_t group, cflsh_cg_tag_t *tag, uint64_t *status, int flags);
int cblk_cg_clone_after_fork(chunk_cg_id_t group, int mode, int flags);

/* IBM's daemon that watches error rates, which is not here (IBM declares these in a header of the daemon's): init and
 * term give 0, the others -1 with ENOSYS. Any thread. */
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
