// SPDX-License-Identifier: Apache-2.0
// liblunar-redis.so: a Redis module that puts an unmodified server's data into tiered memory.
//
//   loadmodule liblunar-redis.so dram 4gb lun /dev/nvme1n1
//
// Order of a load: first the steps that fail without side effects (calls, arguments, configuration,
// commands), then the tier, then the steps that need it (maxmemory, the gate). A refusal is one log
// line, and the server decides what follows: at start it exits.
//
// Threading: the server's main thread. This code and everything under it runs inside the server: no
// exceptions, no stdio.
#include <dlfcn.h>
#include <errno.h>

#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "commands.h"
#include "gate/gate.h"
#include "info_section.h"
#include "key_memory.h"
#include "latency.h"
#include "memory_limit.h"
#include "module_abi.h"
#include "module_settings.h"
#include "rates.h"
#include "server_config.h"
#include "tier.h"

namespace lunar::redis {

constinit Api g_api;

namespace {

constexpr const char* kName = "lunar";
bool g_loaded = false;

int refuse(Context* context, const char* why) {
  g_api.Log(context, "warning", "%s", why);
  return kError;
}

// The runtime writes its own warnings without the server's help. They go into the server's log
// file, where people look.
void log_beside_the_server(Context* context) {
  Options& options = settings();
  if (options.log_file != nullptr && options.log_file[0] != '\0') return;
  char path[4096];
  ErrorText ignored;
  if (server_config_text(context, "logfile", path, sizeof(path)) && path[0] != '\0')
    (void)options_set(&options, "log_file", path, "logfile", &ignored);
}

int start_tier_of_server(Context* context, ErrorText* why) {
  if (tier_preloaded()) {
    tier_adopt();
    g_api.Log(context, "notice",
              "this server runs under `lunar run`: its tier is used, and the module's own dram, "
              "lun and size are not");
    return 0;
  }
  log_beside_the_server(context);
  return tier_start(settings(), why);
}

void start_gate(Context* context) {
  const GateOptions options = gate_options(settings());
  if (tier().owner == TierOwner::kPreload) {  // its gate serves
    if (tier().gate != nullptr) tier().gate->set(options);
    return;
  }
  ErrorText why;
  if (gate_start(options, &why) < 0)
    g_api.Log(
        context, "warning",
        "the input gate stays open (%s): commands work, but a cold key holds up other clients",
        why.text);
}

void announce(Context* context) {
  lunar_stats stats = tier_stats();
  g_api.Log(context, "notice", "the data set may use %s of DRAM and a LUN of %s (%s)",
            format_size(stats.dram_budget_bytes).text, format_size(stats.lun_capacity_bytes).text,
            tier().owner == TierOwner::kPreload ? "lunar run" : settings().lun);
}

int load(Context* context, String** arguments, int count) {
  const char* missing = api_load(context);
  if (g_api.Log == nullptr || g_api.SetModuleAttribs == nullptr ||
      g_api.IsModuleNameBusy == nullptr)
    return kError;
  if (g_loaded || g_api.IsModuleNameBusy(kName))
    return refuse(context, "lunar: the module is loaded already");
  g_api.SetModuleAttribs(context, kName, 1, kApiVersion);
  ErrorText why;
  if (missing != nullptr) {
    (void)why.set(0,
                  "this server is too old: it has no RedisModule_%s; the module needs Redis 7.0 or "
                  "newer, or Valkey (`lunar run -- redis-server` serves older ones)",
                  missing);
    return refuse(context, why.text);
  }
  if (settings_load(arguments, count, &why) < 0) return refuse(context, why.text);
  if (settings_register(context) < 0) return kError;  // the server has logged why
  if (!commands_free(context))
    return refuse(context, "a command LUNAR exists already; unload the module that has it");
  if (info_register(context) < 0) return refuse(context, "the server refuses a section of INFO");
  if (start_tier_of_server(context, &why) < 0) return refuse(context, why.text);
  g_loaded = true;
  // Comes after everything that may fail: Valkey 8.1 crashes when it removes commands with
  // subcommands of a module that was not loaded.
  if (commands_register(context, &why) < 0)
    g_api.Log(context, "warning", "%s: the tier works, its commands do not", why.text);
  if (!key_memory_check(context))
    g_api.Log(context, "warning",
              "this server's layout of keys is not known: LUNAR MEMORY, HOT, COLD, PIN and "
              "PREFETCH will say so");
  announce(context);
  memory_limit_start(context);
  start_gate(context);
  latency_start(context);
  rates_start(context);
  return kOk;
}

}  // namespace
}  // namespace lunar::redis

extern "C" {

__attribute__((visibility("default"))) int RedisModule_OnLoad(lunar::redis::Context* context,
                                                              lunar::redis::String** arguments,
                                                              int count) {
  return lunar::redis::load(context, arguments, count);
}

// The server's memory lives in the tier; it cannot be taken back.
__attribute__((visibility("default"))) int RedisModule_OnUnload(lunar::redis::Context* context) {
  lunar::redis::g_api.Log(context, "warning",
                          "the data set is in tiered memory: restart the server without the module "
                          "instead of unloading it");
  errno = EBUSY;
  return lunar::redis::kError;
}
}
