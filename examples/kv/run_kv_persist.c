/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A persistent store: each run finds the pairs of the last one, and adds more.
 *
 *   run_kv_persist PLACE [PAIRS]      PLACE: a file or device that is blank, or has this program's
 *                                     store
 */
#include <arkdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE = 1000 };

static int fail(const char* what, int error) {
  fprintf(stderr, "run_kv_persist: %s: %s\n", what,
          error < 0 ? "what was read differs" : strerror(error));
  return 1;
}

static void fill(char* value, int pair) { memset(value, 'a' + pair % 26, VALUE); }

/* Checks all pairs up to `pairs`. */
static int check(ARK* ark, int pairs) {
  char key[32], value[VALUE], read[VALUE];
  int64_t res;
  for (int i = 0; i < pairs; ++i) {
    int rc =
        ark_get(ark, (uint64_t)snprintf(key, sizeof key, "pair %d", i), key, VALUE, read, 0, &res);
    if (rc != 0) return rc;
    fill(value, i);
    if (res != VALUE || memcmp(read, value, VALUE) != 0) return -1;
  }
  return 0;
}

static int usage(int code) {
  fputs("usage: run_kv_persist PLACE [PAIRS]\n", code == 0 ? stdout : stderr);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  int more = argc > 2 ? atoi(argv[2]) : 1000;
  if (argc < 2 || argc > 3 || more < 1) return usage(2);
  ARK* ark = NULL;
  int rc = ark_create(argv[1], &ark, ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD);
  if (rc != 0) return fail("ark_create", rc);
  int64_t found = 0, res;
  if ((rc = ark_count(ark, &found)) != 0) return fail("ark_count", rc);
  if ((rc = check(ark, (int)found)) != 0) return fail("what was kept", rc);
  for (int i = (int)found; i < (int)found + more; ++i) {
    char key[32], value[VALUE];
    fill(value, i);
    rc = ark_set(ark, (uint64_t)snprintf(key, sizeof key, "pair %d", i), key, VALUE, value, &res);
    if (rc != 0) return fail("ark_set", rc);
    /* From here on these survive a kill -9 and a power loss. */
    if (i == (int)found + more / 2 && (rc = ark_flush(ark)) != 0) return fail("ark_flush", rc);
  }
  if ((rc = ark_delete(ark)) != 0) return fail("ark_delete", rc); /* keeps the rest */
  printf("run_kv_persist: %lld pairs were there, all equal, and %d more are now\n",
         (long long)found, more);
  return 0;
}
