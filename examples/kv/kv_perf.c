/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each kind of operation costs, by length of the value: threads that call set, get, exists and
 * del, one call at a time, on pairs of their own. Prints a line a length, in operations a second.
 * `kv_perf --help` lists the options.
 */
#include <arkdb.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 256, OPERATIONS = 4 };

static const char usage[] =
    "usage: kv_perf [options]\n"
    "  -d PLACE    where the store lies: file, device, URI (default: in memory)\n"
    "  -t THREADS  (4)\n"
    "  -n PAIRS    of each thread (2000)\n"
    "  -v BYTES    of a value; may be given up to 16 times (64, 1000, 4000, 16000)\n"
    "  -H          with the flag ARK_KV_HTC\n"
    "  -h, --help  this text\n";

struct worker {
  pthread_t thread;
  ARK* ark;
  int number, operation;
  long pairs, bytes;
  char* value;
  int error; /* errno, -1: a value differs */
};

static int call(struct worker* me, long pair) {
  char key[40];
  uint64_t length = (uint64_t)snprintf(key, sizeof key, "%d/%ld", me->number, pair),
           bytes = (uint64_t)me->bytes;
  char letter = (char)('a' + pair % 26);
  int64_t res = 0;
  int rc = 0;
  if (me->operation == 0) {
    memset(me->value, letter, bytes);
    rc = ark_set(me->ark, length, key, bytes, me->value, &res);
  } else if (me->operation == 1) {
    rc = ark_get(me->ark, length, key, bytes, me->value, 0, &res);
    if (rc == 0 && bytes > 0 &&
        (me->value[0] != letter || memcmp(me->value, me->value + 1, bytes - 1) != 0))
      return -1;
  } else {
    rc = me->operation == 2 ? ark_exists(me->ark, length, key, &res)
                            : ark_del(me->ark, length, key, &res);
  }
  return rc == 0 && res != me->bytes ? -1 : rc;
}

static void* work(void* argument) {
  struct worker* me = argument;
  me->error = 0;
  for (long pair = 0; pair < me->pairs && me->error == 0; ++pair) me->error = call(me, pair);
  return NULL;
}

static int fail(const char* what, int why) {
  fprintf(stderr, "kv_perf: %s: %s\n", what, why < 0 ? "what was read differs" : strerror(why));
  return 1;
}

/* Operations a second; below 0: told of. */
static double measure(struct worker* workers, int threads, int operation) {
  struct timespec begin, end;
  int why = 0, started = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (; started < threads && why == 0; ++started) {
    workers[started].operation = operation;
    why = pthread_create(&workers[started].thread, NULL, work, &workers[started]);
    if (why != 0) break;
  }
  for (int i = 0; i < started; ++i) {
    pthread_join(workers[i].thread, NULL);
    if (workers[i].error != 0) why = workers[i].error;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  if (why != 0) return fail("a call", why), -1;
  return (double)threads * (double)workers[0].pairs /
         ((double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
}

static int measure_length(struct worker* workers, int threads, long bytes) {
  double rates[OPERATIONS];
  for (int i = 0; i < threads; ++i) {
    workers[i].bytes = bytes;
    workers[i].value = malloc((size_t)bytes + 1);
    if (!workers[i].value) return fail("memory", errno);
  }
  int failed = 0;
  for (int i = 0; i < OPERATIONS && !failed; ++i)
    failed = (rates[i] = measure(workers, threads, i)) < 0;
  for (int i = 0; i < threads; ++i) free(workers[i].value);
  if (!failed)
    printf("%8ld %12.0f %12.0f %12.0f %12.0f\n", bytes, rates[0], rates[1], rates[2], rates[3]);
  return failed;
}

int main(int argc, char** argv) {
  static const struct option names[] = {{"help", no_argument, NULL, 'h'}, {0}};
  static struct worker workers[THREADS_MAX];
  long lengths[16] = {64, 1000, 4000, 16000}, threads = 4, pairs = 2000;
  int given = 0, count = 4, result = 0, bad = 0;
  uint64_t flags = 0;
  char* place = NULL;
  for (int option; (option = getopt_long(argc, argv, "d:t:n:v:Hh", names, NULL)) != -1;) {
    if (option == 'h') return fputs(usage, stdout), 0;
    if (option == 'd') place = optarg;
    if (option == 'H') flags |= ARK_KV_HTC;
    if (option == 't') threads = atol(optarg);
    if (option == 'n') pairs = atol(optarg);
    if (option == 'v' && given < 16) lengths[given++] = atol(optarg);
    bad |= option == '?';
  }
  for (int i = 0; i < given; ++i) bad |= lengths[i] < 0;
  if (given > 0) count = given;
  if (bad || optind != argc || threads < 1 || threads > THREADS_MAX || pairs < 1)
    return fputs(usage, stderr), 2;
  ARK* ark = NULL;
  int rc = ark_create_verbose(place, &ark, 0, 4096, (uint64_t)(threads * pairs), 4, 0, 0, flags);
  if (rc != 0) return fail("ark_create", rc);
  printf("kv_perf: %ld threads, %ld pairs each; operations a second, all equal\n", threads, pairs);
  printf("%8s %12s %12s %12s %12s\n", "bytes", "set", "get", "exists", "del");
  for (int i = 0; i < threads; ++i)
    workers[i] = (struct worker){.ark = ark, .number = i, .pairs = pairs};
  for (int i = 0; i < count && result == 0; ++i)
    result = measure_length(workers, (int)threads, lengths[i]);
  int64_t left = 0;
  if (result == 0 && (rc = ark_count(ark, &left)) != 0) result = fail("ark_count", rc);
  if (result == 0 && left != 0) result = fail("ark_count", -1);
  if ((rc = ark_delete(ark)) != 0) result = fail("ark_delete", rc);
  return result;
}
