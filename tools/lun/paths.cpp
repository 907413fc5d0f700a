// SPDX-License-Identifier: Apache-2.0
// lunar lun paths: like AIX's `lspath -F "name parent connection status"`, for the paths of paths:
// and the members of stripe:. Writes nothing.
#include <cstdio>

#include "lun/raid/path_device.h"
#include "tools/lun/in_use.h"
#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"
#include "tools/support/text_table.h"

namespace lunar::tools {

int lun_paths(int argc, char** argv) {
  LunCommand command(
      "paths",
      "Prints one line per path of paths:, or per member of stripe:, like AIX's lspath: name of "
      "the device, parent (its adapter or file system), connection, status (Enabled, Failed, "
      "Missing), and the number of I/Os, errors and failovers during the open.");
  std::string uri;
  command.flags().add("URI", uri, "the device").required();
  if (const auto code = command.parse(argc, argv)) return *code;
  LunName name;
  if (const int code = parse_lun_name(command, uri, false, &name); code != 0) return code;
  Device* raw = nullptr;
  ErrorText why;
  if (const int error = open_to_look(name.device, OpenFor::kReading, &raw, &why); error < 0)
    return command.failed(error, why);
  PathInfo paths[kDeviceFdsMax];
  const int got = device_paths(raw, paths, kDeviceFdsMax);
  const std::string kind = raw->kind();
  device_close(raw);
  const unsigned count = got > 0 ? static_cast<unsigned>(got) : 0;
  if (command.json) {
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
    return kExitDone;
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
  return kExitDone;
}

}  // namespace lunar::tools
