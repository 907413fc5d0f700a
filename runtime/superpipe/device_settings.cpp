// SPDX-License-Identifier: Apache-2.0
// See device_settings.h.
#include "superpipe/device_settings.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/format.h"
#include "sys/file.h"

namespace lunar {
namespace {

int apply(const char* uri, const char* setting, const SettingSpec* specs, unsigned count,
          ErrorText* why) {
  const size_t key = strcspn(setting, "=");
  const char* value = setting + key + 1;
  char known[128] = {};
  size_t at = 0;
  for (unsigned i = 0; i < count; ++i) {
    const SettingSpec& spec = specs[i];
    if (at < sizeof known)
      at += format_to(known + at, sizeof known - at, "%s%s", i ? ", " : "", spec.key);
    if (strlen(spec.key) != key || strncmp(spec.key, setting, key) != 0) continue;
    if (!spec.choice) {
      if (*value == 0 || strlen(value) >= spec.text_size)
        return why->set(-EINVAL, "LUN %s: setting %s needs a value of at most %u characters", uri,
                        spec.key, static_cast<unsigned>(spec.text_size - 1));
      memcpy(spec.text, value, strlen(value) + 1);
      return 0;
    }
    if (strcmp(value, "auto") == 0)
      *spec.choice = Choice::kAuto;
    else if (strcmp(value, "on") == 0)
      *spec.choice = Choice::kOn;
    else if (strcmp(value, "off") == 0)
      *spec.choice = Choice::kOff;
    else
      return why->set(-EINVAL, "LUN %s: %s=%s; write %s=auto, on or off", uri, spec.key, value,
                      spec.key);
    return 0;
  }
  return why->set(-EINVAL, "LUN %s: unknown setting '%.*s'; known: %s", uri, static_cast<int>(key),
                  setting, known);
}

}  // namespace

int settings_parse(const char* uri, const char* rest, const SettingSpec* specs, unsigned count,
                   char* path, size_t path_size, ErrorText* why) {
  if (strlen(rest) >= path_size)
    return why->set(-ENAMETOOLONG, "LUN %.64s...: the name is too long; give a shorter path", uri);
  memcpy(path, rest, strlen(rest) + 1);
  struct stat status;
  // From the right: what has a '=' behind the last comma is a setting, as long as there is no file
  // of the whole name.
  while (sys::path_status(path, &status) != 0) {
    char* comma = strrchr(path, ',');
    if (!comma || !strchr(comma, '=') || strchr(comma, '=') == comma + 1) break;
    const int err = apply(uri, comma + 1, specs, count, why);
    if (err < 0) return err;
    *comma = 0;
  }
  return 0;
}

}  // namespace lunar
