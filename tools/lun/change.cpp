// SPDX-License-Identifier: Apache-2.0
// lunar lun resize and remove: changes to an existing LUN. Both ask before they discard data.
#include <errno.h>

#include <cstdio>
#include <cstring>

#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr uint64_t kBlock = 4096;

// Computes the new size of a LUN of `now` bytes that can get `room` more. 0 or an exit code.
int wanted_size(const LunCommand& command, const std::string& text, uint64_t now, uint64_t room,
                uint64_t* out) {
  if (text == "max") return *out = now + room, 0;
  const char sign = text.empty() ? ' ' : text[0];
  const bool relative = sign == '+' || sign == '-';
  uint64_t bytes = 0;
  if (parse_size(text.c_str() + relative, &bytes) < 0 || bytes > UINT64_MAX / 4)
    return command.refuse(text_of(
        "'%s' is not a size; give SIZE, +SIZE, -SIZE (as 10g, +512m) or max", text.c_str()));
  bytes = round_up(bytes, kBlock);
  if (sign == '-' && bytes >= now)
    return command.refuse(
        text_of("it has %s, so %s cannot be taken off; `lunar lun remove` removes it",
                size_text(now).c_str(), size_text(bytes).c_str()));
  *out = sign == '+' ? now + bytes : sign == '-' ? now - bytes : bytes;
  if (*out == 0) return command.refuse("a size of 0 leaves no LUN; `lunar lun remove` removes it");
  return 0;
}

int open_virtual(const LunCommand& command, const LunName& name, PhysicalLun* physical,
                 VirtualLun** out) {
  VirtualOptions options;
  options.name = name.name.c_str();
  options.exclusive = false;  // a LUN in use may grow; set_size refuses to shrink it
  ErrorText why;
  const int error = VirtualLun::open(physical, options, out, &why);
  return error < 0 ? command.failed(error, why) : 0;
}

int resize_open(const LunCommand& command, const LunName& name, const std::string& size,
                VirtualLun* lun) {
  const uint64_t before = lun->used_bytes(), room = lun->remaining_bytes();
  uint64_t after = 0;
  int code = wanted_size(command, size, before, room, &after);
  if (code != 0) return code;
  if (after < before &&
      !lun_consent(command,
                   text_of("%s#%s shrinks from %s to %s, and the data in its tail is lost",
                           name.device.c_str(), name.name.c_str(), size_text(before).c_str(),
                           size_text(after).c_str()),
                   &code)) {
    return code;
  }
  ErrorText why;
  const int error = after == before ? 0 : lun->set_size(after, &why);
  if (error < 0) return command.failed(error, why);
  if (command.json) {
    JsonWriter json;
    json.open('{')
        .field("device", name.device)
        .field("name", name.name)
        .field("before_bytes", before);
    json.field("size_bytes", lun->used_bytes())
        .field("remaining_bytes", lun->remaining_bytes())
        .close('}');
    print_json(json);
  } else {
    printf("%s#%s: %s (was %s)\n", name.device.c_str(), name.name.c_str(),
           size_text(lun->used_bytes()).c_str(), size_text(before).c_str());
  }
  return kExitDone;
}

}  // namespace

int lun_resize(int argc, char** argv) {
  LunCommand command(
      "resize",
      "Changes the size of a LUN. SIZE is the new size; +SIZE and -SIZE are relative to the "
      "present one; max is all that remains. Growing keeps the data and works while the LUN is in "
      "use. Shrinking discards the tail: it asks, or needs --yes, and no other process may have "
      "the LUN open.");
  std::string uri, size;
  command.flags().add("URI#NAME", uri, "the LUN").required();
  command.flags().add("SIZE", size, "SIZE, +SIZE, -SIZE or max").required();
  command.add_yes();
  if (const auto code = command.parse(argc, argv)) return *code;
  LunName name;
  if (const int code = parse_lun_name(command, uri, true, &name); code != 0) return code;
  uint64_t unused = 0;  // a size that is bad for LUNs of any size is refused before the open
  if (const int code = wanted_size(command, size, UINT64_MAX, 0, &unused); code != 0) return code;
  PhysicalLun* physical = nullptr;
  if (const int code = open_physical(command, name.device, &physical); code != 0) return code;
  VirtualLunInfo found;
  if (const int code = find_lun(command, name, physical, &found); code != 0)
    return physical->close(), code;
  if (size[0] != '+') (void)stays_in_use(physical, found);  // a LUN in use cannot shrink
  VirtualLun* lun = nullptr;
  if (const int code = open_virtual(command, name, physical, &lun); code != 0) return code;
  const int code = resize_open(command, name, size, lun);
  lun->close();
  return code;
}

int lun_remove(int argc, char** argv) {
  LunCommand command(
      "remove",
      "Removes a LUN and all its data. It asks, or needs --yes. A LUN that is open is refused.");
  std::string uri;
  command.flags().add("URI#NAME", uri, "the LUN").required();
  command.add_yes();
  if (const auto code = command.parse(argc, argv)) return *code;
  LunName name;
  if (const int code = parse_lun_name(command, uri, true, &name); code != 0) return code;
  PhysicalLun* physical = nullptr;
  if (const int code = open_physical(command, name.device, &physical); code != 0) return code;
  VirtualLunInfo found;
  int code = find_lun(command, name, physical, &found);
  if (code == 0 && stays_in_use(physical, found))
    code = command.refuse(
        text_of("%s#%s is in use; end the program that has it open (`fuser %s` may name it)",
                name.device.c_str(), name.name.c_str(),
                shell_word(path_of_leaf(leaves_of(name.device)[0])).c_str()));
  if (code == 0)
    (void)lun_consent(command,
                      text_of("%s#%s and its %s of data are lost", name.device.c_str(),
                              name.name.c_str(), size_text(found.size_bytes).c_str()),
                      &code);
  ErrorText why;
  const int error = code == 0 ? physical->remove(name.name.c_str(), &why) : 0;
  if (error < 0) code = command.failed(error, why);
  PhysicalLunInfo info;
  if (code == 0 && physical->info(&info) < 0) info = {};
  physical->close();
  if (code != 0) return code;
  if (command.json) {
    JsonWriter json;
    json.open('{')
        .field("device", name.device)
        .field("removed", name.name)
        .field("free_bytes", info.free_bytes)
        .close('}');
    print_json(json);
  } else {
    printf("%s#%s is removed; %s free\n", name.device.c_str(), name.name.c_str(),
           size_text(info.free_bytes).c_str());
  }
  return kExitDone;
}

}  // namespace lunar::tools
