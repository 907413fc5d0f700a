// SPDX-License-Identifier: Apache-2.0
// See settings.h.
#include "settings.h"

#include <errno.h>
#include <strings.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "memory_limit.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr size_t kValueBytesMax = 4096;

String* text(const char* value) { return g_api.CreateString(nullptr, value, strlen(value)); }

int refuse(String** error, const ErrorText& why) {
  if (error != nullptr) *error = text(why.text);
  return kError;
}

bool* switch_of(const char* name) {
  if (strcasecmp(name, "forks") == 0) return &settings().forks;
  if (strcasecmp(name, "gate") == 0) return &settings().gate.enabled;
  return nullptr;
}

int set_switch(bool* where, const char* name, const char* value, ErrorText* why) {
  bool yes = strcasecmp(value, "yes") == 0;
  if (!yes && strcasecmp(value, "no") != 0)
    return why->set(-EINVAL, "loadmodule %s: '%.48s' is neither yes nor no", name, value);
  *where = yes;
  return 0;
}

struct Number {
  const char* name;
  unsigned* where;
  unsigned least, most;
};

const Number* number_of(const char* name) {
  static const Number numbers[] = {{"gate-hold-ms", &settings().gate.hold_ms_max, 1, 10000}, {"gate-threads", &settings().gate.threads, 1, 8}};
  for (const Number& number : numbers)
    if (strcasecmp(name, number.name) == 0) return &number;
  return nullptr;
}

int set_number(const Number& number, const char* value, ErrorText* why) {
  char* end = nullptr;
  unsigned long given = strtoul(value, &end, 10);
  if (*value < '0' || *value > '9' || *end != '\0' || given < number.least || given > number.most)
    return why->set(-EINVAL, "loadmodule %s: '%.48s' is not a number from %u to %u", number.name, value, number.least, number.most);
  *number.where = static_cast<unsigned>(given);
  return 0;
}

int set_argument(const char* name, const char* value, ErrorText* why) {
  if (const Number* number = number_of(name); number != nullptr) return set_number(*number, value, why);
  if (bool* where = switch_of(name); where != nullptr) return set_switch(where, name, value, why);
  int index = option_find(name);
  if (index >= 0 && (!option_info(static_cast<size_t>(index)).flag || strcmp(name, "mmap") == 0))
    return why->set(-EINVAL, "loadmodule: '%.48s' is not for this module; give dram, lun, size, forks, gate, gate-hold-ms, gate-threads, "
                    "handlers, follow, log, log_file or stats_file", name);
  char origin[80];
  format_to(origin, sizeof(origin), index >= 0 ? "loadmodule %s" : "loadmodule", name);
  return options_set(&settings().tier, name, value, origin, why);
}

// ---- CONFIG ---------------------------------------------------------------------------------------------------------

String* g_lun_text = nullptr;   // what GET hands out: the server does not free it

String* get_lun(const char*, void*) {
  if (g_lun_text != nullptr) g_api.FreeString(nullptr, g_lun_text);
  const char* value = settings().tier.lun;
  return g_lun_text = text(value != nullptr ? value : "");
}

int set_lun(const char*, String* value, void*, String** error) {
  size_t length = 0;
  const char* given = g_api.StringPtrLen(value, &length);
  char copy[kValueBytesMax];
  format_to(copy, sizeof(copy), "%.*s", static_cast<int>(length), given);
  ErrorText why;
  return options_set(&settings().tier, "lun", copy, "lunar.lun", &why) < 0 ? refuse(error, why) : kOk;
}

long long get_size(const char*, void*) { return static_cast<long long>(settings().tier.size); }

int set_size(const char*, long long value, void*, String**) {
  settings().tier.size = static_cast<uint64_t>(value);
  return kOk;
}

long long get_dram(const char*, void*) {
  return static_cast<long long>(tier().started() ? tier_stats().dram_budget_bytes : settings().tier.dram);
}

int set_dram(const char*, long long value, void*, String** error) {
  auto bytes = static_cast<uint64_t>(value);
  if (tier().started() && bytes != tier_stats().dram_budget_bytes) {
    int rc = tier().set_dram(bytes);
    ErrorText why;
    if (rc == -EBUSY)
      return refuse(error, (why.set(rc, "%s is less than what is pinned or cannot leave DRAM; LUNAR UNPIN first, or give more",
                                    format_size(bytes).text), why));
    if (rc < 0) return refuse(error, (why.set(rc, "%s is too small; the least is 16 MiB", format_size(bytes).text), why));
  }
  settings().tier.dram = bytes;
  return kOk;
}

int get_switch(const char*, void* where) { return *static_cast<bool*>(where) ? 1 : 0; }

int set_switch_config(const char*, int value, void* where, String**) {
  *static_cast<bool*>(where) = value != 0;
  return kOk;
}

long long get_number(const char*, void* where) { return *static_cast<unsigned*>(where); }

int set_number_config(const char*, long long value, void* where, String**) {
  *static_cast<unsigned*>(where) = static_cast<unsigned>(value);
  return kOk;
}

int apply_gate(Context*, void*, String**) {
  if (tier().owner == TierOwner::kModule) gate_set(settings().gate);
  return kOk;
}

int apply_forks(Context* context, void*, String**) {
  memory_limit_recheck(context);
  return kOk;
}

}  // namespace

Settings& settings() {
  static constinit Settings instance;
  return instance;
}

int settings_load(String** arguments, int count, ErrorText* why) {
  int rc = options_load(&settings().tier, environ, why);
  for (int i = 0; rc == 0 && i < count; i += 2) {
    char name[64], value[kValueBytesMax];
    size_t length = 0;
    const char* word = g_api.StringPtrLen(arguments[i], &length);
    format_to(name, sizeof(name), "%.*s", static_cast<int>(length), word);
    if (i + 1 == count) return why->set(-EINVAL, "loadmodule: '%s' has no value; arguments are pairs, such as dram 4gb lun /dev/nvme1n1", name);
    word = g_api.StringPtrLen(arguments[i + 1], &length);
    if (length >= sizeof(value)) return why->set(-EINVAL, "loadmodule: the value of %s is too long", name);
    format_to(value, sizeof(value), "%.*s", static_cast<int>(length), word);
    rc = set_argument(name, value, why);
  }
  return rc;
}

int settings_register(Context* context) {
  Settings& now = settings();
  bool done =
      g_api.RegisterNumericConfig(context, "dram", static_cast<long long>(now.tier.dram), kConfigMemory, 0, LLONG_MAX, get_dram, set_dram,
                                  nullptr, nullptr) == kOk &&
      g_api.RegisterStringConfig(context, "lun", now.tier.lun, kConfigImmutable, get_lun, set_lun, nullptr, nullptr) == kOk &&
      g_api.RegisterNumericConfig(context, "size", static_cast<long long>(now.tier.size), kConfigMemory | kConfigImmutable, 0, LLONG_MAX,
                                  get_size, set_size, nullptr, nullptr) == kOk &&
      g_api.RegisterBoolConfig(context, "forks", now.forks, 0, get_switch, set_switch_config, apply_forks, &now.forks) == kOk &&
      g_api.RegisterBoolConfig(context, "gate", now.gate.enabled, 0, get_switch, set_switch_config, apply_gate, &now.gate.enabled) == kOk &&
      g_api.RegisterNumericConfig(context, "gate-hold-ms", now.gate.hold_ms_max, 0, 1, 10000, get_number, set_number_config, apply_gate,
                                  &now.gate.hold_ms_max) == kOk &&
      g_api.RegisterNumericConfig(context, "gate-threads", now.gate.threads, kConfigImmutable, 1, 8, get_number, set_number_config,
                                  nullptr, &now.gate.threads) == kOk;
  return done && g_api.LoadConfigs(context) == kOk ? 0 : -EINVAL;
}

}  // namespace lunar::redis
