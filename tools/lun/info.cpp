// SPDX-License-Identifier: Apache-2.0
// lunar lun info: the kind and capabilities of a device, whatever it holds, and the geometry of
// Lunar's format if it carries one. Changes nothing on the device.
#include <cstdio>

#include "lun/raid/path_device.h"
#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

struct DeviceFacts {
  std::string kind, holds;
  std::string shown;  // `holds`, for people
  uint64_t bytes = 0;
  uint32_t align = 0;
  Capabilities can;
  std::vector<PathInfo> members;
};

void read_facts(Device* device, DeviceFacts* out) {
  out->kind = device->kind();
  out->bytes = device->size_bytes();
  out->align = device->io_align();
  out->can = device->capabilities();
  PathInfo paths[kDeviceFdsMax];
  const int count = device_paths(device, paths, kDeviceFdsMax);
  if (count > 0) out->members.assign(paths, paths + count);
}

const char* yes_no(bool yes) { return yes ? "yes" : "no"; }

void show_facts(const DeviceFacts& facts) {
  print_row("kind", facts.kind);
  print_row("size", text_of("%s (%llu bytes)", size_text(facts.bytes).c_str(),
                            static_cast<unsigned long long>(facts.bytes)));
  print_row("I/O",
            text_of("in units of %u, memory aligned to %u, up to %s at once", facts.align,
                    facts.can.memory_align, size_text(facts.can.transfer_bytes_max).c_str()));
  print_row("discard", yes_no(facts.can.discard));
  print_row("window", text_of("%s%s", yes_no(facts.can.window),
                              facts.can.window ? " (buffers registered once)" : ""));
  print_row("polled", text_of("%s%s", yes_no(facts.can.polled),
                              facts.can.polled ? " (a copy is the I/O)" : ""));
  print_row("persistent", yes_no(facts.can.persistent));
  print_row(
      "fua",
      text_of("%s%s", fua_text(facts.can.fua),
              facts.can.fua == Fua::kFlush ? " (a durable write flushes the whole device)" : ""));
  if (facts.members.size() < 2) return;
  for (const PathInfo& member : facts.members)
    print_row("member", text_of("%s, %s%s", member.connection, member.status,
                                member.primary ? ", primary" : ""));
}

void json_facts(JsonWriter& json, const DeviceFacts& facts) {
  json.key("raw")
      .open('{')
      .field("kind", facts.kind)
      .field("bytes", facts.bytes)
      .field("io_align", facts.align);
  json.field("memory_align", facts.can.memory_align)
      .field("transfer_bytes_max", facts.can.transfer_bytes_max);
  json.field("discard", facts.can.discard).field("window", facts.can.window);
  json.field("polled", facts.can.polled).field("persistent", facts.can.persistent);
  json.field("fua", fua_text(facts.can.fua));
  json.key("members").open('[');
  for (const PathInfo& member : facts.members) {
    json.open('{')
        .field("name", std::string_view(member.name))
        .field("connection", std::string_view(member.connection));
    json.field("status", std::string_view(member.status))
        .field("primary", member.primary)
        .close('}');
  }
  json.close(']').close('}');
}

void show_format(const PhysicalLunInfo& info) {
  print_row("uuid", uuid_text(info.uuid));
  print_row("format", text_of("version %u, metadata image %llu%s", info.version,
                              static_cast<unsigned long long>(info.sequence),
                              info.damaged ? ", a damaged copy (lunar lun check --repair)" : ""));
  if (info.features)
    print_row("features", text_of("0x%llx", static_cast<unsigned long long>(info.features)));
  print_row("extents", text_of("%llu of %s",
                               static_cast<unsigned long long>(
                                   info.extent_bytes ? info.usable_bytes / info.extent_bytes : 0),
                               size_text(info.extent_bytes).c_str()));
  print_row("space", text_of("%s usable, %s free", size_text(info.usable_bytes).c_str(),
                             size_text(info.free_bytes).c_str()));
  print_row("virtual LUNs", text_of("%u", info.luns));
}

void show_lun(const VirtualLunInfo& lun) {
  print_row("LUN", lun.name);
  print_row("LUN type", type_word(lun));
  print_row("LUN uuid", uuid_text(lun.uuid));
  print_row("LUN size", text_of("%s in %s", size_text(lun.size_bytes).c_str(),
                                counted(lun.extents, "extent").c_str()));
  print_row("LUN in use", yes_no(lun.in_use));
  print_row("LUN created", time_text(lun.created_s));
  print_row("LUN cipher", lun.cipher_id ? text_of("%u", lun.cipher_id) : "none");
}

// Shows a device without the format, or with one that this Lunar refuses.
int info_of_raw(const LunCommand& command, const std::string& device, const DeviceFacts& facts,
                const char* refused = nullptr) {
  if (command.json) {
    JsonWriter json;
    json.open('{')
        .field("device", device)
        .field("formatted", refused != nullptr)
        .field("holds", facts.holds);
    if (refused) json.field("refused", std::string_view(refused));
    json_facts(json, facts);
    json.close('}');
    print_json(json);
    return kExitDone;
  }
  print_row("device", device);
  print_row("holds", facts.shown);
  if (refused) print_row("format", refused);
  show_facts(facts);
  return kExitDone;
}

// Reads the facts and the content of a device. 0 or an exit code.
int read_device(const LunCommand& command, const std::string& device, DeviceFacts* facts,
                DeviceContent* content) {
  Device* raw = nullptr;
  ErrorText why;
  // Read-only first: a mounted device has facts, as has one that this user may only read.
  int error = open_to_look(device, OpenFor::kReading, &raw, &why);
  if (error < 0) return command.failed(error, why);
  read_facts(raw, facts);
  char what[128] = {};
  error = device_content(raw, content, what, sizeof what);
  device_close(raw);
  if (error < 0)
    return command.refuse(text_of("%s cannot be read: %s", device.c_str(), errno_text(error)),
                          kExitFailed);
  facts->shown = holds_text(*content, what, device);
  facts->holds = *content == DeviceContent::kStore ? what : facts->shown;
  // Opened for writing, the device may have more capabilities.
  if (*content == DeviceContent::kPhysicalLun &&
      open_to_look(device, OpenFor::kWriting, &raw, &why) == 0) {
    read_facts(raw, facts);
    device_close(raw);
  }
  return 0;
}

int info_of_physical(const LunCommand& command, const LunName& name, PhysicalLun* physical,
                     const DeviceFacts& facts) {
  PhysicalLunInfo info;
  if (const int error = physical->info(&info); error < 0)
    return command.refuse(
        text_of("%s: its metadata cannot be read: %s", name.device.c_str(), errno_text(error)),
        kExitFailed);
  VirtualLunInfo lun;
  if (!name.name.empty()) {
    if (const int code = find_lun(command, name, physical, &lun); code != 0) return code;
  }
  if (command.json) {
    JsonWriter json;
    json.open('{');
    physical_fields(json, name.device, info);
    json.field("formatted", true).field("holds", facts.holds);
    json_facts(json, facts);
    if (!name.name.empty()) lun_json(json.key("lun"), lun);
    json.close('}');
    print_json(json);
    return kExitDone;
  }
  print_row("device", name.device);
  print_row("holds", facts.shown);
  show_facts(facts);
  show_format(info);
  if (!name.name.empty()) show_lun(lun);
  return kExitDone;
}

}  // namespace

int lun_info(int argc, char** argv) {
  LunCommand command(
      "info",
      "Prints geometry, identity, free space, members, and the capabilities that probing found.");
  std::string uri;
  command.flags().add("URI[#NAME]", uri, "the device, or a LUN on it").required();
  if (const auto code = command.parse(argc, argv)) return *code;
  LunName name;
  if (const int code = parse_lun_name(command, uri, split_lun(uri).device != uri, &name); code != 0)
    return code;
  DeviceFacts facts;
  DeviceContent content = DeviceContent::kBlank;
  if (const int code = read_device(command, name.device, &facts, &content); code != 0) return code;
  if (content != DeviceContent::kPhysicalLun) {
    if (name.name.empty()) return info_of_raw(command, name.device, facts);
    return command.refuse(
        text_of("%s holds no LUNs but %s", name.device.c_str(), facts.shown.c_str()));
  }
  PhysicalLun* physical = nullptr;
  ErrorText why;
  const int error = physical_open(name.device.c_str(), Format::kLook, &physical, &why);
  if (error == -EPROTONOSUPPORT && name.name.empty())
    return info_of_raw(command, name.device, facts, why.text);
  if (error < 0) return command.failed(error, why);
  const int code = info_of_physical(command, name, physical, facts);
  physical->close();
  return code;
}

}  // namespace lunar::tools
