/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of a tiered redis-server: it stores values of four times the server's DRAM budget, reads
 * all of them back and compares, and shows INFO lunar. It is an ordinary hiredis program, except
 * for the INFO fields that it reads.
 *
 *   client PORT [MIB [fill|check]]     default: 4 times `lunar_dram_budget_bytes`; both
 */
#include <hiredis/hiredis.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_BYTES = 4000, PIPELINE = 128, PATIENCE_S = 60 };

/* Makes the value of a key, which depends only on the key and is incompressible. */
static void make_value(uint64_t key, char* value) {
  uint64_t state = key * 0x9E3779B97F4A7C15u + 1;
  for (size_t at = 0; at < VALUE_BYTES; at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    memcpy(value + at, &state, sizeof(state));
  }
}

static int fail(const redisContext* server, const redisReply* reply, const char* what) {
  const char* why = reply != NULL && reply->type == REDIS_REPLY_ERROR ? reply->str
                    : server->err != 0                                ? server->errstr
                                                                      : "odd reply";
  fprintf(stderr, "client: %s: %s\n", what, why);
  return -1;
}

/* Sets the keys first..first + count, or gets and compares them. It sends all commands before it
   reads the first reply. */
static int batch(redisContext* server, uint64_t first, uint64_t count, int check) {
  char value[VALUE_BYTES];
  for (uint64_t key = first; key < first + count; ++key) {
    make_value(key, value);
    int rc = check ? redisAppendCommand(server, "GET record:%llu", (unsigned long long)key)
                   : redisAppendCommand(server, "SET record:%llu %b", (unsigned long long)key,
                                        value, sizeof(value));
    if (rc != REDIS_OK) return fail(server, NULL, "send");
  }
  int wrong = 0;
  for (uint64_t key = first; key < first + count; ++key) {
    redisReply* reply = NULL;
    if (redisGetReply(server, (void**)&reply) != REDIS_OK) return fail(server, NULL, "receive");
    if (!check && reply->type != REDIS_REPLY_STATUS) wrong = fail(server, reply, "SET");
    if (check) {
      make_value(key, value);
      if (reply->type != REDIS_REPLY_STRING || reply->len != sizeof(value) ||
          memcmp(reply->str, value, sizeof(value)) != 0) {
        fprintf(stderr, "client: record:%llu is not what was stored\n", (unsigned long long)key);
        wrong = -1;
      }
    }
    freeReplyObject(reply);
    if (wrong != 0) return wrong;
  }
  return 0;
}

static int pass(redisContext* server, uint64_t count, int check) {
  for (uint64_t done = 0; done < count; done += PIPELINE) {
    if (batch(server, done, count - done < PIPELINE ? count - done : PIPELINE, check) != 0)
      return -1;
  }
  printf("%llu values of %d bytes (%llu MiB) %s\n", (unsigned long long)count, VALUE_BYTES,
         (unsigned long long)(count * VALUE_BYTES >> 20),
         check ? "read back, all right" : "stored");
  return 0;
}

/* A number of INFO lunar; 0 if there is none. */
static unsigned long long figure(const char* info, const char* name) {
  const char* at = strstr(info, name);
  return at == NULL || at[strlen(name)] != ':' ? 0 : strtoull(at + strlen(name) + 1, NULL, 10);
}

static redisReply* info_lunar(redisContext* server) {
  redisReply* reply = redisCommand(server, "INFO lunar");
  if (reply != NULL && reply->type == REDIS_REPLY_STRING &&
      figure(reply->str, "lunar_dram_budget_bytes") > 0)
    return reply;
  (void)fail(server, reply, "INFO lunar (is the module loaded?)");
  freeReplyObject(reply);
  return NULL;
}

int main(int argc, char** argv) {
  const char* only = argc > 3 ? argv[3] : "";
  if (argc < 2 || argc > 4 ||
      (*only != 0 && strcmp(only, "fill") != 0 && strcmp(only, "check") != 0)) {
    fprintf(stderr, "usage: client PORT [MIB [fill|check]]\n");
    return 2;
  }
  redisContext* server = redisConnect("127.0.0.1", atoi(argv[1]));
  if (server == NULL || server->err != 0)
    return fprintf(stderr, "client: port %s: %s\n", argv[1], server ? server->errstr : "memory"), 1;
  struct timeval patience = {PATIENCE_S, 0};
  (void)redisSetTimeout(server, patience);

  redisReply* info = info_lunar(server);
  if (info == NULL) return 1;
  unsigned long long budget = figure(info->str, "lunar_dram_budget_bytes");
  freeReplyObject(info);
  uint64_t bytes = argc > 2 && atoi(argv[2]) > 0 ? strtoull(argv[2], NULL, 10) << 20 : 4 * budget;
  if (strcmp(only, "check") != 0 && pass(server, bytes / VALUE_BYTES, 0) != 0) return 1;
  if (strcmp(only, "fill") != 0 && pass(server, bytes / VALUE_BYTES, 1) != 0) return 1;

  info = info_lunar(server);
  if (info == NULL) return 1;
  fputs(info->str, stdout);
  unsigned long long evicted = figure(info->str, "lunar_evicted_pages");
  freeReplyObject(info);
  redisFree(server);
  if (bytes > 2 * budget && evicted == 0)
    return fprintf(stderr, "client: nothing was evicted: is this server tiered?\n"), 1;
  return 0;
}
