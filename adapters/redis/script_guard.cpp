// SPDX-License-Identifier: Apache-2.0
// See script_guard.h.
#include "script_guard.h"

#include <strings.h>

#include <cstring>

#include "base/format.h"

namespace lunar::redis {
namespace {

constexpr unsigned kNamesMax = 256;
constexpr size_t kNameBytes = 24;
char g_names[kNamesMax][kNameBytes];
unsigned g_count = 0;
bool g_told = false;
constexpr char kRefusal[] = "refused-by-lunar:the-LUN-is-full";

bool has_flag(Reply* flags, const char* wanted) {
  for (size_t i = 0; i < g_api.CallReplyLength(flags); ++i) {
    size_t length = 0;
    const char* flag = g_api.CallReplyStringPtr(g_api.CallReplyArrayElement(flags, i), &length);
    if (flag != nullptr && length == strlen(wanted) && memcmp(flag, wanted, length) == 0)
      return true;
  }
  return false;
}

bool may_allocate(const char* name, size_t length) {
  for (unsigned i = 0; i < g_count; ++i)
    if (strlen(g_names[i]) == length && strncasecmp(g_names[i], name, length) == 0) return true;
  return false;
}

}  // namespace

void script_guard_start(Context* context) {
  Reply* all = g_api.Call(context, "COMMAND", "");
  const bool usable = all != nullptr && g_api.CallReplyType(all) == kReplyArray;
  for (size_t i = 0; usable && i < g_api.CallReplyLength(all) && g_count < kNamesMax; ++i) {
    Reply* command = g_api.CallReplyArrayElement(all, i);
    if (g_api.CallReplyType(command) != kReplyArray || g_api.CallReplyLength(command) < 3) continue;
    size_t length = 0;
    const char* name = g_api.CallReplyStringPtr(g_api.CallReplyArrayElement(command, 0), &length);
    if (name == nullptr || length >= kNameBytes ||
        !has_flag(g_api.CallReplyArrayElement(command, 2), "denyoom"))
      continue;
    format_to(g_names[g_count++], kNameBytes, "%.*s", static_cast<int>(length), name);
  }
  if (all != nullptr) g_api.FreeCallReply(all);
  if (g_count == 0)
    g_api.Log(
        context, "warning",
        "this server does not say which commands allocate: a script may fill the LUN and end it");
}

void script_guard(Context* context, CommandFilterContext* command) {
  constexpr int kInScript = 1 << 0, kReplica = 1 << 3;
  if ((g_api.GetContextFlags(context) & (kInScript | kReplica)) != kInScript) return;
  size_t length = 0;
  const char* name = g_api.StringPtrLen(g_api.CommandFilterArgGet(command, 0), &length);
  if (!may_allocate(name, length)) return;
  g_api.CommandFilterArgReplace(command, 0,
                                g_api.CreateString(nullptr, kRefusal, sizeof(kRefusal) - 1));
  if (!g_told)
    g_api.Log(context, "warning",
              "a script is ended at its next write: the LUN is full; give a larger size");
  g_told = true;
}

}  // namespace lunar::redis
