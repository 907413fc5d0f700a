// SPDX-License-Identifier: Apache-2.0
// lunar lun paths: AIX's `lspath -F "name parent connection status"`, for paths:, and for the
// members of stripes. Threading: one thread. Reads only. May not be used by runtime/ (it
// allocates).
#include <cstdio>

#include "lun/raid/path_device.h"
#include "tools/lun/in_use.h"
#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"
#include "tools/support/text_table.h"

namespace lunar::tools {

int lun_paths(const LunLine& line) {
  LunName name;
  if (const int code = take_lun(line, line.words[0], false, &name); code != 0) return code;
  DeviceOptions options;
  options.scratch = false;
  options.claim = Claim::kLook;
  options.read_only = true;
  Device* raw = nullptr;
  ErrorText why;
  if (const int error = raw_open(name.device.c_str(), options, Format::kNever, &raw, &why);
      error < 0)
    return lun_failed(line, error, why);
  PathInfo paths[kDeviceFdsMax];
  const int got = device_paths(raw, paths, kDeviceFdsMax);
  const std::string kind = raw->kind();
  device_close(raw);
  const unsigned count = got > 0 ? static_cast<unsigned>(got) : 0;
  if (line.json) {
    JsonWriter json;
    json.open('{').field("device", name.device).field("kind", kind).key("paths").open('[');
    for (unsigned i = 0; i < count; ++i) {
      const PathInfo& path = paths[i];
      json.open('{')
          .field("name", std::string_view(path.name))
          .field("parent", parent_of(path_of_leaf(path.connection)));
      json.field("connection", std::string_view(path.connection))
          .field("status", std::string_view(path.status));
      json.field("primary", path.primary)
          .field("ios", path.ios)
          .field("errors", path.errors)
          .field("failovers", path.failovers)
          .close('}');
    }
    json.close(']').close('}');
    print_json(json);
    return kLunDone;
  }
  Table table({"name", "parent", "connection", "status", ">I/Os", ">errors", ">failovers"});
  for (unsigned i = 0; i < count; ++i) {
    const PathInfo& path = paths[i];
    table.add({path.name, parent_of(path_of_leaf(path.connection)), path.connection,
               std::string(path.status) + (path.primary ? " (primary)" : ""),
               std::to_string(path.ios), std::to_string(path.errors),
               std::to_string(path.failovers)});
  }
  fputs(table.text().c_str(), stdout);
  return kLunDone;
}

}  // namespace lunar::tools
