/* SPDX-License-Identifier: Apache-2.0
 * arkdb.h as a program in C has it: each call once, with the types that IBM's programs use.
 */
#include <arkdb.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;
#define WANT(condition)                                                               \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "ark_in_c: line %d: check failed: %s\n", __LINE__, #condition); \
      ++failures;                                                                     \
    }                                                                                 \
  } while (0)

static volatile int called = 0;
static void callback(int errcode, uint64_t dt, int64_t res) {
  if (errcode == 0 && dt == 7 && res == 5) __atomic_fetch_add(&called, 1, __ATOMIC_RELEASE);
}

int main(void) {
  ARK* ark = NULL;
  ARC* arc = NULL;
  ARI* ari = NULL;
  char key[] = "key", value[] = "value", buffer[64];
  int64_t res = 0, klen = 0, keys = 0, count = 0;
  uint64_t size = 0, ops = 0, ios = 0, length = 0;
  WANT(sizeof(keye_t) == 8);
  WANT(ark_create_verbose("mem:16m", &ark, 1048576, 4096, 1000, 2, 400, 64,
                          ARK_KV_VIRTUAL_LUN | ARK_KV_HTC) == 0);
  WANT(ark_connect_verbose(&arc, ark, 16) == 0);
  WANT(ark_set(arc, 3, key, 5, value, &res) == 0 && res == 5);
  WANT(ark_get(arc, 3, key, sizeof buffer, buffer, 0, &res) == 0 && res == 5 &&
       memcmp(buffer, "value", 5) == 0);
  WANT(ark_exists(ark, 3, key, &res) == 0 && res == 5);
  WANT(ark_set(ark, 0, NULL, 0, NULL, &res) == 0);
  WANT(ark_set_async_cb(arc, 3, key, 5, value, callback, 7) == 0);
  WANT(ark_get_async_cb(arc, 3, key, 5, buffer, 0, callback, 7) == 0);
  WANT(ark_exists_async_cb(arc, 3, key, callback, 7) == 0);
  WANT(ark_del_async_cb(arc, 3, key, callback, 7) == 0);
  WANT(ark_disconnect(arc) == 0);
  WANT(__atomic_load_n(&called, __ATOMIC_ACQUIRE) == 4);
  WANT(ark_set(ark, 3, key, 5, value, &res) == 0);
  ari = ark_first(ark, sizeof buffer, &klen, buffer);
  WANT(ari != NULL && (klen == 0 || klen == 3));
  if (ari) {
    WANT(ark_nextN(ari, sizeof buffer, buffer, &keys) == 0 && keys == 1);
    WANT(((keye_t*)buffer)->len == (uint64_t)(3 - klen));
    WANT((char*)BMP_KEYE((keye_t*)buffer) == buffer + 8 + (3 - klen));
    WANT(ark_next(ari, sizeof buffer, &klen, buffer) == ENOENT);
  }
  WANT(ark_random(ark, sizeof buffer, &length, buffer) == 0 && (length == 0 || length == 3));
  ops = length;
  WANT(ark_random(ark, sizeof buffer, &length, buffer) == 0 &&
       length == 3 - ops); /* the other one */
  length = 7;
  WANT(ark_random(ark, 0, &length, buffer) == EINVAL && length == 7);
  WANT(ark_allocated(ark, &size) == 0 && ark_inuse(ark, &size) == 0 &&
       ark_actual(ark, &size) == 0 && size == 8);
  WANT(ark_count(ark, &count) == 0 && count == 2);
  WANT(ark_stats(ark, &ops, &ios) == 0 && ops > 5 && ios == 0);
  WANT(ark_del(ark, 3, key, &res) == 0 && res == 5);
  WANT(ark_flush(ark) == 0 && ark_fork_done(ark) == 0);
  WANT(ark_count(ark, &count) == 0 && count == 0 && ark_inuse(ark, &size) == 0 && size == 0);
  WANT(ark_delete(ark) == 0);
  return failures != 0;
}
