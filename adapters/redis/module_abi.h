// SPDX-License-Identifier: Apache-2.0
// The part of the Redis module ABI that Lunar uses, in Lunar's own declarations. A server gives out
// its calls by name through RedisModule_GetApi, whose address is the first word of the context that
// RedisModule_OnLoad gets. Layouts and numbers are those of version 1 of that ABI (Redis 7.0 and
// later, Valkey), which servers keep.
//
// A call that the server lacks is nullptr. If a required call is missing, the module names it and
// is not loaded; callers check optional calls. Threading: filled at load, read-only afterwards.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::redis {

// Opaque here.
struct Context;
struct String;
struct Key;
struct Reply;
struct Command;
struct InfoContext;
struct ServerInfo;
struct ScanCursor;
struct CommandFilter;
struct CommandFilterContext;

constexpr int kOk = 0, kError = 1, kApiVersion = 1;
constexpr int kOpenRead = 1 << 0, kOpenNoTouch = 1 << 16;
constexpr int kReplyString = 0, kReplyArray = 3;
constexpr unsigned kConfigImmutable = 1u << 0, kConfigMemory = 1u << 7;

struct Event {
  uint64_t id, version;
};
constexpr Event kEventCronLoop{8, 1}, kEventConfig{16, 1};

// RedisModuleConfigChange, version 1.
struct ConfigChange {
  uint64_t version;
  uint32_t count;
  const char** names;
};

using CommandFunction = int (*)(Context*, String**, int);
using InfoFunction = void (*)(InfoContext*, int for_crash_report);
using EventFunction = void (*)(Context*, Event, uint64_t subevent, void* data);
using TimerFunction = void (*)(Context*, void* data);
using ScanFunction = void (*)(Context*, String* name, Key*, void* data);
using FilterFunction = void (*)(CommandFilterContext*);
using GetText = String* (*)(const char* name, void* data);
using SetText = int (*)(const char* name, String* value, void* data, String** error);
using GetNumber = long long (*)(const char* name, void* data);
using SetNumber = int (*)(const char* name, long long value, void* data, String** error);
using GetBool = int (*)(const char* name, void* data);
using SetBool = int (*)(const char* name, int value, void* data, String** error);
using ApplyFunction = int (*)(Context*, void* data, String** error);

// RedisModuleCommandInfo and its parts, version 1.
enum ArgumentType : int { kArgumentInteger = 1, kArgumentKey = 3 };
constexpr int kArgumentOptional = 1 << 0, kArgumentMultiple = 1 << 1;
struct CommandArgument {
  const char* name;
  ArgumentType type;
  int key_spec;
  const char *token, *summary, *since;
  int flags;
  const char* deprecated_since;
  CommandArgument* arguments;
};
struct HistoryEntry {
  const char *since, *changes;
};
constexpr uint64_t kKeyReadOnly = 1u << 0, kKeyAccess = 1u << 4;
constexpr int kBeginAtIndex = 2, kFindRange = 2;
struct KeySpec {
  const char* notes;
  uint64_t flags;
  int begin_search;
  union {
    struct {
      int position;
    } index;
    struct {
      const char* word;
      int start;
    } keyword;
  } begin;
  int find_keys;
  union {
    struct {
      int last, step, limit;
    } range;
    struct {
      int count_index, first, step;
    } count;
  } find;
};
struct CommandInfoVersion {
  int version;
  size_t history_entry_bytes, key_spec_bytes, argument_bytes;
};
struct CommandInfo {
  const CommandInfoVersion* version;
  const char *summary, *complexity, *since;
  HistoryEntry* history;
  const char* tips;
  int arity;
  KeySpec* key_specs;
  CommandArgument* arguments;
};
static_assert(sizeof(void*) != 8 || (sizeof(CommandArgument) == 64 && sizeof(KeySpec) == 56 &&
                                     sizeof(CommandInfo) == 72));

// CALL(required, result, name, parameters)
#define LUNAR_REDIS_CALLS(CALL)                                                                  \
  CALL(true, void, SetModuleAttribs, (Context*, const char* name, int version, int api_version)) \
  CALL(true, int, IsModuleNameBusy, (const char* name))                                          \
  CALL(true, void, Log, (Context*, const char* level, const char* format, ...))                  \
  CALL(true, Reply*, Call, (Context*, const char* command, const char* format, ...))             \
  CALL(true, int, CallReplyType, (Reply*))                                                       \
  CALL(true, size_t, CallReplyLength, (Reply*))                                                  \
  CALL(true, Reply*, CallReplyArrayElement, (Reply*, size_t index))                              \
  CALL(true, const char*, CallReplyStringPtr, (Reply*, size_t* length))                          \
  CALL(true, void, FreeCallReply, (Reply*))                                                      \
  CALL(true, String*, CreateString, (Context*, const char* text, size_t length))                 \
  CALL(true, void, FreeString, (Context*, String*))                                              \
  CALL(true, const char*, StringPtrLen, (const String*, size_t* length))                         \
  CALL(true, int, CreateCommand,                                                                 \
       (Context*, const char* name, CommandFunction, const char* flags, int, int, int))          \
  CALL(true, Command*, GetCommand, (Context*, const char* name))                                 \
  CALL(true, int, CreateSubcommand,                                                              \
       (Command*, const char* name, CommandFunction, const char* flags, int, int, int))          \
  CALL(true, int, SetCommandInfo, (Command*, const CommandInfo*))                                \
  CALL(true, Key*, OpenKey, (Context*, String * name, int mode))                                 \
  CALL(true, void, CloseKey, (Key*))                                                             \
  CALL(true, int, ReplyWithError, (Context*, const char* text))                                  \
  CALL(true, int, ReplyWithLongLong, (Context*, long long value))                                \
  CALL(true, int, ReplyWithDouble, (Context*, double value))                                     \
  CALL(true, int, ReplyWithNull, (Context*))                                                     \
  CALL(true, int, ReplyWithMap, (Context*, long count))                                          \
  CALL(true, int, ReplyWithArray, (Context*, long count))                                        \
  CALL(true, int, ReplyWithSimpleString, (Context*, const char* text))                           \
  CALL(true, int, ReplyWithStringBuffer, (Context*, const char* text, size_t length))            \
  CALL(true, int, RegisterInfoFunc, (Context*, InfoFunction))                                    \
  CALL(true, int, InfoAddSection, (InfoContext*, const char* name))                              \
  CALL(true, int, InfoAddFieldCString, (InfoContext*, const char* field, const char* value))     \
  CALL(true, int, InfoAddFieldDouble, (InfoContext*, const char* field, double value))           \
  CALL(true, int, InfoAddFieldULongLong,                                                         \
       (InfoContext*, const char* field, unsigned long long value))                              \
  CALL(true, int, SubscribeToServerEvent, (Context*, Event, EventFunction))                      \
  CALL(true, uint64_t, CreateTimer, (Context*, long long period_ms, TimerFunction, void* data))  \
  CALL(true, int, RegisterStringConfig,                                                          \
       (Context*, const char* name, const char* value, unsigned flags, GetText, SetText,         \
        ApplyFunction, void* data))                                                              \
  CALL(true, int, RegisterNumericConfig,                                                         \
       (Context*, const char* name, long long value, unsigned flags, long long least,            \
        long long most, GetNumber, SetNumber, ApplyFunction, void* data))                        \
  CALL(true, int, RegisterBoolConfig,                                                            \
       (Context*, const char* name, int value, unsigned flags, GetBool, SetBool, ApplyFunction,  \
        void* data))                                                                             \
  CALL(true, int, LoadConfigs, (Context*))                                                       \
  CALL(false, int, SetCommandACLCategories, (Command*, const char* categories))                  \
  CALL(false, void, LatencyAddSample, (const char* event, long long milliseconds))               \
  CALL(true, ServerInfo*, GetServerInfo, (Context*, const char* section))                        \
  CALL(true, unsigned long long, ServerInfoGetFieldUnsigned,                                     \
       (ServerInfo*, const char* field, int* error))                                             \
  CALL(true, void, FreeServerInfo, (Context*, ServerInfo*))                                      \
  CALL(true, Context*, GetDetachedThreadSafeContext, (Context*))                                 \
  CALL(true, CommandFilter*, RegisterCommandFilter, (Context*, FilterFunction, int flags))       \
  CALL(true, const String*, CommandFilterArgGet, (CommandFilterContext*, int position))          \
  CALL(true, int, CommandFilterArgReplace, (CommandFilterContext*, int position, String*))       \
  CALL(true, int, GetContextFlags, (Context*))                                                   \
  CALL(true, int, SelectDb, (Context*, int database))                                            \
  CALL(true, ScanCursor*, ScanCursorCreate, ())                                                  \
  CALL(true, void, ScanCursorRestart, (ScanCursor*))                                             \
  CALL(true, int, Scan, (Context*, ScanCursor*, ScanFunction, void* data))

struct Api {
#define LUNAR_REDIS_MEMBER(required, result, name, parameters) result(*name) parameters = nullptr;
  LUNAR_REDIS_CALLS(LUNAR_REDIS_MEMBER)
#undef LUNAR_REDIS_MEMBER
};
extern constinit Api g_api;

// Fills g_api. nullptr, or the name of a required call that the server lacks; the other calls are
// filled in then.
inline const char* api_load(Context* context) {
  auto get = reinterpret_cast<int (*)(const char*, void*)>(*reinterpret_cast<void**>(context));
  const char* missing = nullptr;
#define LUNAR_REDIS_FETCH(required, result, name, parameters)                   \
  if (get("RedisModule_" #name, reinterpret_cast<void*>(&g_api.name)) != kOk) { \
    g_api.name = nullptr;                                                       \
    if ((required) && missing == nullptr) missing = #name;                      \
  }
  LUNAR_REDIS_CALLS(LUNAR_REDIS_FETCH)
#undef LUNAR_REDIS_FETCH
  return missing;
}

}  // namespace lunar::redis
