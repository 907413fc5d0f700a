/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A first program for CAPI Flash: it copies a file to a virtual LUN, reads it back and compares.
 *
 *   cblk_test DEVICE FILE      DEVICE: a file or block device that is blank or carries Lunar's
 *                              format
 *
 * One call moves one block of a virtual LUN. cblk_close removes the LUN.
 */
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 4096 };

static int fail(const char* what, const char* where) {
  fprintf(stderr, "cblk_test: %s %s: %s\n", what, where, strerror(errno));
  return 1;
}

/* The number of blocks of the file; 0 (and errno) if it cannot be read. */
static size_t blocks_of(FILE* file) {
  if (fseeko(file, 0, SEEK_END) != 0) return 0;
  off_t bytes = ftello(file);
  rewind(file);
  return bytes < 0 ? 0 : ((size_t)bytes + BLOCK - 1) / BLOCK;
}

/* Reads the next block of the file, and fills it up with zeros. */
static int next_block(FILE* file, unsigned char* block) {
  size_t got = fread(block, 1, BLOCK, file);
  memset(block + got, 0, BLOCK - got);
  return ferror(file) ? -1 : 0;
}

static int copy_and_compare(chunk_id_t lun, FILE* file, size_t blocks, const char* name) {
  unsigned char out[BLOCK], in[BLOCK];
  for (size_t lba = 0; lba < blocks; ++lba) {
    if (next_block(file, out) != 0) return fail("cannot read", name);
    if (cblk_write(lun, out, (cflash_offset_t)lba, 1, 0) != 1) return fail("cblk_write", "failed");
  }
  rewind(file);
  for (size_t lba = 0; lba < blocks; ++lba) {
    if (next_block(file, out) != 0) return fail("cannot read", name);
    if (cblk_read(lun, in, (cflash_offset_t)lba, 1, 0) != 1) return fail("cblk_read", "failed");
    if (memcmp(in, out, BLOCK) == 0) continue;
    fprintf(stderr, "cblk_test: block %zu differs\n", lba);
    return 1;
  }
  return 0;
}

static int usage(int code) {
  fputs("usage: cblk_test DEVICE FILE\n", code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  if (argc != 3) return usage(2);
  FILE* file = fopen(argv[2], "rb");
  if (!file) return fail("cannot open", argv[2]);
  size_t blocks = blocks_of(file);
  if (blocks == 0)
    return fprintf(stderr, "cblk_test: %s is empty; give a file with something in it\n", argv[2]),
           1;

  if (cblk_init(NULL, 0) != 0) return fail("cblk_init", "failed");
  chunk_id_t lun = cblk_open(argv[1], 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  if (lun == NULL_CHUNK_ID) return fail("cblk_open", argv[1]);
  int result = 1;
  if (cblk_set_size(lun, blocks, 0) != 0)
    fail("cblk_set_size", argv[1]);
  else
    result = copy_and_compare(lun, file, blocks, argv[2]);
  fclose(file);
  if (cblk_close(lun, 0) != 0) result = fail("cblk_close", argv[1]);
  cblk_term(NULL, 0);
  if (result == 0)
    printf("cblk_test: %zu blocks of %s went to a virtual LUN on %s and came back equal\n", blocks,
           argv[2], argv[1]);
  return result;
}
