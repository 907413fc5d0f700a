// SPDX-License-Identifier: Apache-2.0
// lunar lun list: one line per virtual LUN. Without a URI it reads the heads of all devices in /dev
// and opens those that carry the format. A device with two nodes (a namespace as block device and
// as ng) is shown once. Devices are opened for reading only, so damaged copies and dead LUNs stay.
#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"
#include "tools/support/text_table.h"

namespace lunar::tools {
namespace {

struct Shown {
  std::string device;
  PhysicalLunInfo info;
  std::vector<VirtualLunInfo> luns;
};

std::vector<std::string> entries_of(const char* directory) {
  std::vector<std::string> out;
  DIR* open = opendir(directory);
  if (!open) return out;
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') out.push_back(entry->d_name);
  }
  closedir(open);
  std::sort(out.begin(), out.end());
  return out;
}

// Block devices (with those of pmem), then the character nodes of NVMe namespaces.
std::vector<std::string> candidates() {
  std::vector<std::string> out;
  for (const std::string& name : entries_of("/sys/class/block")) out.push_back("/dev/" + name);
  for (const std::string& name : entries_of("/dev")) {
    if (name.size() > 2 && name.compare(0, 2, "ng") == 0 &&
        isdigit(static_cast<unsigned char>(name[2])))
      out.push_back("nvme:/dev/" + name);
  }
  return out;
}

// The devices that a list without URIs skipped.
struct Skipped {
  std::vector<std::string> forbidden;  // this user may not open them
  unsigned members = 0;                // of stripes, which are listed by the stripe's URI
};

// True if the head says that the device is a physical LUN.
bool carries_format(const std::string& device, Skipped* skipped) {
  Device* raw = nullptr;
  ErrorText why;
  const int error = open_to_look(device, OpenFor::kReading, &raw, &why);
  if (error == -EACCES || error == -EPERM) skipped->forbidden.push_back(device);
  if (error < 0) return false;
  DeviceContent content = DeviceContent::kBlank;
  char what[128] = {};
  if (raw->size_bytes() == 0 || device_content(raw, &content, what, sizeof what) < 0)
    content = DeviceContent::kBlank;
  device_close(raw);
  skipped->members += content == DeviceContent::kMember;
  return content == DeviceContent::kPhysicalLun;
}

// Adds the device unless it is there, and closes it.
void add_device(PhysicalLun* physical, const std::string& device, std::vector<Shown>* out) {
  Shown shown;
  shown.device = device;
  const bool told = physical->info(&shown.info) == 0;
  if (told) shown.luns = luns_of(physical);
  physical->close();
  const bool seen = std::any_of(out->begin(), out->end(), [&](const Shown& other) {
    return memcmp(other.info.uuid, shown.info.uuid, sizeof shown.info.uuid) == 0;
  });
  if (told && !seen) out->push_back(std::move(shown));
}

JsonWriter as_json(const std::vector<Shown>& all, const Skipped& skipped) {
  JsonWriter json;
  json.open('{').key("devices").open('[');
  for (const Shown& shown : all) {
    json.open('{');
    physical_fields(json, shown.device, shown.info);
    json.key("virtual_luns").open('[');
    for (const VirtualLunInfo& lun : shown.luns) lun_json(json, lun);
    json.close(']').close('}');
  }
  json.close(']').key("not_permitted").open('[');
  for (const std::string& device : skipped.forbidden) json.value(device);
  json.close(']').field("members_seen", skipped.members).close('}');
  return json;
}

std::string as_table(const std::vector<Shown>& all) {
  Table table({"device", "name", "type", ">size", ">extents", "in use", "created"});
  uint64_t usable = 0, free_bytes = 0;
  size_t luns = 0;
  for (const Shown& shown : all) {
    for (const VirtualLunInfo& lun : shown.luns) {
      table.add({shown.device, lun.name[0] ? printable(lun.name) : "(scratch)", type_word(lun),
                 size_text(lun.size_bytes), std::to_string(lun.extents), lun.in_use ? "yes" : "no",
                 time_text(lun.created_s)});
    }
    if (shown.luns.empty()) table.add({shown.device, "(none)", "", "", "", "", ""});
    usable += shown.info.usable_bytes;
    free_bytes += shown.info.free_bytes;
    luns += shown.luns.size();
  }
  return table.text() + text_of("\n%s on %s: %s of %s used, %s free\n",
                                counted(luns, "LUN").c_str(), counted(all.size(), "device").c_str(),
                                size_text(usable - free_bytes).c_str(), size_text(usable).c_str(),
                                size_text(free_bytes).c_str());
}

}  // namespace

int lun_list(int argc, char** argv) {
  LunCommand command("list",
                     "Prints one line per virtual LUN, then totals. Without a URI, it lists every "
                     "block device and NVMe namespace in /dev that carries the format and that "
                     "this user may open. Writes nothing.");
  std::vector<std::string> uris;
  command.flags().add("URI", uris, "devices");
  if (const auto code = command.parse(argc, argv)) return *code;
  std::vector<Shown> all;
  Skipped skipped;
  if (uris.empty()) {
    for (const std::string& device : candidates()) {
      if (!carries_format(device, &skipped)) continue;
      PhysicalLun* physical = nullptr;
      ErrorText why;
      const int error = physical_open(device.c_str(), Format::kLook, &physical, &why);
      if (error < 0)
        command.refuse(why.text);
      else
        add_device(physical, device, &all);
    }
  }
  for (const std::string& uri : uris) {
    LunName name;
    PhysicalLun* physical = nullptr;
    if (const int code = parse_lun_name(command, uri, false, &name); code != 0) return code;
    if (const int code = open_physical(command, name.device, &physical, Format::kLook); code != 0)
      return code;
    add_device(physical, name.device, &all);
  }
  if (command.json) {
    print_json(as_json(all, skipped));
    return kExitDone;
  }
  if (all.empty())
    puts("No device that carries Lunar's format was found.");
  else
    fputs(as_table(all).c_str(), stdout);
  if (skipped.members)
    printf("%u device%s of stripes; to list them: lunar lun list 'stripe:URI;URI'\n",
           skipped.members, skipped.members == 1 ? " is a member" : "s are members");
  if (!skipped.forbidden.empty()) {
    printf("%s could not be opened%s\n", counted(skipped.forbidden.size(), "device").c_str(),
           geteuid() == 0 ? "" : "; `sudo lunar lun list` opens all");
  }
  return kExitDone;
}

}  // namespace lunar::tools
