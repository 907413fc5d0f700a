/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the lines of a text file into a store, KEY SEPARATOR VALUE, then reads the file again and
 * compares. `kv_fileload --help` lists the options.
 */
#include <arkdb.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: kv_fileload [options] FILE\n"
    "  -d PLACE      where the store lies: file, device, URI (default: in memory)\n"
    "  -k            the store is kept at PLACE, and what it held there stays (default: it ends "
    "with the program)\n"
    "  -F CHARACTER  that ends the key (default: a tab); a line without it is a key with an empty "
    "value\n"
    "  -h, --help    this text\n"
    "A key that comes again with another value is an error.\n";

struct pair {
  char *key, *value;
  uint64_t key_length, value_length;
};

static int fail(const char* what, int why) {
  fprintf(stderr, "kv_fileload: %s: %s\n", what, strerror(why));
  return 1;
}

static int fail_line(const char* file, long line, const char* why) {
  fprintf(stderr, "kv_fileload: %s, line %ld: %s\n", file, line, why);
  return 1;
}

/* The next line's; they lie in *line. 0: the file is at its end. */
static int next_pair(FILE* file, char separator, char** line, size_t* room, struct pair* out) {
  ssize_t length = getline(line, room, file);
  if (length < 0) return 0;
  if (length > 0 && (*line)[length - 1] == '\n') --length;
  char* end = memchr(*line, separator, (size_t)length);
  out->key = *line;
  out->key_length = (uint64_t)(end ? end - *line : length);
  out->value = end ? end + 1 : *line + length;
  out->value_length = (uint64_t)length - out->key_length - (end ? 1 : 0);
  return 1;
}

/* 1: the store has it. 0: another value. -1: no such key. Below that: -errno - 1. */
static int holds(ARK* ark, const struct pair* pair, char** buffer, size_t* room) {
  int64_t length = 0;
  if (*room < pair->value_length + 1) {
    char* larger = realloc(*buffer, pair->value_length + 1);
    if (!larger) return -ENOMEM - 1;
    *buffer = larger;
    *room = pair->value_length + 1;
  }
  int rc = ark_get(ark, pair->key_length, pair->key, pair->value_length, *buffer, 0, &length);
  if (rc != 0) return rc == ENOENT ? -1 : -rc - 1;
  return (uint64_t)length == pair->value_length &&
         memcmp(*buffer, pair->value, pair->value_length) == 0;
}

struct result {
  long lines, added;
  uint64_t bytes;
};

/* Stores, or (checks) compares, every line. */
static int pass(ARK* ark, const char* name, char separator, int checks, struct result* out) {
  FILE* file = fopen(name, "r");
  if (!file) return fail(name, errno);
  char *line = NULL, *buffer = NULL;
  size_t room = 0, buffer_room = 0;
  struct pair pair;
  int result = 0;
  *out = (struct result){0, 0, 0};
  while (result == 0 && next_pair(file, separator, &line, &room, &pair)) {
    int64_t res = 0;
    ++out->lines;
    out->bytes += pair.key_length + pair.value_length;
    int held = holds(ark, &pair, &buffer, &buffer_room);
    if (held < -1) result = fail_line(name, out->lines, strerror(-held - 1));
    if (held == 0) result = fail_line(name, out->lines, "the store has another value of this key");
    if (held != -1) continue;
    if (checks) {
      result = fail_line(name, out->lines, "the store has lost this key");
      continue;
    }
    int rc = ark_set(ark, pair.key_length, pair.key, pair.value_length, pair.value, &res);
    if (rc != 0) result = fail_line(name, out->lines, strerror(rc));
    ++out->added;
  }
  if (result == 0 && ferror(file)) result = fail(name, EIO);
  fclose(file);
  free(line);
  free(buffer);
  return result;
}

int main(int argc, char** argv) {
  static const struct option names[] = {{"help", no_argument, NULL, 'h'}, {0}};
  char *place = NULL, separator = '\t';
  int bad = 0;
  uint64_t flags = 0;
  for (int option; (option = getopt_long(argc, argv, "d:kF:h", names, NULL)) != -1;) {
    if (option == 'h') return fputs(usage, stdout), 0;
    if (option == 'd') place = optarg;
    if (option == 'k') flags = ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD;
    if (option == 'F') separator = optarg[0];
    bad |= option == '?' || (option == 'F' && strlen(optarg) != 1);
  }
  if (bad || optind + 1 != argc) return fputs(usage, stderr), 2;
  ARK* ark = NULL;
  int rc = ark_create(place, &ark, flags);
  if (rc != 0) return fail("ark_create", rc);
  struct timespec begin, end;
  struct result loaded, checked;
  int64_t before = 0, after = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int result = (rc = ark_count(ark, &before)) != 0 ? fail("ark_count", rc)
                                                   : pass(ark, argv[optind], separator, 0, &loaded);
  clock_gettime(CLOCK_MONOTONIC, &end);
  if (result == 0) result = pass(ark, argv[optind], separator, 1, &checked);
  if (result == 0 && (rc = ark_count(ark, &after)) != 0) result = fail("ark_count", rc);
  if (result == 0 && after != before + loaded.added)
    result = fail_line(argv[optind], loaded.lines, "the store counts other pairs");
  if ((rc = ark_delete(ark)) != 0) result = fail("ark_delete", rc);
  if (result != 0) return result;
  double seconds =
      (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
  printf("kv_fileload: %ld lines, %ld new keys, %lld in all, %.0f lines/s, %.1f MiB/s, all equal\n",
         loaded.lines, loaded.added, (long long)after, (double)loaded.lines / seconds,
         (double)loaded.bytes / seconds / 1048576);
  return 0;
}
