// SPDX-License-Identifier: Apache-2.0
// lunar lun create: a named virtual LUN, on a device that may have to be formatted first.
//
//   the device holds      create needs
//   Lunar's format        nothing: the LUN is added to the others
//   nothing (blank)       --format, or a yes at the terminal
//   zeros, but a copy of  --erase=lunar (its head was erased; `check --repair` restores it)
//   the format at its end
//   anything else         --erase=WORD with the word that the refusal names, and a yes (at the
//                         terminal, or --yes); a device in use is refused
#include <errno.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstring>

#include "lun/raid/member_label.h"
#include "lun/volume/metadata_image.h"
#include "tools/lun/in_use.h"
#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr uint64_t kBlock = 4096;

class CreateCommand : public LunCommand {
 public:
  CreateCommand();
  std::string uri, size, erase;
  bool format = false;
  bool erase_given() const { return erase_flag_.given(); }
  bool size_given() const { return size_flag_.given(); }

 private:
  const Flag size_flag_, erase_flag_;
};

CreateCommand::CreateCommand()
    : LunCommand(
          "create",
          "Makes virtual LUN NAME on the device. If the device already carries Lunar's format, "
          "its other LUNs keep their data."),
      size_flag_(
          flags().add("--size", size,
                      "size of the LUN, with k, m, g or t (powers of 1024), in whole blocks of 4 "
                      "KiB; max: all that remains")),
      erase_flag_(
          flags().add("--erase", erase,
                      "erase what the device holds and format it. The value names the content as "
                      "the refusal does: --erase=ext4. It asks, or needs --yes")) {
  flags().add("URI#NAME", uri, "the device and the new LUN").required();
  flags().add("--format", format,
              "format a blank device first (64 KiB of zeros, no known signature)");
  add_yes();
}

// The content of a device.
struct Found {
  DeviceContent content = DeviceContent::kBlank;
  std::string where;   // the device of several that holds it
  std::string what;    // for people
  uint64_t bytes = 0;  // of all devices together
};

// The word that --erase must name. People learn it only from looking at the refusal.
std::string erase_word(const Found& found) {
  switch (found.content) {
    case DeviceContent::kPhysicalLun:
      return "lunar";
    case DeviceContent::kMember:
      return "lunar-member";
    case DeviceContent::kScratch:
      return "lunar-scratch";
    case DeviceContent::kStore:
      return "lunar-kv";
    default:
      break;
  }
  std::string out;
  for (const char c : found.what)
    out += isalnum(static_cast<unsigned char>(c)) || strchr("_.-", c) ? c : '-';
  return out.empty() ? "unknown-data" : out;
}

// The most bytes that members of `sum` bytes have together once they carry their labels.
uint64_t bytes_together(const std::string& device, uint64_t sum, size_t leaves) {
  const uint64_t labels = leaves * kMemberDataOffset;
  sum = sum > labels ? sum - labels : 0;
  size_t copies = 1;
  int depth = 0;
  for (const char c : device) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    copies += c == ';' && depth == 0;
  }
  return device.compare(0, 7, "stripe:") == 0 ? sum : sum / copies;
}

// Finds what `device` holds. A composite device without labels holds what its members hold. 0 or an
// exit code.
int examine(const CreateCommand& command, const std::string& device, Found* out) {
  Device* raw = nullptr;
  ErrorText why;
  int error = open_to_look(device, OpenFor::kWriting, &raw, &why);
  const std::vector<std::string> leaves = leaves_of(device);
  const bool composite = leaves.size() != 1 || leaves[0] != device;
  std::vector<std::string> to_open = {device};
  if (composite && (error == -ENODEV || error == -EEXIST))
    to_open = leaves;
  else if (error < 0)
    return command.failed(error, why);
  for (const std::string& one : to_open) {
    if (!raw) error = open_to_look(one, OpenFor::kWriting, &raw, &why);
    if (error < 0) return command.failed(error, why);
    Found found{DeviceContent::kBlank, one, "", raw->size_bytes()};
    char what[128] = {};
    error = device_content(raw, &found.content, what, sizeof what);
    if (found.content == DeviceContent::kEnded) found.content = DeviceContent::kBlank;
    device_close(raw);
    raw = nullptr;
    if (error < 0)
      return command.refuse(text_of("%s cannot be read: %s", one.c_str(), errno_text(error)),
                            kExitFailed);
    found.what = what;
    found.bytes += out->bytes;
    if (out->content == DeviceContent::kBlank)
      *out = found;
    else
      out->bytes = found.bytes;
  }
  if (to_open.size() > 1) out->bytes = bytes_together(device, out->bytes, to_open.size());
  return 0;
}

// A device looks unknown while another process formats it: foreign content counts only if it is
// found twice while the metadata is not locked.
int examine_twice(const CreateCommand& command, const std::string& device, Found* out) {
  constexpr int kTries = 100;
  constexpr useconds_t kPauseUs = 50'000;
  bool seen = false;
  for (int i = 0;; ++i) {
    *out = {};
    const int code = examine(command, device, out);
    if (code != 0 || out->content != DeviceContent::kForeign || i == kTries) return code;
    bool locked = false;
    for (const std::string& leaf : leaves_of(device))
      locked |= path_being_changed(path_of_leaf(leaf));
    if (!locked && seen) return code;
    seen = !locked;
    if (locked) usleep(kPauseUs);
  }
}

int refuse_foreign(const CreateCommand& command, const LunName& name, const Found& found) {
  const std::string word = erase_word(found);
  const std::string what = holds_text(found.content, found.what, found.where);
  if (command.erase_given() && command.erase != word) {
    return command.refuse(text_of("%s holds %s, not %s; if that may go: --erase=%s",
                                  found.where.c_str(), what.c_str(), command.erase.c_str(),
                                  word.c_str()));
  }
  return command.refuse(
      text_of("%s holds %s; give another device, or, if that may go: lunar lun create %s --size %s "
              "--erase=%s",
              found.where.c_str(), what.c_str(), shell_word(name.device + "#" + name.name).c_str(),
              shell_word(command.size).c_str(), word.c_str()));
}

// Decides whether and how to format the device. 0 or an exit code.
int decide_format(const CreateCommand& command, const LunName& name, const Found& found,
                  Format* out) {
  *out = Format::kNever;
  if (found.content == DeviceContent::kPhysicalLun && !command.erase_given()) return 0;
  const bool by_name = found.content == DeviceContent::kBlank && command.erase == "lunar";
  if (found.content == DeviceContent::kBlank && !by_name) {
    if (command.erase_given())
      return command.refuse(text_of("%s is blank, there is no %s to erase; --format formats it",
                                    name.device.c_str(), command.erase.c_str()));
    *out = Format::kIfBlank;
    if (command.format) return 0;  // opening waits for another process that formats the device
    if (!at_terminal())
      return command.refuse(
          text_of("%s is blank; to format it, add --format", name.device.c_str()));
    int code = 0;
    return ask_at_terminal(command,
                           text_of("%s (%s) is blank and gets formatted", name.device.c_str(),
                                   size_text(found.bytes).c_str()),
                           &code)
               ? 0
               : code;
  }
  if (!by_name && (!command.erase_given() || command.erase != erase_word(found)))
    return refuse_foreign(command, name, found);
  int code = 0;
  *out = Format::kForce;
  return lun_consent(command,
                     text_of("%s holds %s, which is lost", found.where.c_str(),
                             by_name ? "a copy of Lunar's format at its end"
                                     : holds_text(found.content, found.what, found.where).c_str()),
                     &code)
             ? 0
             : code;
}

// *out is 0 for "max". 0 or an exit code.
int wanted_size(const CreateCommand& command, uint64_t* out) {
  if (!command.size_given())
    return command.refuse("no size; give --size SIZE (as 10g) or --size max");
  if (command.size == "max") return *out = 0, 0;
  if (parse_size(command.size.c_str(), out) < 0 || *out > UINT64_MAX / 4)
    return command.refuse(text_of("--size: '%s' is not a size; give one like 512m, 10g or max",
                                  command.size.c_str()));
  if (*out == 0)
    return command.refuse("--size: 0 is not a size for a LUN; give one like 512m, 10g or max");
  *out = round_up(*out, kBlock);
  return 0;
}

// Refuses a LUN for which the formatted device would be too small. 0 or an exit code.
int check_fits_when_formatted(const CreateCommand& command, const LunName& name, const Found& found,
                              Format format, uint64_t bytes) {
  Geometry geometry;
  // physical_open has a better line for a device that is too small to format.
  if (format == Format::kNever || geometry_for(found.bytes, &geometry) < 0) return 0;
  const uint64_t room = geometry.extent_count * geometry.extent_bytes;
  if (bytes <= room) return 0;
  return command.refuse(text_of("--size: %s is more than the %s that %s would have; give less",
                                size_text(bytes).c_str(), size_text(room).c_str(),
                                name.device.c_str()));
}

// Makes the LUN on an open device, shows it, and closes the device. 0 or an exit code.
int make(const CreateCommand& command, const LunName& name, uint64_t bytes, bool formatted,
         PhysicalLun* physical) {
  PhysicalLunInfo info;
  ErrorText why;
  int error = physical->info(&info);
  if (error < 0) {
    physical->close();
    return command.refuse(
        text_of("%s: its metadata cannot be read: %s", name.device.c_str(), errno_text(error)),
        kExitFailed);
  }
  const int refused = formatted ? kExitFailed : kExitRefused;  // refused: nothing was changed
  if (command.size == "max") bytes = info.free_bytes;
  if (bytes == 0 || bytes > info.free_bytes) {
    physical->close();
    return command.refuse(
        text_of(
            "--size: %s is more than the %s that remain on %s; give less, or remove a LUN there",
            bytes ? size_text(bytes).c_str() : "max", size_text(info.free_bytes).c_str(),
            name.device.c_str()),
        refused);
  }
  VirtualOptions options;
  options.name = name.name.c_str();
  options.create = true;
  options.size_bytes = bytes;
  VirtualLun* lun = nullptr;
  error = VirtualLun::open(physical, options, &lun, &why);  // takes `physical` over
  if (error < 0) {
    const int code = exit_code_of(error);
    return command.refuse(why.text[0] ? why.text : errno_text(error),
                          code == kExitRefused ? refused : code);
  }
  const VirtualLunInfo made = lun->info();
  if (lun->physical().info(&info) < 0) info = {};
  lun->close();
  if (command.json) {
    JsonWriter json;
    json.open('{');
    physical_fields(json, name.device, info);
    json.field("formatted", formatted).key("created");
    lun_json(json, made);
    json.close('}');
    print_json(json);
  } else {
    printf("%s#%s: %s in %s of %s%s; %s free\n", name.device.c_str(), name.name.c_str(),
           size_text(made.size_bytes).c_str(), counted(made.extents, "extent").c_str(),
           size_text(info.extent_bytes).c_str(), formatted ? ", on a device formatted for it" : "",
           size_text(info.free_bytes).c_str());
  }
  return kExitDone;
}

}  // namespace

int lun_create(int argc, char** argv) {
  CreateCommand command;
  if (const auto code = command.parse(argc, argv)) return *code;
  LunName name;
  uint64_t bytes = 0;
  if (const int code = parse_lun_name(command, command.uri, true, &name); code != 0) return code;
  if (const int code = wanted_size(command, &bytes); code != 0) return code;
  Found found;
  if (const int code = examine_twice(command, name.device, &found); code != 0) return code;
  Format format = Format::kNever;
  if (const int code = decide_format(command, name, found, &format); code != 0) return code;
  if (const int code = check_fits_when_formatted(command, name, found, format, bytes); code != 0)
    return code;
  PhysicalLun* physical = nullptr;
  ErrorText why;
  const int error = physical_open(name.device.c_str(), format, &physical, &why);
  if (error == -EBADMSG && format == Format::kIfBlank) {
    return command.refuse(
        text_of("%s: its head was erased, but its end says that it carries virtual LUNs; `lunar "
                "lun check %s --repair` restores it; if they may go: --erase=lunar",
                name.device.c_str(), shell_word(name.device).c_str()));
  }
  if (error < 0) return command.failed(error, why);
  return make(command, name, bytes, format != Format::kNever, physical);
}

}  // namespace lunar::tools
