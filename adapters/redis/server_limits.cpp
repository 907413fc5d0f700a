// SPDX-License-Identifier: Apache-2.0
// See server_limits.h.
#include "server_limits.h"

#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "server_config.h"

namespace lunar::redis {
namespace {

struct Value {
  const char* name;
  bool known = false;
  uint64_t own = 0, holds = 0;
  bool was_written = false;  // by CONFIG REWRITE of an earlier life
  uint64_t written_own = 0, written_holds = 0;
};
Value g_values[kLimits] = {{"maxmemory"}, {"maxmemory-clients"}, {"proto-max-bulk-len"}};
constexpr size_t kTextBytes = 256;
void (*g_changed)(Context*) = nullptr;
bool g_told = false;       // the server has an event for changes
String* g_text = nullptr;  // the last reply to GET, which the server does not free

Value& value_of(Limit limit) { return g_values[static_cast<unsigned>(limit)]; }

String* get_text(const char*, void*) {
  char text[kTextBytes] = "";
  size_t length = 0;
  for (const Value& value : g_values) {
    if (!value.known || value.own == value.holds) continue;
    length += static_cast<size_t>(format_to(
        text + length, sizeof(text) - length, "%s%s %llu %llu", length == 0 ? "" : " ", value.name,
        static_cast<unsigned long long>(value.own), static_cast<unsigned long long>(value.holds)));
  }
  if (g_text != nullptr) g_api.FreeString(nullptr, g_text);
  return g_text = g_api.CreateString(nullptr, text, length);
}

// Reads repeated NAME OWN HOLDS. Skips anything else, which says nothing about the limits in force.
int set_text(const char*, String* given, void*, String**) {
  size_t length = 0;
  const char* text = g_api.StringPtrLen(given, &length);
  char copy[kTextBytes], *rest = nullptr;
  format_to(copy, sizeof(copy), "%.*s", static_cast<int>(length), text);
  for (char* name = strtok_r(copy, " ", &rest); name != nullptr;
       name = strtok_r(nullptr, " ", &rest)) {
    const char* own = strtok_r(nullptr, " ", &rest);
    const char* holds = strtok_r(nullptr, " ", &rest);
    if (own == nullptr || holds == nullptr) break;
    for (Value& value : g_values) {
      if (strcmp(value.name, name) != 0) continue;
      value.was_written = true;
      value.written_own = strtoull(own, nullptr, 10);
      value.written_holds = strtoull(holds, nullptr, 10);
    }
  }
  return kOk;
}

// False: the server has no such limit, or it is a percentage (of maxmemory), which is left to the
// user.
bool read(Context* context, const char* name, uint64_t* out) {
  char text[32];
  if (!server_config_text(context, name, text, sizeof(text)) || text[0] == '\0' ||
      strchr(text, '%') != nullptr)
    return false;
  *out = strtoull(text, nullptr, 10);
  return true;
}

// A value that the module has not set is the user's. True: the user has changed it.
bool refresh(Context* context, Value& value) {
  uint64_t now = 0;
  const bool was_known = value.known;
  value.known = read(context, value.name, &now);
  if (!value.known || (was_known && now == value.holds)) return false;
  value.own = value.holds = now;
  return true;
}

void on_change(Context* context) {
  bool any = false;
  for (Value& value : g_values) any |= refresh(context, value);
  if (any && g_changed != nullptr) g_changed(context);
}

}  // namespace

bool limits_register(Context* context) {
  return g_api.RegisterStringConfig(context, "limits", "", kConfigImmutable, get_text, set_text,
                                    nullptr, nullptr) == kOk;
}

void limits_start(Context* context, void (*changed)(Context*)) {
  g_told = true;
  for (Value& value : g_values) {
    value.known = read(context, value.name, &value.holds);
    value.own =
        value.was_written && value.written_holds == value.holds ? value.written_own : value.holds;
    if (!server_config_watch(context, value.name, on_change)) g_told = false;
  }
  g_changed = changed;
}

bool limit_known(Limit limit) { return value_of(limit).known; }
uint64_t limit_own(Limit limit) { return value_of(limit).own; }
uint64_t limit_holds(Limit limit) { return value_of(limit).holds; }

bool limit_set(Context* context, Limit limit, uint64_t bytes) {
  Value& value = value_of(limit);
  if (!value.known) return false;
  if (value.holds == bytes) return true;
  const uint64_t before = value.holds;
  value.holds = bytes;  // before the server's event for the change
  char digits[32];
  format_to(digits, sizeof(digits), "%llu", static_cast<unsigned long long>(bytes));
  Reply* reply = g_api.Call(context, "CONFIG", "ccc", "SET", value.name, digits);
  const bool done = reply != nullptr && g_api.CallReplyType(reply) == kReplyString;
  if (reply != nullptr) g_api.FreeCallReply(reply);
  if (!done) value.holds = before;
  return done;
}

void limits_poll(Context* context) {
  if (!g_told) on_change(context);
}

}  // namespace lunar::redis
