/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lunar.h - memory that extends onto a LUN. C API of liblunar.
 *
 * A process has one tier: a DRAM budget and a LUN (flash) behind it. Memory obtained here is
 * ordinary memory (any pointer, any system call); its cold pages live on the LUN and come back when
 * touched.
 *
 * Units: bytes, unless a name ends in _pages (system pages, lunar_page_bytes()).
 * Errors: functions that return int return 0 on success or a negative errno value; those that
 * return a pointer return NULL and set errno.
 * Threads: every function may be called from any thread at any time after lunar_init, unless its
 * comment says otherwise.
 * Signals: no function is async-signal-safe.
 * fork: a child keeps its memory, and its own pager serves it.
 * Sources: the calls follow malloc(3), madvise(2), mlock(2); userfaultfd(2) is the mechanism.
 */
#ifndef LUNAR_LUNAR_H
#define LUNAR_LUNAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LUNAR_API __attribute__((visibility("default")))
#else
#define LUNAR_API
#endif
#ifdef __cplusplus
#define LUNAR_NOEXCEPT noexcept
#else
#define LUNAR_NOEXCEPT
#endif

#define LUNAR_VERSION_MAJOR 0
#define LUNAR_VERSION_MINOR 2

/* ---- the tier -------------------------------------------------------------------------------- */

/* Zero-initialise, then set `struct_size` and the members you need. Strings are copied. */
typedef struct lunar_config {
  size_t struct_size;  /* sizeof(struct lunar_config): lets the structure grow */
  uint64_t dram_bytes; /* DRAM budget, a hard cap on resident tiered pages, frames and tables: at
                          least 16 MiB, at most the memory of the machine and the limit of its
                          memory cgroups; 0: a quarter of the available memory */
  uint64_t lun_bytes;  /* LUN space; 0: 8 times the budget, within the free space */
  const char *lun;     /* PATH, directory, block device or URI; NULL: /var/tmp */
  const char *options; /* further options, "key=value,..." (`lunar help options`), or NULL */
} lunar_config;

/* Starts the tier of this process. If config is NULL, the LUNAR_* environment and the config file
 * decide; otherwise members that are set in config override them. -EEXIST: already started (also by
 * LD_PRELOAD; the API then uses that tier). -E2BIG: a member is set that this version of the
 * library does not know. Other errors: see lunar_error(). Before this call and after
 * lunar_shutdown, the calls below fail with EINVAL, those that allocate (lunar_malloc, ...) with
 * ENOMEM. */
LUNAR_API int lunar_init(const lunar_config *config) LUNAR_NOEXCEPT;
/* Ends the tier. -EBUSY: regions or allocations of this API exist, or the tier is LD_PRELOAD's.
 * -EINVAL: not started. */
LUNAR_API int lunar_shutdown(void) LUNAR_NOEXCEPT;
/* One line about the last failure of lunar_init or lunar_region_create, or of the first allocation,
 * in this thread: what failed, where, and how to fix it. "" if nothing failed. The text belongs to
 * the library and is valid until the next failure in this thread. */
LUNAR_API const char *lunar_error(void) LUNAR_NOEXCEPT;
/* The size of a system page in bytes. May be called before lunar_init. */
LUNAR_API size_t lunar_page_bytes(void) LUNAR_NOEXCEPT;
/* Changes the DRAM budget at run time. To shrink it, pages are evicted; the call returns when the
 * new cap holds. -EINVAL: less or more than lunar_config.dram_bytes may be. -EBUSY: either more
 * than half of `bytes` is pinned, or the page tables promised to what this process tree has
 * committed would not fit beside buffers and pins, and the cap stays as it was; or the resident
 * pages did not leave DRAM within a minute, and the new cap stays in force. */
LUNAR_API int lunar_set_dram(uint64_t bytes) LUNAR_NOEXCEPT;

/* ---- allocation: as malloc(3), but of tiered memory ------------------------------------------ */
/* NULL with errno: ENOMEM if the LUN has no space left to reserve; lunar_aligned_alloc: EINVAL if
 * the alignment is not a power of two. lunar_realloc of size 0 frees and returns NULL. lunar_free
 * and lunar_realloc take pointers that these calls returned, or NULL; lunar_free of any other
 * pointer ends the program with a message. */
LUNAR_API void *lunar_malloc(size_t size) LUNAR_NOEXCEPT __attribute__((malloc, alloc_size(1)));
LUNAR_API void *lunar_calloc(size_t count, size_t size) LUNAR_NOEXCEPT
    __attribute__((malloc, alloc_size(1, 2)));
LUNAR_API void *lunar_realloc(void *pointer, size_t size) LUNAR_NOEXCEPT;
LUNAR_API void *lunar_aligned_alloc(size_t alignment, size_t size) LUNAR_NOEXCEPT
    __attribute__((malloc));
LUNAR_API void lunar_free(void *pointer) LUNAR_NOEXCEPT;                /* does nothing if NULL */
LUNAR_API size_t lunar_usable_size(const void *pointer) LUNAR_NOEXCEPT; /* in bytes; 0 if NULL */

/* ---- regions: page-granular ranges that the caller owns -------------------------------------- */
/* Creates a zero-filled tiered range of `bytes` bytes (rounded up to pages). NULL with errno ENOMEM
 * (lunar_error() says of what), or EINVAL (0 bytes, or not started). Owned by the caller until
 * lunar_region_destroy.
 * There may be 65,536 regions; each takes four of the mappings that vm.max_map_count allows (65,530
 * unless raised). */
LUNAR_API void *lunar_region_create(size_t bytes) LUNAR_NOEXCEPT;
/* `address` and `bytes` must be those of the creation. -EINVAL: there is no such region. */
LUNAR_API int lunar_region_destroy(void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Returns 1 if the address is in tiered memory, otherwise 0. */
LUNAR_API int lunar_is_tiered(const void *address) LUNAR_NOEXCEPT;

/* ---- hints and range operations: these calls take no page faults --------------------------------
 * A range must be within one region. -EINVAL: it is not, or it is not tiered memory. Pages that a
 * range covers partly are included, except by lunar_discard. Calls that read may fail with -ENOMEM:
 * no memory for their buffers. */
typedef struct lunar_range {
  const void *address;
  size_t bytes;
} lunar_range;

typedef enum lunar_advice {
  LUNAR_NORMAL = 0,
  LUNAR_COLD = 1,       /* will not be used soon: evict first */
  LUNAR_HOT = 2,        /* used often: evict last */
  LUNAR_SEQUENTIAL = 3, /* used from low to high addresses: read ahead from the first fault on; when
                           DRAM is short, evict the pages already passed first */
  LUNAR_RANDOM = 4      /* read nothing ahead */
} lunar_advice;

/* -EINVAL: also if `advice` is none of these values. COLD and HOT act on the pages that are
 * resident now. SEQUENTIAL and RANDOM remain in force until NORMAL revokes them; they apply to
 * pieces of 64 pages of which the range covers at least half. */
LUNAR_API int lunar_advise(const void *address, size_t bytes, lunar_advice advice) LUNAR_NOEXCEPT;
/* Reads the range into DRAM with many I/Os in flight; returns when it is resident. -EIO: a page
 * could not be read (touching it raises SIGBUS). */
LUNAR_API int lunar_touch(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* The same for scattered ranges, in one batch (of 64 or more for best effect). Pages that do not
 * fit into the budget are left out. -EINVAL: one of the ranges is not tiered memory; nothing was
 * read. -EIO: a page could not be read; the others were. */
LUNAR_API int lunar_prefetch(const lunar_range *ranges, size_t count) LUNAR_NOEXCEPT;
/* The range becomes zeros; its DRAM and LUN space are freed. Only whole pages inside the range.
 * Pinned pages stay pinned. */
LUNAR_API int lunar_discard(void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Makes the range resident until it is unpinned. Pins do not nest. -ENOMEM: more than half of the
 * budget would be pinned. -EIO: as for lunar_touch. After an error, earlier pins in the range
 * stay, and if there were any, new ones may stay: unpin the range. */
LUNAR_API int lunar_pin(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Pages that are not pinned are ignored. */
LUNAR_API int lunar_unpin(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Writes the range to the LUN and drops it from DRAM now, except for pinned pages. Returns the
 * number of pages evicted, or a negative errno value. */
LUNAR_API int64_t lunar_evict(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Declares that this process lets devices write into tiered memory (io_uring registered buffers,
 * O_DIRECT, RDMA). The runtime detects most cases itself; this call makes sure. It cannot be
 * undone. */
LUNAR_API void lunar_note_pinning(void) LUNAR_NOEXCEPT;

/* ---- statistics ------------------------------------------------------------------------------ */
typedef struct lunar_stats {
  size_t struct_size; /* set by the caller: sizeof(struct lunar_stats) */
  uint64_t page_bytes;
  uint64_t dram_budget_bytes; /* the cap */
  uint64_t dram_used_bytes;   /* charged against it by this process: resident + frames + tables */
  uint64_t resident_bytes;    /* tiered pages in DRAM */
  uint64_t resident_peak_bytes;
  uint64_t committed_bytes; /* promised to the program */
  uint64_t evicted_bytes;   /* content that is not in DRAM: on the LUN, or being written to it */
  uint64_t lun_capacity_bytes;
  uint64_t lun_used_bytes; /* slots allocated */
  uint64_t pinned_bytes;
  /* since the start, in pages unless stated otherwise */
  uint64_t faults;         /* messages answered */
  uint64_t zero_fills;     /* pages touched for the first time */
  uint64_t major_faults;   /* pages read from the LUN on a fault */
  uint64_t second_chances; /* faults answered from frames */
  uint64_t prefetched;     /* pages that read-ahead, lunar_prefetch or lunar_touch brought in */
  uint64_t evictions;      /* pages dropped from DRAM */
  uint64_t evicted_clean;  /* of these, without a write */
  uint64_t evicted_zero;   /* of these, all zeros: no slot needed */
  uint64_t lun_read_bytes;
  uint64_t lun_written_bytes;
  uint64_t read_errors; /* I/Os that failed or did not match their hash (before retry) */
  uint64_t write_errors;
  uint64_t poisoned;     /* pages given up */
  uint64_t budget_waits; /* faults that had to wait for DRAM */
  uint64_t fork_count;
  uint64_t fixed_bytes;    /* of the cap, what cannot hold tiered pages: frames, tables, reserve */
  uint64_t lun_free_bytes; /* LUN space that can still be promised to this process */
  uint64_t lun_forked_bytes; /* promised to the other processes of the tree: forked children */
} lunar_stats;

/* The content of the file that `lunar run --stats-file PATH` (LUNAR_STATS_FILE, the key stats_file)
 * keeps up to date: this header, then struct lunar_stats, both in the byte order of the host. Read
 * the sequence, the values you need, and the sequence again: if both are the same even number,
 * nothing changed in between. */
typedef struct lunar_stats_file_header {
  char magic[8];        /* "LUNARST1" */
  uint32_t stats_bytes; /* size of the struct lunar_stats that follows: a later version may have
                           more members */
  uint32_t pid;
  uint64_t sequence;   /* odd while the file is being written */
  uint64_t updated_ns; /* CLOCK_MONOTONIC */
  uint8_t reserved[32];
} lunar_stats_file_header;

/* Fills in *stats up to stats->struct_size, or up to the size that this library knows, and sets
 * struct_size to the number of bytes that it filled. -EINVAL: not started, stats is NULL, or
 * struct_size is less than the size of that member. */
LUNAR_API int lunar_get_stats(lunar_stats *stats) LUNAR_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif /* LUNAR_LUNAR_H */
