// SPDX-License-Identifier: Apache-2.0
// A Redis module for tests of the gate. KILLER.LATER id ends that client from a thread of the
// module's. KILLER.READ name makes a thread of that name read as the server's threads do.
// KILLER.SCAN ms makes a thread scan database 1 for that long, and KILLER.SCANNING tells whether it
// still does. The part of the module ABI that is used is declared here; calls are found by name
// through the first word of a context.
// Threading: a thread holds the server's lock while it calls.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

struct Context;
struct String;
struct Reply;
struct Cursor;
struct Key;
using Function = int (*)(Context*, String**, int);

Context* (*g_context)(void* client);
void (*g_free_context)(Context*);
void (*g_lock)(Context*);
void (*g_unlock)(Context*);
Reply* (*g_call)(Context*, const char* command, const char* format, ...);
void (*g_free_reply)(Reply*);
const char* (*g_text)(const String*, size_t* length);
int (*g_answer)(Context*, const char* text);
int (*g_create)(Context*, const char* name, Function, const char* flags, int, int, int);
void (*g_attributes)(Context*, const char* name, int version, int api);

Cursor* (*g_make_cursor)();
void (*g_end_cursor)(Cursor*);
int (*g_select)(Context*, int database);
int (*g_scan)(Context*, Cursor*, void (*)(Context*, String*, Key*, void*), void*);

std::atomic<int> g_reads{0}, g_scanning{0};

void kill_client(const std::string& id) {
  Context* context = g_context(nullptr);
  g_lock(context);
  if (Reply* reply = g_call(context, "CLIENT", "ccc", "KILL", "ID", id.c_str()); reply != nullptr)
    g_free_reply(reply);
  g_unlock(context);
  g_free_context(context);
}

// The server's own syncRead() calls read() as its threads do that read for it.
void read_as(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  const auto server_reads = reinterpret_cast<ssize_t (*)(int, char*, ssize_t, long long)>(
      dlsym(RTLD_DEFAULT, "syncRead"));
  int ends[2];
  char byte = 'x';
  if (server_reads == nullptr || pipe(ends) != 0) return;
  if (write(ends[1], &byte, 1) == 1 && server_reads(ends[0], &byte, 1, 1000) == 1) ++g_reads;
  close(ends[0]);
  close(ends[1]);
}

int read(Context* context, String** words, int count) {
  if (count != 2) return g_answer(context, "which?");
  size_t length = 0;
  const char* text = g_text(words[1], &length);
  const int before = g_reads;
  std::thread(read_as, std::string(text, length)).join();
  return g_answer(context, g_reads == before ? "NOT READ" : "OK");
}

int later(Context* context, String** words, int count) {
  if (count != 2) return g_answer(context, "which?");
  size_t length = 0;
  const char* text = g_text(words[1], &length);
  std::thread(kill_client, std::string(text, length)).detach();
  return g_answer(context, "OK");
}

// Takes the lock for a few buckets at a time: the counter that pauses a rehash goes up and down
// without a pause.
void scan_for(std::chrono::milliseconds time) {
  Context* context = g_context(nullptr);
  const auto end = std::chrono::steady_clock::now() + time;
  for (bool more = true; more;) {
    g_lock(context);
    g_select(context, 1);
    Cursor* cursor = g_make_cursor();
    for (int i = 0;
         i < 200 && g_scan(
                        context, cursor, [](Context*, String*, Key*, void*) {}, nullptr) != 0;
         ++i);
    g_end_cursor(cursor);
    more = std::chrono::steady_clock::now() < end;
    g_unlock(context);
    std::this_thread::yield();
  }
  g_free_context(context);
  --g_scanning;
}

int scan(Context* context, String** words, int count) {
  if (count != 2) return g_answer(context, "how long?");
  ++g_scanning;
  std::thread(scan_for, std::chrono::milliseconds(strtol(g_text(words[1], nullptr), nullptr, 10)))
      .detach();
  return g_answer(context, "OK");
}

int scanning(Context* context, String**, int) {
  return g_answer(context, g_scanning == 0 ? "NO" : "YES");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int RedisModule_OnLoad(Context* context, String**,
                                                                         int) {
  auto get = reinterpret_cast<int (*)(const char*, void*)>(*reinterpret_cast<void**>(context));
  const auto found = [get](const char* name, auto* out) {
    return get(name, reinterpret_cast<void*>(out)) == 0;
  };
  if (!found("RedisModule_GetThreadSafeContext", &g_context) ||
      !found("RedisModule_FreeThreadSafeContext", &g_free_context) ||
      !found("RedisModule_ThreadSafeContextLock", &g_lock) ||
      !found("RedisModule_ThreadSafeContextUnlock", &g_unlock) ||
      !found("RedisModule_Call", &g_call) || !found("RedisModule_FreeCallReply", &g_free_reply) ||
      !found("RedisModule_StringPtrLen", &g_text) ||
      !found("RedisModule_ReplyWithSimpleString", &g_answer) ||
      !found("RedisModule_CreateCommand", &g_create) ||
      !found("RedisModule_SetModuleAttribs", &g_attributes) ||
      !found("RedisModule_ScanCursorCreate", &g_make_cursor) ||
      !found("RedisModule_ScanCursorDestroy", &g_end_cursor) ||
      !found("RedisModule_Scan", &g_scan) || !found("RedisModule_SelectDb", &g_select))
    return 1;
  g_attributes(context, "killer", 1, 1);
  if (g_create(context, "killer.read", read, "fast", 0, 0, 0) != 0 ||
      g_create(context, "killer.scan", scan, "fast", 0, 0, 0) != 0 ||
      g_create(context, "killer.scanning", scanning, "fast", 0, 0, 0) != 0)
    return 1;
  return g_create(context, "killer.later", later, "fast", 0, 0, 0);
}
