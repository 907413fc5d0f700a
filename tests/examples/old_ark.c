/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for IBM's libarkdb as kv_migrate reads it: 500 pairs, one key longer than any first
 * buffer, one value likewise. The place says what is wrong: "sound" nothing, "changing" a value is
 * another one at each read, "miscounted" ark_count, "unreadable" a pair, "cut short" the iterator
 * ends with an error.
 */
#include <arkdb.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 500, LONG_KEY = 7, LONG_VALUE = 9, LONG_BYTES = 200000 };

static char place[32];
static int opened, next_key, reads;

static uint64_t key_of(int pair, char* key) {
  uint64_t length = (uint64_t)sprintf(key, "old %d ", pair);
  if (pair != LONG_KEY) return length;
  memset(key + length, 'k', LONG_BYTES - length);
  return LONG_BYTES;
}

static int give(uint64_t room, int64_t* length, void* buffer) {
  static char key[LONG_BYTES + 1];
  if (next_key == PAIRS) return ENOENT;
  if (next_key == PAIRS / 2 && strcmp(place, "cut short") == 0) return EIO;
  *length = (int64_t)key_of(next_key++, key);
  memcpy(buffer, key, (uint64_t)*length < room ? (uint64_t)*length : room);
  return 0;
}

int ark_create(char* path, ARK** ark, uint64_t flags) {
  if (opened || flags != ARK_KV_PERSIST_LOAD) return EINVAL; /* it is to be read only */
  opened = 1;
  snprintf(place, sizeof place, "%s", path);
  *ark = (ARK*)8;
  return 0;
}
int ark_delete(ARK* ark) {
  (void)ark;
  opened = 0;
  return 0;
}
ARI* ark_first(ARK* ark, uint64_t room, int64_t* length, void* buffer) {
  next_key = 0;
  return give(room, length, buffer) == 0 ? (ARI*)ark : NULL;
}
int ark_next(ARI* iterator, uint64_t room, int64_t* length, void* buffer) {
  (void)iterator;
  return give(room, length, buffer);
}
int ark_get(ARK* ark, uint64_t key_length, void* key, uint64_t room, void* buffer, uint64_t offset,
            int64_t* length) {
  char head[32] = "";
  (void)ark;
  memcpy(head, key, key_length < 31 ? key_length : 31);
  int pair = atoi(head + 4);
  *length = pair == LONG_VALUE ? LONG_BYTES : pair;
  if (offset != 0) return EINVAL;
  if (pair == 300 && strcmp(place, "unreadable") == 0) return EIO;
  memset(buffer, 'a' + pair % 26, (uint64_t)*length < room ? (uint64_t)*length : room);
  if (pair == 300 && strcmp(place, "changing") == 0)
    ((char*)buffer)[299] = (char)('0' + reads++ % 10);
  return 0;
}
int ark_set(ARK* ark, uint64_t key_length, void* key, uint64_t length, void* value, int64_t* res) {
  (void)ark, (void)key_length, (void)key, (void)length, (void)value, (void)res;
  abort();
}
int ark_count(ARK* ark, int64_t* count) {
  (void)ark;
  *count = PAIRS + (strcmp(place, "miscounted") == 0);
  return 0;
}
