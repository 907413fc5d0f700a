/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of I/Os: one call issues 64 writes and waits for all of them. Another call issues 64 reads
 * and waits for half of them; further calls, with the rest as pending, take them as they complete.
 *
 *   cblk_listio DEVICE         DEVICE: a file or block device that is blank or carries Lunar's
 *                              format
 */
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, COUNT = 64, WAITED = COUNT / 2, ROUNDS = 16 };

static int fail(const char* what) {
  fprintf(stderr, "cblk_listio: %s: %s\n", what, strerror(errno));
  return 1;
}

static void fill(unsigned char* block, unsigned round, unsigned number) {
  for (unsigned i = 0; i < BLOCK; ++i) block[i] = (unsigned char)(round * 31 + number * 7 + i / 16);
}

static void prepare(cblk_io_t* ios, cblk_io_t** list, unsigned char* data, uint8_t type) {
  memset(ios, 0, COUNT * sizeof(*ios));
  for (int i = 0; i < COUNT; ++i) {
    ios[i].request_type = type;
    ios[i].buf = data + (size_t)i * BLOCK;
    ios[i].lba = i;
    ios[i].nblocks = 1;
    list[i] = &ios[i];
  }
}

static int all_well(const cblk_io_t* ios) {
  for (int i = 0; i < COUNT; ++i) {
    if (ios[i].stat.status == CBLK_ARW_STATUS_SUCCESS && ios[i].stat.blocks_transferred == 1)
      continue;
    errno = ios[i].stat.fail_errno;
    return fail("an I/O of the list");
  }
  return 0;
}

static int write_all(chunk_id_t lun, unsigned char* data) {
  cblk_io_t ios[COUNT], *list[COUNT];
  int completed = 0;
  prepare(ios, list, data, CBLK_IO_TYPE_WRITE);
  if (cblk_listio(lun, list, COUNT, NULL, 0, list, COUNT, NULL, &completed, 0,
                  CBLK_LISTIO_WAIT_ISSUE_CMD) != 0)
    return fail("cblk_listio (writes)");
  return all_well(ios);
}

static int read_all(chunk_id_t lun, unsigned char* data) {
  cblk_io_t ios[COUNT], *list[COUNT], copies[COUNT],
      *done[COUNT]; /* done: where completions are copied to */
  int completed = COUNT - WAITED;
  for (int i = 0; i < COUNT; ++i) done[i] = &copies[i];
  prepare(ios, list, data, CBLK_IO_TYPE_READ);
  if (cblk_listio(lun, list, COUNT, NULL, 0, list, WAITED, done, &completed, 0,
                  CBLK_LISTIO_WAIT_ISSUE_CMD) != 0)
    return fail("cblk_listio (reads)");
  for (;;) {
    cblk_io_t *pending[COUNT], *first[1];
    int count = 0;
    for (int i = WAITED; i < COUNT; ++i) {
      if (ios[i].stat.status == CBLK_ARW_STATUS_PENDING) pending[count++] = &ios[i];
    }
    if (count == 0) break;
    first[0] = pending[0]; /* waits for the oldest, takes whatever else is done by then */
    completed = count;
    if (cblk_listio(lun, NULL, 0, pending, count, first, 1, done, &completed, 0, 0) != 0)
      return fail("cblk_listio (pending)");
  }
  return all_well(ios);
}

static int work(chunk_id_t lun, unsigned char* out, unsigned char* in) {
  for (unsigned round = 0; round < ROUNDS; ++round) {
    for (unsigned i = 0; i < COUNT; ++i) fill(out + (size_t)i * BLOCK, round, i);
    memset(in, 0, (size_t)COUNT * BLOCK);
    if (write_all(lun, out) != 0 || read_all(lun, in) != 0) return 1;
    if (memcmp(in, out, (size_t)COUNT * BLOCK) == 0) continue;
    fprintf(stderr, "cblk_listio: round %u: what was read differs\n", round);
    return 1;
  }
  return 0;
}

static int usage(int code) {
  fputs("usage: cblk_listio DEVICE\n", code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  if (argc != 2) return usage(2);
  unsigned char *out = aligned_alloc(BLOCK, (size_t)COUNT * BLOCK),
                *in = aligned_alloc(BLOCK, (size_t)COUNT * BLOCK);
  if (!out || !in) return fail("memory");
  chunk_id_t lun = cblk_open(argv[1], COUNT, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  if (lun == NULL_CHUNK_ID) return fail(argv[1]);
  int result = cblk_set_size(lun, COUNT, 0) != 0 ? fail("cblk_set_size") : work(lun, out, in);
  if (cblk_close(lun, 0) != 0) result = fail("cblk_close");
  free(out);
  free(in);
  if (result == 0)
    printf("cblk_listio: %d lists of %d writes and as many reads on %s, all equal\n", ROUNDS, COUNT,
           argv[1]);
  return result;
}
