/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores pairs and reads them back asynchronously, in a number of chains. Each chain issues its
 * next operation from the callback of the last one.
 *
 *   run_kv_async [PATH [DEPTH [PAIRS]]]      PATH: a place for the store; without one, or "":
 *                                            memory. DEPTH: chains
 */
#include <arkdb.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VALUE = 4000, DEPTH_MAX = 1024 };

struct chain {
  ARK* ark;
  int number, pairs, done; /* done: operations; the first half stores, the second reads */
  char key[32], value[VALUE];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int chains_left, error; /* under the lock */

static void end(int why) {
  pthread_mutex_lock(&lock);
  if (why != 0) error = why;
  --chains_left;
  pthread_cond_signal(&ended);
  pthread_mutex_unlock(&lock);
}

static char letter(const struct chain* chain, int pair) {
  return (char)('a' + (chain->number * 7 + pair) % 26);
}

static void came_back(int errcode, uint64_t dt, int64_t res);

static int issue(struct chain* chain) {
  int pair = chain->done % chain->pairs, reads = chain->done >= chain->pairs;
  uint64_t length = (uint64_t)snprintf(chain->key, sizeof chain->key, "%d/%d", chain->number, pair);
  memset(chain->value, reads ? 0 : letter(chain, pair), VALUE);
  uint64_t tag = (uint64_t)(uintptr_t)chain;
  return reads ? ark_get_async_cb(chain->ark, length, chain->key, VALUE, chain->value, 0, came_back,
                                  tag)
               : ark_set_async_cb(chain->ark, length, chain->key, VALUE, chain->value, came_back,
                                  tag);
}

/* Runs on a thread of the store. The next operation takes the place of the completed one, so it
   never returns EAGAIN. */
static void came_back(int errcode, uint64_t dt, int64_t res) {
  struct chain* chain = (struct chain*)(uintptr_t)dt;
  int pair = chain->done % chain->pairs;
  if (errcode == 0 && (res != VALUE || chain->value[0] != letter(chain, pair) ||
                       memcmp(chain->value, chain->value + 1, VALUE - 1) != 0))
    errcode = -1;
  if (errcode == 0 && ++chain->done < 2 * chain->pairs) {
    errcode = issue(chain);
    if (errcode == 0) return; /* from here on the chain is the next callback's */
  }
  end(errcode);
}

static int fail(const char* what, int why) {
  fprintf(stderr, "run_kv_async: %s: %s\n", what,
          why < 0 ? "what was read differs" : strerror(why));
  return 1;
}

static int usage(int code) {
  fprintf(code == 0 ? stdout : stderr, "usage: run_kv_async [PATH [DEPTH (1 to %d) [PAIRS]]]\n",
          DEPTH_MAX);
  return code;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
  int depth = argc > 2 ? atoi(argv[2]) : 32, pairs = argc > 3 ? atoi(argv[3]) : 500, result = 0;
  if (argc > 4 || depth < 1 || depth > DEPTH_MAX || pairs < 1) return usage(2);
  struct chain* chains = calloc((size_t)depth, sizeof *chains);
  ARK* ark = NULL;
  if (!chains) return fail("memory", errno);
  int rc = ark_create_verbose(argc > 1 ? argv[1] : NULL, &ark, 0, 4096,
                              (uint64_t)depth * (uint64_t)pairs, 4, 1024, depth, 0);
  if (rc != 0) {
    free(chains);
    return fail("ark_create", rc);
  }
  struct timespec begin, stop;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  chains_left = depth;
  for (int i = 0; i < depth; ++i) {
    chains[i].ark = ark;
    chains[i].number = i;
    chains[i].pairs = pairs;
    if ((rc = issue(&chains[i])) != 0) end(rc);
  }
  pthread_mutex_lock(&lock);
  while (chains_left > 0) pthread_cond_wait(&ended, &lock);
  if (error != 0) result = fail("a call", error);
  pthread_mutex_unlock(&lock);
  clock_gettime(CLOCK_MONOTONIC, &stop);
  double seconds =
      (double)(stop.tv_sec - begin.tv_sec) + (double)(stop.tv_nsec - begin.tv_nsec) / 1e9;
  int64_t count = 0;
  if (result == 0 && (rc = ark_count(ark, &count)) != 0) result = fail("ark_count", rc);
  if (result == 0 && count != (int64_t)depth * pairs) result = fail("ark_count", -1);
  if ((rc = ark_delete(ark)) != 0) result = fail("ark_delete", rc);
  free(chains);
  if (result == 0)
    printf("run_kv_async: depth %d, %d pairs each: %.0f operations a second, all equal\n", depth,
           pairs, 2.0 * depth * pairs / seconds);
  return result;
}
