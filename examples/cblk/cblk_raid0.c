/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RAID 0: virtual LUNs on two or more devices are one, block by block (block b is block b / n of
 * device b % n). The program writes through the group, reads back, and checks each device's
 * counters.
 *
 *   cblk_raid0 DEVICE DEVICE [...]     up to 8; blank, or with Lunar's format
 */
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, COUNT = 512, DEVICES_MAX = 8 };

static int fail(const char* what) {
  fprintf(stderr, "cblk_raid0: %s: %s\n", what, strerror(errno));
  return 1;
}

static void fill(unsigned char* block, unsigned number) {
  for (unsigned i = 0; i < BLOCK; ++i) block[i] = (unsigned char)(number * 11 + i / 16);
}

static int work(chunk_cg_id_t group, int devices) {
  unsigned char out[BLOCK], in[BLOCK];
  size_t blocks = 0;
  if (cblk_cg_get_num_chunks(group, 0) != devices)
    return fprintf(stderr, "cblk_raid0: not as many parts as devices\n"), 1;
  if (cblk_cg_set_size(group, COUNT, 0) != 0) return fail("cblk_cg_set_size");
  if (cblk_cg_get_size(group, &blocks, 0) != 0 || blocks < COUNT) return fail("cblk_cg_get_size");
  for (unsigned i = 0; i < COUNT; ++i) {
    fill(out, i);
    if (cblk_cg_write(group, out, i, 1, 0) != 1) return fail("cblk_cg_write");
  }
  for (unsigned i = 0; i < COUNT; i += 2) { /* every other one by the asynchronous calls */
    cflsh_cg_tag_t tag = {0, 0};
    uint64_t done = 0;
    fill(out, i);
    int rc = cblk_cg_aread(group, in, i, 1, &tag, NULL, 0);
    if (rc < 0) return fail("cblk_cg_aread");
    if (rc == 0 && cblk_cg_aresult(group, &tag, &done, CBLK_ARESULT_BLOCKING) != 1)
      return fail("cblk_cg_aresult");
    if (memcmp(in, out, BLOCK) != 0) return fprintf(stderr, "cblk_raid0: block %u differs\n", i), 1;
    fill(out, i + 1);
    if (cblk_cg_read(group, in, i + 1, 1, 0) != 1) return fail("cblk_cg_read");
    if (memcmp(in, out, BLOCK) != 0)
      return fprintf(stderr, "cblk_raid0: block %u differs\n", i + 1), 1;
  }
  return 0;
}

static int usage(int code) {
  fputs("usage: cblk_raid0 DEVICE DEVICE [...]\n", code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  char path[4096] = "";
  if (argc < 3 || argc > DEVICES_MAX + 1) return usage(2);
  for (int i = 1; i < argc; ++i) {
    size_t used = strlen(path);
    if (snprintf(path + used, sizeof(path) - used, "%s%s", i > 1 ? ":" : "", argv[i]) >=
        (int)(sizeof(path) - used))
      return 2;
  }
  chunk_cg_id_t group =
      cblk_cg_open(path, 64, O_RDWR, argc - 1, 0, CBLK_GROUP_RAID0 | CBLK_OPN_VIRT_LUN);
  if (group == NULL_CHUNK_CG_ID) return fail(path);
  int result = work(group, argc - 1);
  if (cblk_cg_close(group, 0) != 0) result = fail("cblk_cg_close");
  if (result == 0)
    printf("cblk_raid0: %d blocks written over %d devices and read back equal\n", COUNT, argc - 1);
  return result;
}
