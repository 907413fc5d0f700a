/* SPDX-License-Identifier: Apache-2.0 */
/* What dlopen_race_test loads. With DLOPEN_RACE_GROW its constructor, which runs under the linker's
 * lock, waits for a thread that allocates that many bytes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int dlopen_race_object(void);
int dlopen_race_object(void) { return 1; }

/* Memory that the linker allocates at each thread's first touch. Returns 1. */
static __thread char local[16000];
int touch_thread_local(void);
int touch_thread_local(void) {
  local[sizeof local - 1] = 1;
  return local[0] + local[sizeof local - 1];
}

static void* grow(void* bytes_text) {
  const size_t step = 256 << 10, bytes = strtoul(bytes_text, NULL, 10);
  for (size_t taken = 0; taken < bytes; taken += step) {
    void* memory = malloc(step); /* stays: the process ends with it */
    if (memory == NULL) abort();
    memset(memory, 1, step);
  }
  return NULL;
}

__attribute__((constructor)) static void loaded(void) {
  char* bytes_text = getenv("DLOPEN_RACE_GROW");
  pthread_t thread;
  if (bytes_text == NULL) return;
  if (pthread_create(&thread, NULL, grow, bytes_text) != 0) abort();
  pthread_join(thread, NULL);
}
