/* SPDX-License-Identifier: Apache-2.0
 * Memory whose every page says whose it is: SEED MIB PASSES [REPORT [close-first]]. Each pass
 * checks all pages and writes every third anew. Prints (or writes to REPORT) "sound" or what is
 * wrong. With REPORT the work is done by a daemon: forked twice, all its descriptors closed, its
 * ancestors gone; it writes what it inherited anew, so that it has a LUN of its own, and only then
 * allocates three quarters of the memory, piece by piece: its LUN grows, without a descriptor.
 * close-first: the descriptors are closed before the forks. Threading: one thread. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kPage = 4096, kWords = kPage / 8, kPieces = 8 };

static uint64_t stamp(uint64_t seed, uint64_t page, uint64_t version, unsigned word) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + page * 0xBF58476D1CE4E5B9u +
               version * 0x94D049BB133111EBu + word;
  x ^= x >> 31;
  return x * 0xD6E8FEB86659FD93u;
}

static void write_page(uint64_t* at, uint64_t seed, uint64_t page, uint64_t version) {
  for (unsigned w = 0; w < kWords; ++w) at[w] = stamp(seed, page, version, w);
}

static int page_holds(const uint64_t* at, uint64_t seed, uint64_t page, uint64_t version) {
  for (unsigned w = 0; w < kWords; ++w)
    if (at[w] != stamp(seed, page, version, w)) return 0;
  return 1;
}

static void say(const char* report, const char* line) {
  if (report == NULL) {
    printf("%s\n", line);
    fflush(stdout);
    return;
  }
  char name[4096]; /* whole or not there */
  snprintf(name, sizeof name, "%s.part", report);
  FILE* file = fopen(name, "w");
  if (file == NULL || fprintf(file, "%s\n", line) < 0 || fclose(file) != 0 ||
      rename(name, report) != 0)
    _exit(3);
}

static int become_daemon(int close_first) {
  if (close_first && close_range(0, ~0u, 0) != 0) return -1;
  if (fork() != 0) _exit(0);
  if (setsid() < 0) return -1;
  if (fork() != 0) _exit(0);
  if (close_range(0, ~0u, 0) != 0) return -1;
  return open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2 ? 0 : -1;
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const uint64_t seed = strtoull(argv[1], NULL, 10), pages = strtoull(argv[2], NULL, 10) * 256,
                 passes = strtoull(argv[3], NULL, 10);
  const char* report = argc > 4 ? argv[4] : NULL;
  const uint64_t first = report != NULL ? pages / 4 : pages,
                 piece = (pages - first + kPieces - 1) / kPieces;
  char* memory = malloc(first * kPage);
  unsigned char* versions = calloc(pages, 1);
  if (memory == NULL || versions == NULL) return say(report, "no memory"), 1;
  for (uint64_t p = 0; p < first; ++p) write_page((uint64_t*)(memory + p * kPage), seed, p, 0);
  char* further[kPieces] = {NULL};
  if (report != NULL) {
    if (become_daemon(argc > 5) != 0) return 3;
    for (uint64_t p = 0; p < first; ++p) {
      if (!page_holds((uint64_t*)(memory + p * kPage), seed, p, 0))
        return say(report, "an inherited page is wrong"), 1;
      write_page((uint64_t*)(memory + p * kPage), seed, p, ++versions[p]);
    }
    for (uint64_t p = first; p < pages; ++p) {
      char** at = &further[(p - first) / piece];
      if (*at == NULL && (*at = malloc(piece * kPage)) == NULL)
        return say(report, "no memory after all descriptors were closed"), 1;
      write_page((uint64_t*)(*at + (p - first) % piece * kPage), seed, p, 0);
    }
  }
  if (report == NULL) say(NULL, "filled");
  for (uint64_t pass = 0; pass < passes; ++pass) {
    for (uint64_t i = 0; i < pages; ++i) {
      const uint64_t p = (i * 7919 + pass) % pages;
      uint64_t* at =
          (uint64_t*)(p < first ? memory + p * kPage
                                : further[(p - first) / piece] + (p - first) % piece * kPage);
      if (!page_holds(at, seed, p, versions[p])) {
        char line[128];
        snprintf(line, sizeof line, "page %llu of seed %llu is wrong in pass %llu",
                 (unsigned long long)p, (unsigned long long)seed, (unsigned long long)pass);
        return say(report, line), 1;
      }
      if (p % 3 == pass % 3) write_page(at, seed, p, ++versions[p]);
    }
  }
  say(report, "sound");
  return 0;
}
