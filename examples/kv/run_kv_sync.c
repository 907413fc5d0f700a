/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads store, read back, count and remove pairs, one call at a time.
 *
 *   run_kv_sync [PATH [THREADS [PAIRS]]]      PATH: a place for the store; without one, or "":
 *                                             memory
 */
#include <arkdb.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VALUE = 4000, THREADS_MAX = 64 };

struct worker {
  pthread_t thread;
  ARK* ark;
  int number, pairs;
  int error; /* errno of the first call that failed; -1: other bytes than were stored */
};

static void fill(char* value, int worker, int pair) {
  memset(value, 'a' + (worker * 7 + pair) % 26, VALUE);
}

static int work(struct worker* me) {
  char key[32], value[VALUE], read[VALUE];
  int64_t res;
  int rc;
  for (int i = 0; i < me->pairs; ++i) {
    uint64_t length = (uint64_t)snprintf(key, sizeof key, "%d/%d", me->number, i);
    fill(value, me->number, i);
    if ((rc = ark_set(me->ark, length, key, VALUE, value, &res)) != 0) return rc;
  }
  for (int i = 0; i < me->pairs; ++i) {
    uint64_t length = (uint64_t)snprintf(key, sizeof key, "%d/%d", me->number, i);
    fill(value, me->number, i);
    if ((rc = ark_get(me->ark, length, key, VALUE, read, 0, &res)) != 0) return rc;
    if (res != VALUE || memcmp(read, value, VALUE) != 0) return -1;
  }
  return 0;
}

static void* run(void* argument) {
  struct worker* me = argument;
  me->error = work(me);
  return NULL;
}

static int fail(const char* what, int error) {
  fprintf(stderr, "run_kv_sync: %s: %s\n", what, error < 0 ? "a value differs" : strerror(error));
  return 1;
}

/* Removes all pairs, which an iterator finds, and checks their number. */
static int remove_all(ARK* ark, int64_t wanted) {
  char key[32];
  int64_t length = 0, res = 0, removed = 0;
  int rc = 0;
  ARI* iterator = ark_first(ark, sizeof key, &length, key);
  if (!iterator) return fail("ark_first", errno);
  for (; rc == 0; rc = ark_next(iterator, sizeof key, &length, key)) {
    int error = ark_del(ark, (uint64_t)length, key, &res);
    if (error != 0) return fail("ark_del", error);
    ++removed;
  }
  if (rc != ENOENT) return fail("ark_next", rc);
  if (removed == wanted) return 0;
  fprintf(stderr, "run_kv_sync: %lld pairs were found, %lld were stored\n", (long long)removed,
          (long long)wanted);
  return 1;
}

static int usage(int code) {
  fprintf(code == 0 ? stdout : stderr, "usage: run_kv_sync [PATH [THREADS (1 to %d) [PAIRS]]]\n",
          THREADS_MAX);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  static struct worker workers[THREADS_MAX];
  int threads = argc > 2 ? atoi(argv[2]) : 4, pairs = argc > 3 ? atoi(argv[3]) : 2000, result = 0;
  if (argc > 4 || threads < 1 || threads > THREADS_MAX || pairs < 1) return usage(2);
  ARK* ark = NULL;
  int rc = ark_create(argc > 1 ? argv[1] : NULL, &ark, 0);
  if (rc != 0) return fail("ark_create", rc);
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int i = 0; i < threads; ++i) {
    workers[i] = (struct worker){.ark = ark, .number = i, .pairs = pairs};
    if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0)
      return fail("a thread", errno);
  }
  for (int i = 0; i < threads; ++i) {
    pthread_join(workers[i].thread, NULL);
    if (workers[i].error != 0) result = fail("a call", workers[i].error);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double seconds =
      (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
  if (result == 0) result = remove_all(ark, (int64_t)threads * pairs);
  rc = ark_delete(ark);
  if (rc != 0) result = fail("ark_delete", rc);
  if (result == 0)
    printf("run_kv_sync: %d threads, %d pairs each: %.0f operations a second, all equal\n", threads,
           pairs, 2.0 * threads * pairs / seconds);
  return result;
}
