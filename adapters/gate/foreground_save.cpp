// SPDX-License-Identifier: Apache-2.0
// See foreground_save.h.
#include "foreground_save.h"

#include <pthread.h>
#include <stdio.h>

#include <cstring>

#include "elf/program_got.h"
#include "save_ahead.h"

namespace lunar::redis {
namespace {

struct Saving {
  const ServerLayout* layout = nullptr;
  bool (*known)() = nullptr;
  pthread_t main_thread{};
  FILE* file = nullptr;  // what is being saved to; main thread
  bool begun = false;    // something of it has been written
  FILE* (*fopen)(const char*, const char*) = nullptr;
  size_t (*fwrite)(const void*, size_t, size_t, FILE*) = nullptr;
  int (*fclose)(FILE*) = nullptr;
};
constinit Saving g_saving;

bool on_main_thread() { return pthread_equal(pthread_self(), g_saving.main_thread) != 0; }

bool is_dump(const char* path, const char* mode) {
  const char* slash = strrchr(path, '/');
  const char* name = slash == nullptr ? path : slash + 1;
  const size_t bytes = strlen(name);
  if (mode[0] != 'w' || bytes < 10 || memcmp(name, "temp-", 5) != 0) return false;
  return memcmp(name + bytes - 4, ".rdb", 4) == 0 || memcmp(name + bytes - 4, ".aof", 4) == 0;
}

FILE* hook_fopen(const char* path, const char* mode) {
  Saving& s = g_saving;
  FILE* file = s.fopen(path, mode);
  if (file != nullptr && s.file == nullptr && path != nullptr && mode != nullptr &&
      is_dump(path, mode) && on_main_thread()) {
    s.file = file;
    s.begun = false;
  }
  return file;
}

size_t hook_fwrite(const void* from, size_t size, size_t count, FILE* file) {
  Saving& s = g_saving;
  if (file == s.file && file != nullptr && on_main_thread()) {
    if (!s.begun && s.known()) save_ahead_start(*s.layout);
    s.begun = true;
    save_ahead_keep_behind();
  }
  return s.fwrite(from, size, count, file);
}

int hook_fclose(FILE* file) {
  Saving& s = g_saving;
  if (file != nullptr && file == s.file && on_main_thread()) {
    save_ahead_stop();
    s.file = nullptr;
  }
  return s.fclose(file);
}

template <class F>
bool redirect(const char* name, F hook, F* original) {
  ErrorText why;
  *original = reinterpret_cast<F>(program_calls(name));
  void* before = nullptr;
  return *original != nullptr &&
         program_redirect(name, reinterpret_cast<void*>(hook), &before, &why) == 0;
}

}  // namespace

// A hook without the others hands through: fopen's is the last.
void foreground_save_watch(const ServerLayout& layout, bool (*known)()) {
  Saving& s = g_saving;
  s.layout = &layout;
  s.known = known;
  s.main_thread = pthread_self();
  if (!redirect("fclose", hook_fclose, &s.fclose) || !redirect("fwrite", hook_fwrite, &s.fwrite))
    return;
  if (!redirect("fopen64", hook_fopen, &s.fopen)) (void)redirect("fopen", hook_fopen, &s.fopen);
}

}  // namespace lunar::redis
