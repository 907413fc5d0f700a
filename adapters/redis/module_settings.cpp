// SPDX-License-Identifier: Apache-2.0
// See module_settings.h.
#include "module_settings.h"

#include <errno.h>
#include <strings.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "memory_limit.h"
#include "server_limits.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr size_t kValueBytesMax = 4096;

String* text(const char* value) { return g_api.CreateString(nullptr, value, strlen(value)); }

int refuse(String** error, const ErrorText& why) {
  if (error != nullptr) *error = text(why.text);
  return kError;
}

int set_argument(const char* name, const char* value, ErrorText* why) {
  int index = option_find(name);
  const OptionInfo* option = index < 0 ? nullptr : &option_info(static_cast<size_t>(index));
  if (option != nullptr &&
      ((!option->flag && strcmp(option->name, "forks") != 0) || strcmp(option->name, "mmap") == 0))
    return why->set(
        -EINVAL,
        "loadmodule: '%.48s' is not for this module; give dram, lun, size, forks, gate, "
        "gate-hold-ms, gate-threads, handlers, follow, log, log_file or stats_file",
        name);
  char origin[80];
  format_to(origin, sizeof(origin), index >= 0 ? "loadmodule %s" : "loadmodule", name);
  return options_set(&settings(), name, value, origin, why);
}

// ---- CONFIG -------------------------------------------------------------------------------------

String* g_lun_text = nullptr;  // the last reply to GET, which the server does not free

String* get_lun(const char*, void*) {
  if (g_lun_text != nullptr) g_api.FreeString(nullptr, g_lun_text);
  const char* value = settings().lun;
  return g_lun_text = text(value != nullptr ? value : "");
}

int set_lun(const char*, String* value, void*, String** error) {
  size_t length = 0;
  const char* given = g_api.StringPtrLen(value, &length);
  char copy[kValueBytesMax];
  format_to(copy, sizeof(copy), "%.*s", static_cast<int>(length), given);
  ErrorText why;
  return options_set(&settings(), "lun", copy, "lunar.lun", &why) < 0 ? refuse(error, why) : kOk;
}

long long get_size(const char*, void*) { return static_cast<long long>(settings().size); }

int set_size(const char*, long long value, void*, String**) {
  settings().size = static_cast<uint64_t>(value);
  return kOk;
}

long long get_dram(const char*, void*) {
  return static_cast<long long>(tier().started() ? tier_stats().dram_budget_bytes
                                                 : settings().dram);
}

int set_dram(const char*, long long value, void*, String** error) {
  auto bytes = static_cast<uint64_t>(value);
  if (tier().started() && bytes != tier_stats().dram_budget_bytes) {
    int rc = tier().set_dram(bytes);
    ErrorText why;
    if (rc == -EBUSY)
      return refuse(error, (why.set(rc,
                                    "%s is less than what is pinned or cannot leave DRAM; LUNAR "
                                    "UNPIN first, or give more",
                                    format_size(bytes).text),
                            why));
    if (rc < 0)
      return refuse(error,
                    (why.set(rc,
                             bytes < 16 * kMiB ? "%s is too small; the least is 16 MiB"
                                               : "%s is more than this machine has; give less",
                             format_size(bytes).text),
                     why));
  }
  settings().dram = bytes;
  return kOk;
}

int get_switch(const char*, void* where) { return *static_cast<bool*>(where) ? 1 : 0; }

int set_switch_config(const char*, int value, void* where, String**) {
  *static_cast<bool*>(where) = value != 0;
  return kOk;
}

long long get_number(const char*, void* where) {
  return static_cast<long long>(*static_cast<uint64_t*>(where));
}

int set_number_config(const char*, long long value, void* where, String**) {
  *static_cast<uint64_t*>(where) = static_cast<uint64_t>(value);
  return kOk;
}

int apply_gate(Context*, void*, String**) {
  if (tier().gate != nullptr) tier().gate->set(gate_options(settings()));
  return kOk;
}

int apply_forks(Context* context, void*, String**) {
  memory_limit_recheck(context);
  return kOk;
}

}  // namespace

Options& settings() {
  static constinit Options instance;
  return instance;
}

int settings_load(String** arguments, int count, ErrorText* why) {
  int rc = options_load(&settings(), environ, why);
  for (int i = 0; rc == 0 && i < count; i += 2) {
    char name[64], value[kValueBytesMax];
    size_t length = 0;
    const char* word = g_api.StringPtrLen(arguments[i], &length);
    format_to(name, sizeof(name), "%.*s", static_cast<int>(length), word);
    if (i + 1 == count)
      return why->set(
          -EINVAL,
          "loadmodule: '%s' has no value; arguments are pairs, such as dram 4gb lun /dev/nvme1n1",
          name);
    word = g_api.StringPtrLen(arguments[i + 1], &length);
    if (length >= sizeof(value))
      return why->set(-EINVAL, "loadmodule: the value of %s is too long", name);
    format_to(value, sizeof(value), "%.*s", static_cast<int>(length), word);
    rc = set_argument(name, value, why);
  }
  return rc;
}

int settings_register(Context* context) {
  Options& now = settings();
  bool done =
      limits_register(context) &&
      g_api.RegisterNumericConfig(context, "dram", static_cast<long long>(now.dram), kConfigMemory,
                                  0, LLONG_MAX, get_dram, set_dram, nullptr, nullptr) == kOk &&
      g_api.RegisterStringConfig(context, "lun", now.lun, kConfigImmutable, get_lun, set_lun,
                                 nullptr, nullptr) == kOk &&
      g_api.RegisterNumericConfig(context, "size", static_cast<long long>(now.size),
                                  kConfigMemory | kConfigImmutable, 0, LLONG_MAX, get_size,
                                  set_size, nullptr, nullptr) == kOk &&
      g_api.RegisterBoolConfig(context, "forks", now.forks, 0, get_switch, set_switch_config,
                               apply_forks, &now.forks) == kOk &&
      g_api.RegisterBoolConfig(context, "gate", now.gate, 0, get_switch, set_switch_config,
                               apply_gate, &now.gate) == kOk &&
      g_api.RegisterNumericConfig(context, "gate-hold-ms", static_cast<long long>(now.gate_hold_ms),
                                  0, 1, 10000, get_number, set_number_config, apply_gate,
                                  &now.gate_hold_ms) == kOk &&
      g_api.RegisterNumericConfig(context, "gate-threads", static_cast<long long>(now.gate_threads),
                                  kConfigImmutable, 1, 8, get_number, set_number_config, nullptr,
                                  &now.gate_threads) == kOk;
  return done && g_api.LoadConfigs(context) == kOk ? 0 : -EINVAL;
}

}  // namespace lunar::redis
