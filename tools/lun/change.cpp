// SPDX-License-Identifier: Apache-2.0
// lunar lun resize and remove: changes to a LUN that is there. What throws data away asks first,
// and names what goes. Threading: one thread. May not be used by runtime/ (it allocates).
#include <errno.h>

#include <cstdio>
#include <cstring>

#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr uint64_t kBlock = 4096;

// The new size that `text` means for a LUN of `now` bytes that could get `room` more. 0 or an exit
// code.
int wanted_size(const LunLine& line, const std::string& text, uint64_t now, uint64_t room,
                uint64_t* out) {
  if (text == "max") return *out = now + room, 0;
  const char sign = text.empty() ? ' ' : text[0];
  const bool relative = sign == '+' || sign == '-';
  uint64_t bytes = 0;
  if (parse_size(text.c_str() + relative, &bytes) < 0 || bytes > UINT64_MAX / 4)
    return lun_refuse(line,
                      text_of("'%s' is not a size; give SIZE, +SIZE, -SIZE (as 10g, +512m) or max",
                              text.c_str()));
  bytes = round_up(bytes, kBlock);
  if (sign == '-' && bytes >= now)
    return lun_refuse(
        line,
        text_of(
            "it has %s, which is not more than the %s to be taken; `lunar lun remove` removes it",
            size_text(now).c_str(), size_text(bytes).c_str()));
  *out = sign == '+' ? now + bytes : sign == '-' ? now - bytes : bytes;
  if (*out == 0)
    return lun_refuse(line, "a size of 0 leaves no LUN; `lunar lun remove` removes it");
  return 0;
}

int open_virtual(const LunLine& line, const LunName& name, PhysicalLun* physical,
                 VirtualLun** out) {
  VirtualOptions options;
  options.name = name.name.c_str();
  options.exclusive = false;  // growing may happen in use; shrinking is refused by set_size then
  ErrorText why;
  const int error = VirtualLun::open(physical, options, out, &why);
  return error < 0 ? lun_failed(line, error, why) : 0;
}

int resize_open(const LunLine& line, const LunName& name, VirtualLun* lun) {
  const uint64_t before = lun->used_bytes(), room = lun->remaining_bytes();
  uint64_t after = 0;
  int code = wanted_size(line, line.words[1], before, room, &after);
  if (code != 0) return code;
  if (after < before &&
      !lun_consent(line,
                   text_of("%s#%s shrinks from %s to %s, and what its tail holds is gone",
                           name.device.c_str(), name.name.c_str(), size_text(before).c_str(),
                           size_text(after).c_str()),
                   &code)) {
    return code;
  }
  ErrorText why;
  const int error = after == before ? 0 : lun->set_size(after, &why);
  if (error < 0) return lun_failed(line, error, why);
  if (line.json) {
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
  return kLunDone;
}

}  // namespace

int lun_resize(const LunLine& line) {
  LunName name;
  if (const int code = take_lun(line, line.words[0], true, &name); code != 0) return code;
  uint64_t unused = 0;  // what cannot be a size is refused before anything is opened
  if (const int code = wanted_size(line, line.words[1], uint64_t{1} << 61, 0, &unused); code != 0)
    return code;
  PhysicalLun* physical = nullptr;
  if (const int code = open_physical(line, name.device, &physical); code != 0) return code;
  VirtualLunInfo found;
  if (const int code = find_lun(line, name, physical, &found); code != 0)
    return physical->close(), code;
  if (line.words[1][0] != '+') (void)stays_in_use(physical, found);  // shrinking is refused in use
  VirtualLun* lun = nullptr;
  if (const int code = open_virtual(line, name, physical, &lun); code != 0) return code;
  const int code = resize_open(line, name, lun);
  lun->close();
  return code;
}

int lun_remove(const LunLine& line) {
  LunName name;
  if (const int code = take_lun(line, line.words[0], true, &name); code != 0) return code;
  PhysicalLun* physical = nullptr;
  if (const int code = open_physical(line, name.device, &physical); code != 0) return code;
  VirtualLunInfo found;
  int code = find_lun(line, name, physical, &found);
  if (code == 0 && stays_in_use(physical, found))
    code = lun_refuse(
        line, text_of("%s#%s is in use; end what has it open first (`fuser %s` may name it)",
                      name.device.c_str(), name.name.c_str(),
                      shell_word(path_of_leaf(leaves_of(name.device)[0])).c_str()));
  if (code == 0)
    (void)lun_consent(line,
                      text_of("%s#%s and the %s that it holds are lost", name.device.c_str(),
                              name.name.c_str(), size_text(found.size_bytes).c_str()),
                      &code);
  ErrorText why;
  const int error = code == 0 ? physical->remove(name.name.c_str(), &why) : 0;
  if (error < 0) code = lun_failed(line, error, why);
  PhysicalLunInfo info;
  if (code == 0 && physical->info(&info) < 0) info = {};
  physical->close();
  if (code != 0) return code;
  if (line.json) {
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
  return kLunDone;
}

}  // namespace lunar::tools
