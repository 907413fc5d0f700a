/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A matrix larger than DRAM, transposed out of place in tiles. A walk over columns of a row-major
 * matrix touches one page per row. So the rows of each tile are prefetched in one batch (64
 * ranges), and the reads overlap instead of coming one fault at a time.
 *
 *   matrix [N [DRAM_MIB]]     an N x N matrix of doubles (default 4096: 128 MiB, twice; 64 MiB of
 *                             DRAM)
 *
 * It shows a region as an array, lunar_prefetch, lunar_advise and statistics. Exits with 0 if every
 * element is in its place.
 */
#include <errno.h>
#include <lunar/lunar.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 64, MOST = 1 << 20 };

/* Parses a whole number above 0. Returns 0 if it is not one. */
static size_t number_of(const char* text) {
  char* end;
  unsigned long long number = strtoull(text, &end, 10);
  return end != text && *end == '\0' && text[0] != '-' && number <= MOST ? (size_t)number : 0;
}

static double value(size_t row, size_t column) { return (double)row * 1000003.0 + (double)column; }

/* Prefetches a tile: TILE rows of `matrix` from `row`, columns from `column`, in one batch. */
static int prefetch_tile(const double* matrix, size_t n, size_t row, size_t column,
                         size_t columns) {
  lunar_range ranges[TILE];
  for (size_t i = 0; i < TILE; ++i) {
    ranges[i].address = matrix + (row + i) * n + column;
    ranges[i].bytes = columns * sizeof(double);
  }
  return lunar_prefetch(ranges, TILE);
}

static int transpose(double* out, const double* in, size_t n) {
  const size_t wide = lunar_page_bytes() /
                      sizeof(double); /* a page's worth of columns: what is brought in is used up */
  for (size_t row = 0; row < n; row += TILE) {
    for (size_t column = 0; column < n; column += wide) {
      int rc = prefetch_tile(in, n, row, column, wide);
      if (rc < 0) return rc;
      for (size_t strip = column; strip < column + wide; strip += TILE)
        for (size_t c = strip; c < strip + TILE; ++c)
          for (size_t r = row; r < row + TILE; ++r) out[c * n + r] = in[r * n + c];
    }
  }
  return 0;
}

static int usage(int code) {
  fputs(
      "usage: matrix [N [DRAM_MIB]]     an N x N matrix of doubles; default: 4096, 64 MiB of "
      "DRAM\n",
      code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--help") == 0) return usage(0);
  size_t n = argc > 1 ? number_of(argv[1]) : 4096;
  size_t dram_mib = argc > 2 ? number_of(argv[2]) : 64;
  if (argc > 3 || n == 0 || dram_mib == 0) return usage(2);
  size_t page_doubles, bytes;
  double *a, *b;
  lunar_stats stats = {.struct_size = sizeof(stats)};
  lunar_config config = {.struct_size = sizeof(config)};

  config.dram_bytes = (uint64_t)dram_mib << 20;
  config.lun_bytes = (uint64_t)n * n * sizeof(double) * 3;
  if (config.lun_bytes < config.dram_bytes) config.lun_bytes = config.dram_bytes;
  int rc = lunar_init(&config);
  if (rc < 0 && rc != -EEXIST) {
    fprintf(stderr, "matrix: %s\n", lunar_error());
    return rc == -EPERM || rc == -ENOSYS ? 77 : 1;
  }
  page_doubles = lunar_page_bytes() / sizeof(double);
  n = (n + page_doubles - 1) / page_doubles * page_doubles;
  bytes = n * n * sizeof(double);
  a = lunar_region_create(bytes);
  b = lunar_region_create(bytes);
  if (a == NULL || b == NULL) {
    perror("matrix: lunar_region_create");
    return 1;
  }
  (void)lunar_advise(a, bytes, LUNAR_SEQUENTIAL);
  for (size_t r = 0; r < n; ++r)
    for (size_t c = 0; c < n; ++c) a[r * n + c] = value(r, c);
  (void)lunar_advise(a, bytes, LUNAR_NORMAL);

  rc = transpose(b, a, n);
  if (rc < 0) {
    fprintf(stderr, "matrix: prefetch: %s\n", strerror(-rc));
    return 1;
  }
  for (size_t r = 0; r < n; ++r)
    for (size_t c = 0; c < n; ++c)
      if (b[r * n + c] != value(c, r)) {
        fprintf(stderr, "matrix: element %zu,%zu is wrong\n", r, c);
        return 1;
      }
  (void)lunar_get_stats(&stats);
  printf(
      "transposed %zu x %zu (%zu MiB in all) in %zu MiB of DRAM: peak %llu MiB resident, %llu MiB "
      "read, %llu MiB "
      "written\n",
      n, n, 2 * bytes >> 20, dram_mib, (unsigned long long)(stats.resident_peak_bytes >> 20),
      (unsigned long long)(stats.lun_read_bytes >> 20),
      (unsigned long long)(stats.lun_written_bytes >> 20));
  rc = lunar_region_destroy(a, bytes);
  if (rc == 0) rc = lunar_region_destroy(b, bytes);
  return rc == 0 ? 0 : 1;
}
