/* SPDX-License-Identifier: Apache-2.0
 * libarkdb, but that of every 64th value which is read one bit is wrong: what a bench that checks
 * its values must notice. */
#include <arkdb.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Of libarkdb: so that this library is linked with it, where dlsym finds all that is not here. */
__attribute__((used)) static int (*const of_libarkdb)(ARK*) = ark_delete;

static atomic_uint reads;

static void spoil(char* value, int64_t length) {
  if (length > 0 && atomic_fetch_add(&reads, 1) % 64 == 0) value[length - 1] ^= 1;
}

int ark_get(ARK* ark, uint64_t klen, void* key, uint64_t room, void* value, uint64_t offset,
            int64_t* length) {
  int (*get)(ARK*, uint64_t, void*, uint64_t, void*, uint64_t, int64_t*);
  *(void**)&get = dlsym(RTLD_NEXT, "ark_get");
  const int code = get(ark, klen, key, room, value, offset, length);
  if (code == 0) spoil(value, *length);
  return code;
}

struct call {
  void (*callback)(int, uint64_t, int64_t);
  uint64_t tag;
  char* value;
};

static void came_back(int code, uint64_t tag, int64_t length) {
  struct call* call = (struct call*)(uintptr_t)tag;
  const struct call done = *call;
  free(call);
  if (code == 0) spoil(done.value, length);
  done.callback(code, done.tag, length);
}

int ark_get_async_cb(ARK* ark, uint64_t klen, void* key, uint64_t room, void* value,
                     uint64_t offset, void (*callback)(int, uint64_t, int64_t), uint64_t tag) {
  int (*get)(ARK*, uint64_t, void*, uint64_t, void*, uint64_t, void (*)(int, uint64_t, int64_t),
             uint64_t);
  *(void**)&get = dlsym(RTLD_NEXT, "ark_get_async_cb");
  struct call* call = malloc(sizeof *call);
  if (!call) return 12;
  call->callback = callback;
  call->tag = tag;
  call->value = value;
  const int code = get(ark, klen, key, room, value, offset, came_back, (uint64_t)(uintptr_t)call);
  if (code != 0) free(call);
  return code;
}
