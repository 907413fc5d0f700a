// SPDX-License-Identifier: Apache-2.0
// The options table and its readers. Every option is one row of kTable, made from options.def; a
// value is set through the row's offset into struct Options.
// Threading: filled once, before threads. Does not use the host's heap: copies strings into the
// arena, and reads a config file into a private mapping. Must work before the host's main().
#include "config/options.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <initializer_list>

#include "base/format.h"
#include "base/likeness.h"
#include "base/test_switches.h"
#include "base/units.h"
#include "config/trust.h"
#include "config/variables.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar {
namespace {

struct Row {
  OptionInfo info;
  size_t offset;           // in Options
  bool is_switch = false;  // in TestSwitches
};

constexpr Row kTable[] = {
#define LUNAR_ROW(type, name, def, flag, test, value, help) \
  {{#name, OptionType::type, value, def, help, flag, test}, offsetof(Options, name)},
#define LUNAR_OPTION_SIZE(...) LUNAR_ROW(kSize, __VA_ARGS__)
#define LUNAR_OPTION_UNSIGNED(...) LUNAR_ROW(kUnsigned, __VA_ARGS__)
#define LUNAR_OPTION_BOOL(...) LUNAR_ROW(kBool, __VA_ARGS__)
#define LUNAR_OPTION_STRING(...) LUNAR_ROW(kString, __VA_ARGS__)
#define LUNAR_OPTION_CHOICE(...) LUNAR_ROW(kChoice, __VA_ARGS__)
#include "config/options.def"
#undef LUNAR_OPTION_SIZE
#undef LUNAR_OPTION_UNSIGNED
#undef LUNAR_OPTION_BOOL
#undef LUNAR_OPTION_STRING
#undef LUNAR_OPTION_CHOICE
#undef LUNAR_ROW
#ifdef LUNAR_TEST_SWITCHES
#define LUNAR_SWITCH_ROW(type, name, value, def, help)               \
  {{"test_" #name, OptionType::type, value, def, help, false, true}, \
   offsetof(TestSwitches, name),                                     \
   true},
#define LUNAR_SWITCH_BOOL(name, help) LUNAR_SWITCH_ROW(kBool, name, "yes|no", "no", help)
#define LUNAR_SWITCH_UNSIGNED(name, value, help) LUNAR_SWITCH_ROW(kUnsigned, name, value, "0", help)
#include "base/test_switches.def"
#undef LUNAR_SWITCH_BOOL
#undef LUNAR_SWITCH_UNSIGNED
#undef LUNAR_SWITCH_ROW
#endif
};
constexpr size_t kCount = sizeof kTable / sizeof kTable[0];
constexpr size_t kNameBytes = 64;
constexpr size_t kConfigBytesMax = 64 * kKiB;
constexpr char kPrefix[] = "LUNAR_";
constexpr size_t kPrefixLength = sizeof kPrefix - 1;

// Names that options had in earlier versions.
constexpr const char* kFormerNames[][2] = {{"arm_at", "activate_at"}};

constexpr char kBlanks[] = " \t\r\n";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool equal(const char* a, const char* b) { return strcmp(a, b) == 0; }
bool starts_with(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}
bool is_blank(char c) { return c != '\0' && strchr(kBlanks, c) != nullptr; }

// "--stats-file", "LUNAR_STATS_FILE", "Stats-File" -> "stats_file". False when `name` cannot be a
// name.
bool fold_name(const char* name, char out[kNameBytes]) {
  if (name[0] == '-' && name[1] == '-') name += 2;
  size_t n = 0;
  for (; *name; ++name) {
    if (n + 1 >= kNameBytes) return false;
    out[n++] = *name == '-' ? '_' : lower(*name);
  }
  out[n] = '\0';
  if (starts_with(out, "lunar_")) memmove(out, out + kPrefixLength, n + 1 - kPrefixLength);
  return true;
}

const char* keep_string(const char* text, size_t length) {
  char* copy = static_cast<char*>(arena_alloc(length + 1, 1));
  if (!copy) return nullptr;
  memcpy(copy, text, length);
  copy[length] = '\0';
  return copy;
}

bool parse_bool(const char* text, bool* out) {
  char folded[kNameBytes];
  if (!fold_name(text, folded)) return false;
  for (const char* yes : {"yes", "true", "on", "1"}) {
    if (equal(folded, yes)) return *out = true, true;
  }
  for (const char* no : {"no", "false", "off", "0"}) {
    if (equal(folded, no)) return *out = false, true;
  }
  return false;
}

bool parse_unsigned(const char* text, uint64_t* out) {
  uint64_t value = 0;
  if (!*text) return false;
  for (; *text; ++text) {
    if (*text < '0' || *text > '9' || value > (UINT64_MAX - 9) / 10) return false;
    value = value * 10 + static_cast<unsigned>(*text - '0');
  }
  *out = value;
  return true;
}

// The choice of "a|b|c" that equals `text` (case folded), as arena text; nullptr when none does.
const char* parse_choice(const char* choices, const char* text) {
  while (*choices) {
    const size_t n = strcspn(choices, "|");
    size_t i = 0;
    while (i < n && lower(text[i]) == choices[i]) ++i;
    if (i == n && text[n] == '\0') return keep_string(choices, n);
    choices += n + (choices[n] == '|');
  }
  return nullptr;
}

// Parses the value of an option whose value name may be "LEAST..MOST".
int parse_bounded(const char* value_name, const char* text, const char* origin, uint64_t* out,
                  ErrorText* why) {
  uint64_t least = 0, most = UINT64_MAX, value = 0;
  const char* at = value_name;
  if (*at >= '0' && *at <= '9') {
    for (least = 0; *at != '.'; ++at) least = least * 10 + static_cast<unsigned>(*at - '0');
    (void)parse_unsigned(at + 2, &most);
  }
  if (!parse_unsigned(text, &value))
    return why->set(-EINVAL, "%s: '%.64s' is not a whole number", origin, text);
  if (value < least || value > most)
    return why->set(-EINVAL, "%s: %.64s is out of range: %llu to %llu", origin, text,
                    static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
  *out = value;
  return 0;
}

template <class T>
T& member(Options* options, const Row& row) {
#ifdef LUNAR_TEST_SWITCHES
  if (row.is_switch)
    return *reinterpret_cast<T*>(reinterpret_cast<char*>(&test_switches) + row.offset);
#endif
  return *reinterpret_cast<T*>(reinterpret_cast<char*>(options) + row.offset);
}

int set_row(Options* options, const Row& row, const char* value, const char* origin,
            ErrorText* why) {
  switch (row.info.type) {
    case OptionType::kSize: {
      uint64_t bytes = 0;
      int rc = parse_size(value, &bytes);
      if (rc == -ERANGE) return why->set(rc, "%s: size '%.64s' is too large", origin, value);
      if (rc < 0)
        return why->set(rc,
                        "%s: '%.64s' is not a size; give a number with k, m, g or t, such as 256m",
                        origin, value);
      member<uint64_t>(options, row) = bytes;
      return 0;
    }
    case OptionType::kUnsigned:
      return parse_bounded(row.info.value_name, value, origin, &member<uint64_t>(options, row),
                           why);
    case OptionType::kBool:
      if (parse_bool(value, &member<bool>(options, row))) return 0;
      return why->set(-EINVAL, "%s: '%.64s' is neither yes nor no", origin, value);
    case OptionType::kChoice: {
      const char* choice = parse_choice(row.info.value_name, value);
      if (!choice)
        return why->set(-EINVAL, "%s: '%.64s' is not one of %s", origin, value,
                        row.info.value_name);
      member<const char*>(options, row) = choice;
      return 0;
    }
    case OptionType::kString: {
      const char* copy = keep_string(value, strlen(value));
      if (!copy) return why->set(-ENOMEM, "%s: out of memory", origin);
      member<const char*>(options, row) = copy;
      return 0;
    }
  }
  return -EINVAL;
}

// Value of NAME in environ-style `environment`, or nullptr.
const char* find_variable(const char* const* environment, const char* name) {
  const size_t length = strlen(name);
  for (; environment && *environment; ++environment) {
    if (starts_with(*environment, name) && (*environment)[length] == '=')
      return *environment + length + 1;
  }
  return nullptr;
}

// The nearest of the options and of the others, as a variable's name. False when nothing is near.
bool nearest_variable(const char* name, char out[kNameBytes]) {
  const char* option = option_nearest(name);
  const char* other = nullptr;
  char folded[kNameBytes];
  size_t best = option && fold_name(name, folded) ? slip_distance(folded, option) : SIZE_MAX;
  for (size_t i = 0; i < other_variable_count(); ++i) {
    const OtherVariable& variable = other_variable(i);
    if (!variable.help) continue;
    const size_t distance = slip_distance(name, variable.name);
    if (distance < best) {
      best = distance;
      other = variable.name;
    }
  }
  if (other) {
    format_to(out, kNameBytes, "%s", other);
    return true;
  }
  if (!option) return false;
  size_t n = format_to(out, kNameBytes, "%s", kPrefix);
  for (; *option && n + 1 < kNameBytes; ++option)
    out[n++] = *option >= 'a' && *option <= 'z' ? static_cast<char>(*option - 'a' + 'A') : *option;
  out[n] = '\0';
  return true;
}

void warn_unknown_variable(const char* name) {
  char near[kNameBytes];
  if (nearest_variable(name, near))
    log_warning("unknown variable %s is ignored; did you mean %s?", name, near);
  else
    log_warning("unknown variable %s is ignored; `lunar help options` lists those there are", name);
}

// One line of a config file, NUL-terminated, changed in place.
int load_line(Options* options, char* line, const char* path, unsigned number, ErrorText* why) {
  line += strspn(line, kBlanks);
  if (*line == '\0' || *line == '#') return 0;
  char origin[256];
  format_to(origin, sizeof origin, "%.220s:%u", path, number);
  char* equals = strchr(line, '=');
  if (!equals) return why->set(-EINVAL, "%s: '%.64s' is not `name = value`", origin, line);
  char* key_end = equals;
  while (key_end > line && is_blank(key_end[-1])) --key_end;
  *key_end = '\0';
  char* value = equals + 1 + strspn(equals + 1, kBlanks);
  // A comment starts at a '#' that follows a blank: paths and URIs may hold one.
  char* end = value;
  while (*end && !(*end == '#' && (end == value || is_blank(end[-1])))) ++end;
  while (end > value && is_blank(end[-1])) --end;
  *end = '\0';
  return options_set(options, line, value, origin, why);
}

int load_lines(Options* options, char* text, const char* path, ErrorText* why) {
  for (unsigned number = 1; text; ++number) {
    char* end = strchr(text, '\n');
    if (end) *end = '\0';
    if (int rc = load_line(options, text, path, number, why); rc < 0) return rc;
    text = end ? end + 1 : nullptr;
  }
  return 0;
}

// Reads a whole file into `buffer`, NUL-terminated. Length, -EFBIG, or -errno.
int read_whole(int fd, char* buffer, size_t size) {
  size_t length = 0;
  for (;;) {
    if (length == size - 1) return -EFBIG;
    int64_t got = sys::read_some(fd, buffer + length, size - 1 - length);
    if (got == -EINTR) continue;
    if (got < 0) return static_cast<int>(got);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  buffer[length] = '\0';
  return static_cast<int>(length);
}

// A default config file may be absent, or unreadable for the user that the program became.
bool is_absence(int rc) { return rc == -ENOENT || rc == -ENOTDIR || rc == -EACCES; }

// Loads a default file, which was not named explicitly. An untrusted one is treated as absent, with
// a warning, except in the tree of a `lunar run`, which has already warned.
int load_found(Options* options, const char* const* environment, const char* path, ErrorText* why) {
  const int rc = options_load_file(options, path, why);
  if (rc != -EPERM) return rc;
  if (find_variable(environment, "LUNAR_ACCOUNT") == nullptr)
    log_warning("%s; it is ignored", why->text);
  return -ENOENT;
}

int load_config(Options* options, const char* const* environment, ErrorText* why) {
  const char* named = find_variable(environment, "LUNAR_CONFIG");
  if (named && *named) return options_load_file(options, named, why);
  const char* home = find_variable(environment, "HOME");
  int rc = -ENOENT;
  if (home && *home) {
    char path[1024];
    format_to(path, sizeof path, "%s/.config/lunar.conf", home);
    rc = load_found(options, environment, path, why);
  }
  if (is_absence(rc)) rc = load_found(options, environment, "/etc/lunar.conf", why);
  if (is_absence(rc)) {
    why->text[0] = '\0';
    return 0;
  }
  return rc;
}

}  // namespace

#ifdef LUNAR_TEST_SWITCHES
TestSwitches test_switches;
#endif

size_t option_count() { return kCount; }
const OptionInfo& option_info(size_t index) { return kTable[index].info; }

int option_find(const char* name) {
  char folded[kNameBytes];
  if (!fold_name(name, folded)) return -1;
  const char* wanted = folded;
  for (const auto& [former, current] : kFormerNames) {
    if (equal(former, folded)) wanted = current;
  }
  for (size_t i = 0; i < kCount; ++i) {
    if (equal(kTable[i].info.name, wanted)) return static_cast<int>(i);
  }
  return -1;
}

const char* option_nearest(const char* name) {
  char folded[kNameBytes];
  if (!fold_name(name, folded)) return nullptr;
  const char* best_name = nullptr;
  size_t best = SIZE_MAX;
  for (const Row& row : kTable) {
    if (row.info.test_only) continue;
    const size_t distance = slip_distance(folded, row.info.name);
    if (distance < best) {
      best = distance;
      best_name = row.info.name;
    }
  }
  return best_name;
}

void options_defaults(Options* options) {
  *options = Options{};
  for (const Row& row : kTable) {
    ErrorText ignored;
    // An empty size means "computed later": 0.
    if (row.info.type == OptionType::kSize && row.info.default_text[0] == '\0') continue;
    if (row.info.type == OptionType::kString || row.info.type == OptionType::kChoice) {
      // Not copied, because no memory may be left.
      member<const char*>(options, row) = row.info.default_text;
      continue;
    }
    (void)set_row(options, row, row.info.default_text, row.info.name, &ignored);
  }
}

int options_set(Options* options, const char* name, const char* value, const char* origin,
                ErrorText* why) {
  int index = option_find(name);
  if (index >= 0) return set_row(options, kTable[index], value, origin, why);
  const char* near = option_nearest(name);
  if (near)
    return why->set(-ENOENT, "%s: unknown option '%.48s'; did you mean '%s'?", origin, name, near);
  return why->set(-ENOENT, "%s: unknown option '%.48s'; `lunar help options` lists those there are",
                  origin, name);
}

int options_load_file(Options* options, const char* path, ErrorText* why) {
  // O_NONBLOCK: does not wait for the other end of a FIFO before the trust check.
  int fd = sys::open_file(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) return why->set(fd, "config file %.300s: %s", path, errno_text(fd));
  if (int rc = config_file_trusted(fd, path, why); rc < 0) {
    sys::close_file(fd);
    return rc;
  }
  (void)sys::control_file(fd, F_SETFL, nullptr);
  char* buffer = static_cast<char*>(map_private(kConfigBytesMax, ForkPolicy::kInherit));
  int rc = buffer ? read_whole(fd, buffer, kConfigBytesMax) : -ENOMEM;
  sys::close_file(fd);
  if (rc < 0) {
    (void)why->set(rc, "config file %.300s: %s", path, errno_text(rc));
  } else {
    rc = load_lines(options, buffer, path, why);
    // A bad key must not look like a missing file: -ENOENT means only that.
    if (rc == -ENOENT) rc = -EINVAL;
  }
  unmap_private(buffer, kConfigBytesMax);
  return rc;
}

int options_load_environment(Options* options, const char* const* environment, ErrorText* why) {
  // In the tree of a `lunar run`, that command has already printed the warnings.
  bool warned_already = find_variable(environment, "LUNAR_ACCOUNT") != nullptr;
  for (; environment && *environment; ++environment) {
    const char* entry = *environment;
    if (!starts_with(entry, kPrefix)) continue;
    char name[kNameBytes];
    size_t n = strcspn(entry, "=");
    if (n > sizeof name - 1) n = sizeof name - 1;
    memcpy(name, entry, n);
    name[n] = '\0';
    if (entry[n] != '=') {  // longer than any known name
      if (entry[n] && !warned_already) warn_unknown_variable(name);
      continue;
    }
    const char* value = entry + n + 1;
    int index = option_find(name);
    if (index < 0) {
      if (!warned_already && !is_other_variable(name)) warn_unknown_variable(name);
      continue;
    }
    if (*value == '\0') continue;  // an empty value counts as not set
    if (int rc = set_row(options, kTable[index], value, name, why); rc < 0) return rc;
  }
  return 0;
}

int options_load(Options* options, const char* const* environment, ErrorText* why) {
  options_defaults(options);
  if (!environment_trusted()) environment = nullptr;
  if (int rc = load_config(options, environment, why); rc < 0) return rc;
  return options_load_environment(options, environment, why);
}

}  // namespace lunar
