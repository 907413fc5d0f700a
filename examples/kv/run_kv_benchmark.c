/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many operations a second a store does at a queue depth: chains of asynchronous gets and sets,
 * each of which issues its next operation from the callback of the one before. Every value that is
 * read is checked. `run_kv_benchmark --help` lists the options.
 */
#include <arkdb.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const char usage[] =
    "usage: run_kv_benchmark [options]\n"
    "  -d PLACE    where the store lies: file, device, URI (default: in memory)\n"
    "  -t THREADS  of the store, for asynchronous calls (4)\n"
    "  -q DEPTH    operations under way (32)\n"
    "  -n PAIRS    (10000)\n"
    "  -v BYTES    of a value (4000)\n"
    "  -r PERCENT  of the operations that read; the others store (100)\n"
    "  -s SECONDS  to run (3)\n"
    "  -H          with the flag ARK_KV_HTC\n"
    "  -h, --help  this text\n";

struct settings {
  char* place;
  long threads, depth, pairs, value_bytes, read_percent, seconds;
  uint64_t flags;
};

struct chain {
  ARK* ark;
  const struct settings* settings;
  uint64_t random;
  long pair, next_load; /* next_load: pairs still to be loaded, in steps of depth */
  int reads;
  char key[32], *value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static long chains_left; /* under the lock */
static int error;        /* under the lock: errno, -1: a value differs */
static atomic_int running, loading;
static atomic_long gets, sets;

static void end(int why) {
  pthread_mutex_lock(&lock);
  if (why != 0) error = why;
  --chains_left;
  pthread_cond_signal(&ended);
  pthread_mutex_unlock(&lock);
}

static char letter(long pair) { return (char)('a' + pair % 26); }

static void came_back(int errcode, uint64_t dt, int64_t res);

/* 1: issued. 0: the chain is at its end. Below 0: -errno. */
static int issue(struct chain* chain) {
  const struct settings* settings = chain->settings;
  if (atomic_load(&loading)) {
    if (chain->next_load >= settings->pairs) return 0;
    chain->pair = chain->next_load;
    chain->next_load += settings->depth;
    chain->reads = 0;
  } else {
    if (!atomic_load(&running)) return 0;
    chain->random = chain->random * 6364136223846793005u + 1442695040888963407u;
    chain->pair = (long)((chain->random >> 33) % (uint64_t)settings->pairs);
    chain->reads = (long)((chain->random >> 20) % 100) < settings->read_percent;
  }
  uint64_t length = (uint64_t)snprintf(chain->key, sizeof chain->key, "pair %ld", chain->pair),
           tag = (uintptr_t)chain;
  uint64_t bytes = (uint64_t)settings->value_bytes;
  if (!chain->reads) memset(chain->value, letter(chain->pair), bytes);
  int rc =
      chain->reads
          ? ark_get_async_cb(chain->ark, length, chain->key, bytes, chain->value, 0, came_back, tag)
          : ark_set_async_cb(chain->ark, length, chain->key, bytes, chain->value, came_back, tag);
  return rc == 0 ? 1 : -rc;
}

/* On a thread of the store's. */
static void came_back(int errcode, uint64_t dt, int64_t res) {
  struct chain* chain = (struct chain*)(uintptr_t)dt;
  long bytes = chain->settings->value_bytes;
  if (errcode == 0 && res != bytes) errcode = -1;
  if (errcode == 0 && bytes > 0 &&
      (chain->value[0] != letter(chain->pair) || chain->value[bytes - 1] != letter(chain->pair)))
    errcode = -1;
  if (errcode != 0) {
    end(errcode);
    return;
  }
  atomic_fetch_add_explicit(chain->reads ? &gets : &sets, 1, memory_order_relaxed);
  int issued = issue(chain);
  if (issued <= 0) end(-issued);
}

static void begin(struct chain* chains, const struct settings* settings) {
  chains_left = settings->depth;
  for (long i = 0; i < settings->depth; ++i) {
    chains[i].next_load = i;
    int issued = issue(&chains[i]);
    if (issued <= 0) end(-issued);
  }
}

static int wait_for_all(void) {
  pthread_mutex_lock(&lock);
  while (chains_left > 0) pthread_cond_wait(&ended, &lock);
  int why = error;
  pthread_mutex_unlock(&lock);
  return why;
}

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_now(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static int run(struct chain* chains, const struct settings* settings) {
  atomic_store(&loading, 1);
  double from = seconds_now();
  begin(chains, settings);
  int why = wait_for_all();
  double loaded = seconds_now() - from;
  if (why != 0) return why;
  atomic_store(&loading, 0);
  atomic_store(&gets, 0);
  atomic_store(&sets, 0);
  atomic_store(&running, 1);
  double cpu = cpu_now();
  from = seconds_now();
  begin(chains, settings);
  struct timespec pause = {settings->seconds, 0};
  while (nanosleep(&pause, &pause) != 0 && errno == EINTR) continue;
  atomic_store(&running, 0);
  if ((why = wait_for_all()) != 0) return why;
  double took = seconds_now() - from, done = (double)(gets + sets);
  printf(
      "run_kv_benchmark: %ld threads, depth %ld, %ld pairs of %ld bytes: loaded at %.0f set/s; "
      "%.0f op/s (%.0f get/s, "
      "%.0f set/s), "
      "%.1f MiB/s, %.2f CPUs, all equal\n",
      settings->threads, settings->depth, settings->pairs, settings->value_bytes,
      (double)settings->pairs / loaded, done / took, (double)gets / took, (double)sets / took,
      done * (double)settings->value_bytes / took / 1048576, (cpu_now() - cpu) / took);
  return 0;
}

static int fail(const char* what, int why) {
  fprintf(stderr, "run_kv_benchmark: %s: %s\n", what,
          why < 0 ? "what was read differs" : strerror(why));
  return 1;
}

/* 0, or the exit code + 1. */
static int read_options(int argc, char** argv, struct settings* out) {
  static const struct option names[] = {{"help", no_argument, NULL, 'h'}, {0}};
  for (int option; (option = getopt_long(argc, argv, "d:t:q:n:v:r:s:Hh", names, NULL)) != -1;) {
    long least = option == 'v' || option == 'r' ? 0 : 1,
         *number = option == 't'   ? &out->threads
                   : option == 'q' ? &out->depth
                   : option == 'n' ? &out->pairs
                   : option == 'v' ? &out->value_bytes
                   : option == 'r' ? &out->read_percent
                   : option == 's' ? &out->seconds
                                   : NULL;
    if (option == 'h') return fputs(usage, stdout), 1;
    if (option == 'd') out->place = optarg;
    if (option == 'H') out->flags |= ARK_KV_HTC;
    if (option == '?' || (number && (*number = atol(optarg)) < least))
      return fputs(usage, stderr), 3;
  }
  if (optind != argc || out->read_percent > 100 || out->threads > 256 || out->depth > 65536)
    return fputs(usage, stderr), 3;
  return 0;
}

int main(int argc, char** argv) {
  struct settings settings = {NULL, 4, 32, 10000, 4000, 100, 3, 0};
  int result = read_options(argc, argv, &settings);
  if (result != 0) return result - 1;
  struct chain* chains = calloc((size_t)settings.depth, sizeof *chains);
  char* values = malloc((size_t)settings.depth * (size_t)(settings.value_bytes + 1));
  ARK* ark = NULL;
  if (!chains || !values) return fail("memory", errno);
  /* A call still counts as under way while its callback returns, one on each thread. */
  int rc = ark_create_verbose(settings.place, &ark, 0, 4096, (uint64_t)settings.pairs,
                              (int)settings.threads, (int)settings.depth,
                              (int)(settings.depth + settings.threads), settings.flags);
  if (rc != 0) {
    fail("ark_create", rc);
  } else {
    for (long i = 0; i < settings.depth; ++i) {
      struct chain chain = {.ark = ark,
                            .settings = &settings,
                            .random = (uint64_t)i * 2654435761u + 1,
                            .value = values + i * (settings.value_bytes + 1)};
      chains[i] = chain;
    }
    int why = run(chains, &settings);
    if (why != 0) result = fail("a call", why);
    int64_t count = 0;
    if (why == 0 && (rc = ark_count(ark, &count)) == 0 && count != settings.pairs)
      result = fail("ark_count", -1);
    if (rc != 0) result = fail("ark_count", rc);
    if ((rc = ark_delete(ark)) != 0) result = fail("ark_delete", rc);
  }
  free(values);
  free(chains);
  return rc != 0 ? 1 : result;
}
