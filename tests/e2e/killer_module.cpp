// SPDX-License-Identifier: Apache-2.0
// A Redis module for the gate's test: KILLER.LATER id ends that client from a thread of its own, as modules with threads may. The
// slice of the module ABI is declared here; the first word of a context is where its calls are found by name.
// Threading: the thread has the server's lock while it calls. May not be used by code that ships.
#include <unistd.h>

#include <string>
#include <thread>

namespace {

struct Context;
struct String;
struct Reply;
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

void kill_client(const std::string& id) {
  Context* context = g_context(nullptr);
  g_lock(context);
  if (Reply* reply = g_call(context, "CLIENT", "ccc", "KILL", "ID", id.c_str()); reply != nullptr) g_free_reply(reply);
  g_unlock(context);
  g_free_context(context);
}

int later(Context* context, String** words, int count) {
  if (count != 2) return g_answer(context, "which?");
  size_t length = 0;
  const char* text = g_text(words[1], &length);
  std::thread(kill_client, std::string(text, length)).detach();
  return g_answer(context, "OK");
}

}   // namespace

extern "C" __attribute__((visibility("default"))) int RedisModule_OnLoad(Context* context, String**, int) {
  auto get = reinterpret_cast<int (*)(const char*, void*)>(*reinterpret_cast<void**>(context));
  const auto found = [get](const char* name, auto* out) { return get(name, reinterpret_cast<void*>(out)) == 0; };
  if (!found("RedisModule_GetThreadSafeContext", &g_context) || !found("RedisModule_FreeThreadSafeContext", &g_free_context) ||
      !found("RedisModule_ThreadSafeContextLock", &g_lock) || !found("RedisModule_ThreadSafeContextUnlock", &g_unlock) ||
      !found("RedisModule_Call", &g_call) || !found("RedisModule_FreeCallReply", &g_free_reply) ||
      !found("RedisModule_StringPtrLen", &g_text) || !found("RedisModule_ReplyWithSimpleString", &g_answer) ||
      !found("RedisModule_CreateCommand", &g_create) || !found("RedisModule_SetModuleAttribs", &g_attributes))
    return 1;
  g_attributes(context, "killer", 1, 1);
  return g_create(context, "killer.later", later, "fast", 0, 0, 0);
}
