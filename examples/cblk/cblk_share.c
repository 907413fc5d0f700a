/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on one virtual LUN: the parent opens it and forks, the child clones the chunk. Both
 * write at the same time, the parent the even blocks and the child the odd ones. Then each reads
 * the blocks of the other.
 *
 *   cblk_share DEVICE          DEVICE: a file or block device that is blank or carries Lunar's
 *                              format
 */
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 4096, COUNT = 1024 };

static int fail(const char* who, const char* what) {
  fprintf(stderr, "cblk_share: %s: %s: %s\n", who, what, strerror(errno));
  return 1;
}

static void fill(unsigned char* block, unsigned number) {
  for (unsigned i = 0; i < BLOCK; ++i) block[i] = (unsigned char)(number * 17 + i / 16);
}

static int write_half(chunk_id_t lun, unsigned first, const char* who) {
  unsigned char block[BLOCK];
  for (unsigned i = first; i < COUNT; i += 2) {
    fill(block, i);
    if (cblk_write(lun, block, i, 1, 0) != 1) return fail(who, "cblk_write");
  }
  return 0;
}

static int read_half(chunk_id_t lun, unsigned first, const char* who) {
  unsigned char in[BLOCK], expected[BLOCK];
  for (unsigned i = first; i < COUNT; i += 2) {
    fill(expected, i);
    if (cblk_read(lun, in, i, 1, 0) != 1) return fail(who, "cblk_read");
    if (memcmp(in, expected, BLOCK) != 0)
      return fprintf(stderr, "cblk_share: %s: block %u differs\n", who, i), 1;
  }
  return 0;
}

/* Tells the other side that this side has written, and waits for the same message. */
static int meet(int to_other, int from_other) {
  char word = 'w';
  return write(to_other, &word, 1) == 1 && read(from_other, &word, 1) == 1 ? 0 : 1;
}

static int child(chunk_id_t lun, int to_parent, int from_parent) {
  if (cblk_clone_after_fork(lun, O_RDWR, 0) != 0) return fail("child", "cblk_clone_after_fork");
  if (write_half(lun, 1, "child") != 0 || meet(to_parent, from_parent) != 0) return 1;
  return read_half(lun, 0, "child");
}

static int usage(int code) {
  fputs("usage: cblk_share DEVICE\n", code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  int up[2], down[2], status = 0;
  if (argc != 2) return usage(2);
  chunk_id_t lun = cblk_open(argv[1], 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  if (lun == NULL_CHUNK_ID) return fail("cblk_open", argv[1]);
  if (cblk_set_size(lun, COUNT, 0) != 0) return fail("parent", "cblk_set_size");
  if (pipe(up) != 0 || pipe(down) != 0) return fail("parent", "pipe");
  pid_t pid = fork();
  if (pid < 0) return fail("parent", "fork");
  if (pid == 0) {
    close(up[0]);
    close(down[1]);
    _exit(child(lun, up[1], down[0]));
  }
  close(up[1]);
  close(down[0]);
  int result = write_half(lun, 0, "parent");
  if (result == 0) result = meet(down[1], up[0]) != 0 ? 1 : read_half(lun, 1, "parent");
  close(down[1]);
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) result = 1;
  if (cblk_close(lun, 0) != 0) result = fail("parent", "cblk_close");
  if (result == 0)
    printf(
        "cblk_share: two processes wrote %d blocks of one virtual LUN on %s, each read the "
        "other's\n",
        COUNT, argv[1]);
  return result;
}
