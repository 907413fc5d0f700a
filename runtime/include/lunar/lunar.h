/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lunar.h - memory that extends onto a LUN. C API of liblunar.
 *
 * A process has one tier: a DRAM budget and a LUN (flash) behind it. Memory obtained here is ordinary memory (any
 * pointer, any system call); its cold pages live on the LUN and come back when touched.
 *
 * Units: bytes, unless a name ends in _pages (system pages, lunar_page_bytes()).
 * Errors: functions that return int give 0 on success or a negative errno value; pointers are NULL with errno set.
 * Threads: every function may be called from any thread at any time after lunar_init, unless its comment says
 * otherwise.
 * Signals: none of these is async-signal-safe. fork: a child keeps its memory and is served by a pager of its own.
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

/* ---- the tier ---------------------------------------------------------------------------------------------------- */

/* Zero-initialise, set `struct_size`, then what is wanted. Strings are copied. */
typedef struct lunar_config {
  size_t struct_size;    /* sizeof(struct lunar_config): lets the structure grow */
  uint64_t dram_bytes;   /* DRAM budget, a hard cap on resident tiered pages, frames and tables: at least 16 MiB, at
                            most what the machine has; 0: a quarter of what is available */
  uint64_t lun_bytes;    /* LUN space; 0: 8 times the budget, within the free space */
  const char *lun;       /* PATH, directory, block device or URI; NULL: /var/tmp */
  const char *options;   /* further options, "key=value,..." by the keys of `lunar help options`, or NULL */
} lunar_config;

/* Starts the tier of this process. config NULL: the LUNAR_* environment and the config file decide; otherwise what is
 * set in config comes first. -EEXIST: already started (also by LD_PRELOAD; then the API uses that tier). -E2BIG: a
 * member is set that this version of the library does not know. Other errors: see lunar_error(). Before it and after
 * lunar_shutdown calls below fail with EINVAL, lunar_malloc and its like with ENOMEM. */
LUNAR_API int lunar_init(const lunar_config *config) LUNAR_NOEXCEPT;
/* Ends it. -EBUSY while regions or allocations of this API exist, or where it is LD_PRELOAD's. -EINVAL: not started. */
LUNAR_API int lunar_shutdown(void) LUNAR_NOEXCEPT;
/* One line on the last failure of lunar_init, or of the first allocation, in this thread ("" when none): what, where,
 * how to fix it. The library's text: it is good until the next failure in this thread. */
LUNAR_API const char *lunar_error(void) LUNAR_NOEXCEPT;
/* Bytes of a system page. Also before lunar_init. */
LUNAR_API size_t lunar_page_bytes(void) LUNAR_NOEXCEPT;
/* Changes the DRAM budget at run time; shrinking returns when the new cap holds (evicts). -EINVAL: less or more than
 * lunar_config.dram_bytes may be. -EBUSY: more than half of `bytes` is pinned, and the cap stays as it was; or what is
 * resident did not leave DRAM within a minute, and the new cap stays. */
LUNAR_API int lunar_set_dram(uint64_t bytes) LUNAR_NOEXCEPT;

/* ---- allocation: as malloc(3), from tiered memory ---------------------------------------------------------------- */
/* NULL with errno: ENOMEM when the LUN cannot promise the space; lunar_aligned_alloc: EINVAL when the alignment is no
 * power of two. lunar_realloc of size 0 frees and returns NULL. lunar_free and lunar_realloc take what these calls
 * returned, or NULL; lunar_free of anything else ends the program with a line. */
LUNAR_API void *lunar_malloc(size_t size) LUNAR_NOEXCEPT __attribute__((malloc, alloc_size(1)));
LUNAR_API void *lunar_calloc(size_t count, size_t size) LUNAR_NOEXCEPT __attribute__((malloc, alloc_size(1, 2)));
LUNAR_API void *lunar_realloc(void *pointer, size_t size) LUNAR_NOEXCEPT;
LUNAR_API void *lunar_aligned_alloc(size_t alignment, size_t size) LUNAR_NOEXCEPT __attribute__((malloc));
LUNAR_API void lunar_free(void *pointer) LUNAR_NOEXCEPT;               /* NULL is fine */
LUNAR_API size_t lunar_usable_size(const void *pointer) LUNAR_NOEXCEPT;   /* bytes; 0 of NULL */

/* ---- regions: page-granular ranges of one's own ------------------------------------------------------------------ */
/* A zero-filled tiered range of `bytes` (rounded up to pages). NULL with errno ENOMEM, EINVAL (0 bytes, or not
 * started). Owned by the caller until lunar_region_destroy. */
LUNAR_API void *lunar_region_create(size_t bytes) LUNAR_NOEXCEPT;
/* `address`, `bytes` exactly as created. -EINVAL: not such a region. */
LUNAR_API int lunar_region_destroy(void *address, size_t bytes) LUNAR_NOEXCEPT;
/* 1 when the address is tiered memory, else 0. */
LUNAR_API int lunar_is_tiered(const void *address) LUNAR_NOEXCEPT;

/* ---- hints and range operations: no page fault is taken by these -------------------------------------------------
 * A range lies in one region. -EINVAL: it does not, or is not tiered memory. Pages that it covers partly are included,
 * but by lunar_discard. What reads may fail with -ENOMEM: no memory for its buffers. */
typedef struct lunar_range {
  const void *address;
  size_t bytes;
} lunar_range;

typedef enum lunar_advice {
  LUNAR_NORMAL = 0,
  LUNAR_COLD = 1,        /* will not be used soon: evict first */
  LUNAR_HOT = 2,         /* used often: evict last */
  LUNAR_SEQUENTIAL = 3,  /* from low to high addresses: read ahead from the first fault on; when DRAM is short, evict
                            what lies behind first */
  LUNAR_RANDOM = 4       /* read nothing ahead */
} lunar_advice;

/* -EINVAL: also advice that is none of these. COLD and HOT act on what is resident now. SEQUENTIAL and RANDOM hold
 * until NORMAL takes them back, for pieces of 64 pages that are covered at least by half. */
LUNAR_API int lunar_advise(const void *address, size_t bytes, lunar_advice advice) LUNAR_NOEXCEPT;
/* Brings the range in, at queue depth; returns when it is resident. -EIO: a page could not be read (touching it is
 * SIGBUS). */
LUNAR_API int lunar_touch(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* The same for scattered ranges, in one batch (64 and more pay best). What does not fit into the budget is left out.
 * -EINVAL: one of them is not tiered memory, and none is brought in. -EIO: the others are brought in. */
LUNAR_API int lunar_prefetch(const lunar_range *ranges, size_t count) LUNAR_NOEXCEPT;
/* Contents become zeros; DRAM and LUN space are freed. Only whole pages inside the range. Pinned pages stay pinned. */
LUNAR_API int lunar_discard(void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Resident until unpinned. Pins do not nest. -ENOMEM: more than half of the budget would be pinned. -EIO: as
 * lunar_touch; after an error other than -ENOMEM for that, the whole range is unpinned. */
LUNAR_API int lunar_pin(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* What is not pinned is passed over. */
LUNAR_API int lunar_unpin(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Writes the range out and drops it from DRAM now, but for what is pinned; returns pages evicted, or a negative
 * errno. */
LUNAR_API int64_t lunar_evict(const void *address, size_t bytes) LUNAR_NOEXCEPT;
/* Declares that this process lets devices write into tiered memory (io_uring registered buffers, O_DIRECT, RDMA). The
 * runtime finds most cases by itself; this is the certain way. Cannot be undone. */
LUNAR_API void lunar_note_pinning(void) LUNAR_NOEXCEPT;

/* ---- statistics -------------------------------------------------------------------------------------------------- */
typedef struct lunar_stats {
  size_t struct_size;            /* set by the caller: sizeof(struct lunar_stats) */
  uint64_t page_bytes;
  uint64_t dram_budget_bytes;    /* the cap */
  uint64_t dram_used_bytes;      /* charged against it by this process: resident + frames + tables */
  uint64_t resident_bytes;       /* tiered pages in DRAM */
  uint64_t resident_peak_bytes;
  uint64_t committed_bytes;      /* promised to the program */
  uint64_t evicted_bytes;        /* pages not in DRAM now that a touch brings back: on the LUN, or on their way there */
  uint64_t lun_capacity_bytes;
  uint64_t lun_used_bytes;       /* slots allocated */
  uint64_t pinned_bytes;
  /* since start, in pages unless said otherwise */
  uint64_t faults;               /* messages answered */
  uint64_t zero_fills;           /* pages first touched */
  uint64_t major_faults;         /* pages read from the LUN on a fault */
  uint64_t second_chances;       /* faults answered from frames */
  uint64_t prefetched;           /* pages read ahead or by prefetch/touch */
  uint64_t evictions;            /* pages dropped from DRAM */
  uint64_t evicted_clean;        /* of these without a write */
  uint64_t evicted_zero;         /* of these all zero: no slot */
  uint64_t lun_read_bytes;
  uint64_t lun_written_bytes;
  uint64_t read_errors;          /* I/Os that failed or did not match their hash (before retry) */
  uint64_t write_errors;
  uint64_t poisoned;             /* pages given up */
  uint64_t budget_waits;         /* faults that had to wait for DRAM */
  uint64_t fork_count;
  uint64_t fixed_bytes;          /* of the cap, what cannot hold tiered pages: frames, windows, tables, the reserve */
  uint64_t lun_free_bytes;       /* LUN space that can still be promised to this process */
  uint64_t lun_forked_bytes;     /* promised to the other processes of the tree: forked children */
} lunar_stats;

/* What `lunar run --stats-file PATH` (LUNAR_STATS_FILE, the key stats_file) keeps live: this header, then struct
 * lunar_stats, both in the byte order of the host. Read the sequence, what is wanted, and the sequence again: the same
 * even number twice means that nothing changed meanwhile. */
typedef struct lunar_stats_file_header {
  char magic[8];                 /* "LUNARST1" */
  uint32_t stats_bytes;          /* of the struct lunar_stats that follows: a later version may have more members */
  uint32_t pid;
  uint64_t sequence;             /* odd: being written */
  uint64_t updated_ns;           /* CLOCK_MONOTONIC */
  uint8_t reserved[32];
} lunar_stats_file_header;

/* Fills *stats up to stats->struct_size, or as far as this library knows it, and sets struct_size to the bytes that it
 * filled. -EINVAL: not started, stats NULL, or struct_size less than its own size. */
LUNAR_API int lunar_get_stats(lunar_stats *stats) LUNAR_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif /* LUNAR_LUNAR_H */
