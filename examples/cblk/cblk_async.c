/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two kinds of asynchronous I/O: writes whose results the program fetches by tag, the oldest
 * first; then reads whose results the library fills in while the program does other work.
 *
 *   cblk_async DEVICE          DEVICE: a file or block device that is blank or carries Lunar's
 *                              format
 */
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, DEPTH = 32, COUNT = 1024 };

static int fail(const char* what) {
  fprintf(stderr, "cblk_async: %s: %s\n", what, strerror(errno));
  return 1;
}

static void fill(unsigned char* block, unsigned number) {
  for (unsigned i = 0; i < BLOCK; ++i) block[i] = (unsigned char)(number * 13 + i / 16);
}

/* Fetches the oldest result. */
static int fetch(chunk_id_t lun) {
  int tag = -1;
  uint64_t blocks = 0;
  int done = cblk_aresult(lun, &tag, &blocks, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING);
  return done == 1 && blocks == 1 ? 0 : fail("cblk_aresult");
}

static int write_all(chunk_id_t lun, unsigned char* data) {
  int active = 0;
  for (int i = 0; i < COUNT; ++i) {
    int tag = 0;
    if (active == DEPTH) {
      if (fetch(lun) != 0) return 1;
      --active;
    }
    int rc = cblk_awrite(lun, data + (size_t)i * BLOCK, i, 1, &tag, NULL, 0);
    if (rc < 0) return fail("cblk_awrite");
    if (rc == 0) ++active; /* otherwise it is done already */
  }
  for (; active > 0; --active) {
    if (fetch(lun) != 0) return 1;
  }
  return 0;
}

static int read_all(chunk_id_t lun, unsigned char* data) {
  static cblk_arw_status_t status[COUNT];
  int done_at_once[COUNT] = {0};
  for (int i = 0; i < COUNT; ++i) {
    int tag = 0;
    int rc = cblk_aread(lun, data + (size_t)i * BLOCK, i, 1, &tag, &status[i],
                        CBLK_ARW_WAIT_CMD_FLAGS | CBLK_ARW_USER_STATUS_FLAG);
    if (rc < 0) return fail("cblk_aread");
    done_at_once[i] = rc > 0;
  }
  for (int i = 0; i < COUNT; ++i) {
    if (done_at_once[i]) continue;
    while (__atomic_load_n(&status[i].status, __ATOMIC_ACQUIRE) == CBLK_ARW_STATUS_PENDING)
      sched_yield();
    if (status[i].status == CBLK_ARW_STATUS_SUCCESS && status[i].blocks_transferred == 1) continue;
    errno = status[i].fail_errno;
    return fail("a read");
  }
  return 0;
}

static int work(chunk_id_t lun, unsigned char* out, unsigned char* in) {
  for (unsigned i = 0; i < COUNT; ++i) fill(out + (size_t)i * BLOCK, i);
  if (write_all(lun, out) != 0 || read_all(lun, in) != 0) return 1;
  if (memcmp(in, out, (size_t)COUNT * BLOCK) == 0) return 0;
  fprintf(stderr, "cblk_async: what was read differs\n");
  return 1;
}

static int usage(int code) {
  fputs("usage: cblk_async DEVICE\n", code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  if (argc != 2) return usage(2);
  unsigned char *out = aligned_alloc(BLOCK, (size_t)COUNT * BLOCK),
                *in = aligned_alloc(BLOCK, (size_t)COUNT * BLOCK);
  if (!out || !in) return fail("memory");
  memset(in, 0, (size_t)COUNT * BLOCK);
  chunk_id_t lun = cblk_open(argv[1], DEPTH, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  if (lun == NULL_CHUNK_ID) return fail(argv[1]);
  int result = cblk_set_size(lun, COUNT, 0) != 0 ? fail("cblk_set_size") : work(lun, out, in);
  if (cblk_close(lun, 0) != 0) result = fail("cblk_close");
  free(out);
  free(in);
  if (result == 0)
    printf("cblk_async: %d writes and %d reads, %d at a time, on %s: all equal\n", COUNT, COUNT,
           DEPTH, argv[1]);
  return result;
}
