// SPDX-License-Identifier: Apache-2.0
// See digest_ahead.h.
#include "digest_ahead.h"

#include <dlfcn.h>
#include <pthread.h>

#include "ahead.h"
#include "command_keys.h"
#include "gate_inside.h"
#include "program_got.h"
#include "save_ahead.h"

namespace lunar::redis {
namespace {

constexpr const char* kCall = "strcasecmp";
constexpr const char* kPacedCall = "malloc";  // made for each key, and for members of hashes and sets
constexpr const char* kWord = "digest";

using Compare = int (*)(const char*, const char*);
constinit Compare g_compare = nullptr;
using Allocate = void* (*)(size_t);
constinit Allocate g_allocate = nullptr;
constinit bool g_paced = false;    // the call is redirected
constinit bool g_awaited = false;  // main thread: the word has not been compared yet

// Rights on single words of DEBUG are compared likewise, before evictions: those words are not part of the program.
bool is_of_program(const char* word) {
  Dl_info where;
  return dladdr(word, &where) != 0;
}

bool on_main_thread() { return pthread_equal(pthread_self(), gate().main_thread) != 0; }

void* hook_allocate(size_t bytes) {
  if (on_main_thread()) save_ahead_keep_behind();
  return g_allocate(bytes);
}

bool call(const char* name, void* replacement, void** before) {
  ErrorText why;
  return program_redirect(name, replacement, before, &why) == 0;
}

// The walk keeps behind the reader, as a save does. What it calls is known before it is redirected.
void pace() {
  g_allocate = reinterpret_cast<Allocate>(program_calls(kPacedCall));
  void* before = nullptr;
  g_paced = g_allocate != nullptr && call(kPacedCall, reinterpret_cast<void*>(hook_allocate), &before);
}

int hook_compare(const char* a, const char* b) {
  const int order = g_compare(a, b);
  if (order == 0 && on_main_thread() && g_awaited && g_compare(b, kWord) == 0 && is_of_program(b)) {
    g_awaited = false;
    save_ahead_start(gate().layout);
    pace();
  }
  return order;
}

}  // namespace

bool DigestAhead::is_digest(const Command& command) {
  return command.count == 2 && command.kept == 2 && same_word(command.argument[0], "DEBUG") &&
         same_word(command.argument[1], "DIGEST");
}

bool DigestAhead::possible() const {
  static const bool called = program_calls(kCall) != nullptr;
  return called && ahead_works();
}

void DigestAhead::redirect() {
  goes_ = false;
  void* before = nullptr;
  if (g_compare == nullptr) g_compare = reinterpret_cast<Compare>(program_calls(kCall));
  g_awaited = watched_ = call(kCall, reinterpret_cast<void*>(hook_compare), &before);
}

void DigestAhead::stop() {
  watched_ = g_awaited = false;
  save_ahead_stop();
  void* hook = nullptr;
  (void)call(kCall, reinterpret_cast<void*>(g_compare), &hook);
  if (g_paced) (void)call(kPacedCall, reinterpret_cast<void*>(g_allocate), &hook);
  g_paced = false;
}

}  // namespace lunar::redis
