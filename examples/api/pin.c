/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index that must never wait for the LUN, and records that may wait. The index is pinned, and
 * the records are prefetched in batches before their use. The statistics show that pinned pages
 * were never read from the LUN.
 *
 *   pin [RECORDS_MIB [DRAM_MIB]]     default: 256 MiB of records, 64 MiB of DRAM
 */
#include <errno.h>
#include <lunar/lunar.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD = 4096, BATCH = 128, MOST = 1 << 20 };

/* Parses a whole number above 0. Returns 0 if it is not one. */
static size_t number_of(const char* text) {
  char* end;
  unsigned long long number = strtoull(text, &end, 10);
  return end != text && *end == '\0' && text[0] != '-' && number <= MOST ? (size_t)number : 0;
}

static uint64_t next_random(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static lunar_stats stats_now(void) {
  lunar_stats stats = {.struct_size = sizeof(stats)};
  (void)lunar_get_stats(&stats);
  return stats;
}

static int fail(const char* what, int rc) {
  fprintf(stderr, "pin: %s: %s %s\n", what, strerror(rc < 0 ? -rc : errno), lunar_error());
  return 1;
}

/* Puts the records into an order of their own, which the index knows, and fills them. */
static void make_records(char* records, uint32_t* index, size_t count, uint64_t* random) {
  for (size_t i = 0; i < count; ++i) index[i] = (uint32_t)i;
  for (size_t i = count - 1; i > 0; --i) {
    size_t other = next_random(random) % (i + 1);
    uint32_t swap = index[i];
    index[i] = index[other];
    index[other] = swap;
  }
  for (uint32_t key = 0; key < count; ++key) {
    char* record = records + (size_t)index[key] * RECORD;
    /* Random content: pages of zeros would take no space on the LUN. */
    for (size_t at = 0; at < RECORD; at += sizeof(key)) {
      uint32_t word = at == 0 ? key : (uint32_t)next_random(random);
      memcpy(record + at, &word, sizeof(word));
    }
  }
}

/* Looks up a batch of records: in the pinned index first, then all records at once. */
static int look_up(const char* records, const uint32_t* index, size_t count, uint64_t* random) {
  lunar_range ranges[BATCH];
  uint32_t wanted[BATCH];
  for (int i = 0; i < BATCH; ++i) {
    wanted[i] = (uint32_t)(next_random(random) % count);
    ranges[i].address = records + (size_t)index[wanted[i]] * RECORD;
    ranges[i].bytes = RECORD;
  }
  int rc = lunar_prefetch(ranges, BATCH);
  if (rc < 0) return rc;
  for (int i = 0; i < BATCH; ++i) {
    uint32_t key;
    memcpy(&key, ranges[i].address, sizeof(key));
    if (key != wanted[i]) return -EBADMSG;
  }
  return 0;
}

static int usage(int code) {
  fputs("usage: pin [RECORDS_MIB [DRAM_MIB]]     default: 256 MiB of records, 64 MiB of DRAM\n",
        code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--help") == 0) return usage(0);
  size_t bytes = (argc > 1 ? number_of(argv[1]) : 256) << 20;
  size_t dram = (argc > 2 ? number_of(argv[2]) : 64) << 20;
  if (argc > 3 || bytes < RECORD || dram == 0) return usage(2);
  size_t count = bytes / RECORD;
  lunar_config config = {.struct_size = sizeof(config), .dram_bytes = dram};
  config.lun_bytes = 3 * bytes > dram ? 3 * bytes : dram; /* not less than the DRAM */
  int rc = lunar_init(&config);
  if (rc < 0 && rc != -EEXIST)
    return rc == -EPERM || rc == -ENOSYS ? (fail("lunar_init", rc), 77) : fail("lunar_init", rc);

  uint32_t* index = lunar_malloc(count * sizeof(*index));
  /* Aligned to pages, so that no record lies on two. */
  char* records = lunar_aligned_alloc(lunar_page_bytes(), bytes);
  if (index == NULL || records == NULL) return fail("lunar_malloc", 0);
  rc = lunar_pin(index, count * sizeof(*index));
  if (rc < 0) return fail("lunar_pin", rc);

  uint64_t random = 88172645463325252u;
  make_records(records, index, count, &random);

  lunar_stats before = stats_now();
  for (int batch = 0; batch < 200; ++batch) {
    rc = look_up(records, index, count, &random);
    if (rc < 0) return fail("look-up", rc);
  }
  lunar_stats after = stats_now();
  printf(
      "%d look-ups in %zu MiB of records, %zu MiB of DRAM: %llu pages prefetched, %llu faults that "
      "read, %llu KiB pinned, peak %llu MiB resident\n",
      200 * BATCH, bytes >> 20, dram >> 20,
      (unsigned long long)(after.prefetched - before.prefetched),
      (unsigned long long)(after.major_faults - before.major_faults),
      (unsigned long long)(after.pinned_bytes >> 10),
      (unsigned long long)(after.resident_peak_bytes >> 20));
  if (after.evictions == 0) {
    fprintf(stderr, "pin: nothing was evicted; give more RECORDS_MIB or less DRAM_MIB\n");
    return 1;
  }
  if (after.resident_peak_bytes > dram || after.prefetched == before.prefetched)
    return fail("the figures are not right", -ERANGE);
  rc = lunar_unpin(index, count * sizeof(*index));
  lunar_free(records);
  lunar_free(index);
  return rc == 0 ? 0 : fail("lunar_unpin", rc);
}
