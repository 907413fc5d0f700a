// SPDX-License-Identifier: Apache-2.0
// See foreground_save.h.
#include "foreground_save.h"

#include <stdio.h>

#include <cstring>

#include "elf/program_got.h"
#include "gate_inside.h"
#include "save_ahead.h"

namespace lunar::redis {
namespace {

struct Saving {
  bool (*known)() = nullptr;
  FILE* file = nullptr;  // of the save in progress; main thread
  bool begun = false;    // its first bytes have been written
  FILE* (*fopen)(const char*, const char*) = nullptr;
  size_t (*fwrite)(const void*, size_t, size_t, FILE*) = nullptr;
  int (*fclose)(FILE*) = nullptr;
};
constinit Saving g_saving;

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
      is_dump(path, mode) && gate().on_main_thread()) {
    s.file = file;
    s.begun = false;
  }
  return file;
}

size_t hook_fwrite(const void* from, size_t size, size_t count, FILE* file) {
  Saving& s = g_saving;
  if (file == s.file && file != nullptr && gate().on_main_thread()) {
    if (!s.begun && s.known()) save_ahead_start(gate().layout);
    s.begun = true;
    save_ahead_keep_behind();
  }
  return s.fwrite(from, size, count, file);
}

int hook_fclose(FILE* file) {
  Saving& s = g_saving;
  if (file != nullptr && file == s.file && gate().on_main_thread()) {
    save_ahead_stop();
    s.file = nullptr;
  }
  return s.fclose(file);
}

}  // namespace

void foreground_save_watch(bool (*known)()) {
  Saving& s = g_saving;
  s.known = known;
  ErrorText why;
  // fopen comes last: the other hooks do nothing before it has seen the file.
  if (program_redirect("fclose", hook_fclose, &s.fclose, &why) < 0 ||
      program_redirect("fwrite", hook_fwrite, &s.fwrite, &why) < 0)
    return;
  if (program_redirect("fopen64", hook_fopen, &s.fopen, &why) < 0)
    (void)program_redirect("fopen", hook_fopen, &s.fopen, &why);
}

}  // namespace lunar::redis
