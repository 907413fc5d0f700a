// SPDX-License-Identifier: Apache-2.0
// See server_cron.h.
#include "server_cron.h"

namespace lunar::redis {
namespace {

void (*g_functions[kCronMax])(Context*);
unsigned g_count = 0;

void on_cron(Context* context, Event, uint64_t, void*) {
  for (unsigned i = 0; i < g_count; ++i) g_functions[i](context);
}

}  // namespace

bool server_cron_add(Context* context, void (*function)(Context*)) {
  if (g_count == kCronMax ||
      (g_count == 0 && g_api.SubscribeToServerEvent(context, kEventCronLoop, on_cron) != kOk))
    return false;
  g_functions[g_count++] = function;
  return true;
}

}  // namespace lunar::redis
