// SPDX-License-Identifier: Apache-2.0
// See server_config.h.
#include "server_config.h"

#include <cstdlib>
#include <cstring>

namespace lunar::redis {
namespace {

struct Watch {
  const char* name;
  void (*changed)(Context*);
};
Watch g_watches[kWatchesMax];
unsigned g_watch_count = 0;

void on_config(Context* context, Event, uint64_t, void* data) {
  const auto* change = static_cast<const ConfigChange*>(data);
  for (uint32_t i = 0; change != nullptr && i < change->count; ++i)
    for (unsigned w = 0; w < g_watch_count; ++w)
      if (strcmp(change->names[i], g_watches[w].name) == 0) g_watches[w].changed(context);
}

}  // namespace

bool server_config_text(Context* context, const char* name, char* out, size_t size) {
  Reply* reply = g_api.Call(context, "CONFIG", "cc", "GET", name);
  if (reply == nullptr) return false;
  bool got = false;
  if (g_api.CallReplyType(reply) == kReplyArray && g_api.CallReplyLength(reply) == 2) {
    size_t length = 0;
    const char* text = g_api.CallReplyStringPtr(g_api.CallReplyArrayElement(reply, 1), &length);
    if (text != nullptr && length < size) {
      memcpy(out, text, length);
      out[length] = '\0';
      got = true;
    }
  }
  g_api.FreeCallReply(reply);
  return got;
}

bool server_config_number(Context* context, const char* name, uint64_t* out) {
  char digits[32];
  if (!server_config_text(context, name, digits, sizeof(digits)) || digits[0] == '\0') return false;
  *out = strtoull(digits, nullptr, 10);
  return true;
}

bool server_config_watch(Context* context, const char* name, void (*changed)(Context*)) {
  if (g_watch_count == kWatchesMax ||
      g_api.SubscribeToServerEvent(context, kEventConfig, on_config) != kOk)
    return false;
  g_watches[g_watch_count++] = {name, changed};
  return true;
}

}  // namespace lunar::redis
