// SPDX-License-Identifier: Apache-2.0
// The one options table. Each setting is in options.def once; the table drives the defaults, the
// config file, the LUNAR_* environment, the flags of `lunar run`, `--help` and the option tables of
// the documents. Order of precedence: default < config file < environment < flag. An unknown
// LUNAR_* variable causes a warning, an unknown flag or config key an error. Both messages name the
// nearest known one.
//
// Threading: filled once, before threads; read-only afterwards. Does not allocate from the host's
// heap (strings live in the arena): the preload library parses its environment with it before the
// host's main().
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar {

enum class OptionType : uint8_t { kSize, kUnsigned, kBool, kString, kChoice };

struct OptionInfo {
  const char* name;  // "dram": flag --dram, variable LUNAR_DRAM, config key `dram`
  OptionType type;
  // "SIZE", "PATH|DIR|URI", "error|warning|info" (the choices, for kChoice), "1..8" (the
  // bounds, for kUnsigned)
  const char* value_name;
  const char* default_text;
  const char* help;  // one sentence
  bool flag;         // also a flag of `lunar run`; otherwise environment / config only
  bool test_only;    // hidden from --help and documents: set by `lunar run` or by tests
};

// The values. Each line of options.def makes one member, of the type named there.
struct Options {
#define LUNAR_OPTION_SIZE(name, def, flag, test, value, help) uint64_t name = 0;
#define LUNAR_OPTION_UNSIGNED(name, def, flag, test, value, help) uint64_t name = 0;
#define LUNAR_OPTION_BOOL(name, def, flag, test, value, help) bool name = false;
#define LUNAR_OPTION_STRING(name, def, flag, test, value, help) const char* name = nullptr;
#define LUNAR_OPTION_CHOICE(name, def, flag, test, value, help) const char* name = nullptr;
#include "config/options.def"
#undef LUNAR_OPTION_SIZE
#undef LUNAR_OPTION_UNSIGNED
#undef LUNAR_OPTION_BOOL
#undef LUNAR_OPTION_STRING
#undef LUNAR_OPTION_CHOICE
};

size_t option_count();
const OptionInfo& option_info(size_t index);
// Index by name ("dram", "--dram", "LUNAR_DRAM", case and -/_ folded; also a name from an earlier
// version); -1: unknown.
int option_find(const char* name);
// The nearest known name (base/likeness.h), or nullptr when none is near. Used for "unknown X; did
// you mean Y?".
const char* option_nearest(const char* name);

// Sets *options to the defaults.
void options_defaults(Options* options);
// Sets one value by name. The error line names `origin` ("--dram", "LUNAR_DRAM",
// "/etc/lunar.conf:3").
[[nodiscard]] int options_set(Options* options, const char* name, const char* value,
                              const char* origin, ErrorText* why);
// Loads `key = value` lines and '#' comments. -ENOENT: there is no such file (the caller decides
// whether that matters); -EPERM: it is not trusted (config/trust.h).
[[nodiscard]] int options_load_file(Options* options, const char* path, ErrorText* why);
// Loads all LUNAR_* variables of `environment` (environ-style). A variable that is unknown here and
// in config/variables.h causes a warning in the log, not an error.
[[nodiscard]] int options_load_environment(Options* options, const char* const* environment,
                                           ErrorText* why);
// Sets the defaults, then loads the config file (LUNAR_CONFIG, else ~/.config/lunar.conf, else
// /etc/lunar.conf; missing = skipped), then the environment. Ignores untrusted sources
// (config/trust.h): a default config file with a warning. An untrusted file that LUNAR_CONFIG names
// is an error.
[[nodiscard]] int options_load(Options* options, const char* const* environment, ErrorText* why);

}  // namespace lunar
