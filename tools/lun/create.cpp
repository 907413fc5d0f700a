// SPDX-License-Identifier: Apache-2.0
// lunar lun create: a named virtual LUN, on a device that may have to be formatted first.
//
//   the device holds      what it takes
//   Lunar's format        nothing: the LUN is made in addition to the others
//   nothing (blank)       --format, or a yes at the terminal
//   zeros, but a copy of  --erase=lunar (its head was erased; `check --repair` restores it)
//   the format at its end
//   anything else         --erase=WORD with the word that the refusal names, and a yes (at the
//                         terminal, or --yes); never while it is in use
//
// Threading: one thread. May not be used by runtime/ (it allocates).
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

struct Found {
  DeviceContent content = DeviceContent::kBlank;
  std::string where;   // which device of several holds it
  std::string what;    // for people
  uint64_t bytes = 0;  // of all devices together
};

// The word that --erase must name: one that a person has to look at to know.
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

// What members of `sum` bytes will be together, at most, once they carry their labels.
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

// What `device` holds. Composite devices that have no labels yet are classified by their members. 0
// or an exit code.
int look(const LunLine& line, const std::string& device, Found* out) {
  DeviceOptions options;
  options.scratch = false;
  options.claim = Claim::kLook;
  Device* raw = nullptr;
  ErrorText why;
  int error = raw_open(device.c_str(), options, Format::kNever, &raw, &why);
  const std::vector<std::string> leaves = leaves_of(device);
  const bool composite = leaves.size() != 1 || leaves[0] != device;
  std::vector<std::string> to_look = {device};
  if (composite && (error == -ENODEV || error == -EEXIST))
    to_look = leaves;
  else if (error < 0)
    return lun_failed(line, error, why);
  for (const std::string& one : to_look) {
    if (!raw) error = raw_open(one.c_str(), options, Format::kNever, &raw, &why);
    if (error < 0) return lun_failed(line, error, why);
    Found found{DeviceContent::kBlank, one, "", raw->size_bytes()};
    char what[128] = {};
    error = device_content(raw, &found.content, what, sizeof what);
    if (found.content == DeviceContent::kEnded) found.content = DeviceContent::kBlank;
    device_close(raw);
    raw = nullptr;
    if (error < 0)
      return lun_refuse(line, text_of("%s cannot be read: %s", one.c_str(), errno_text(error)),
                        kLunFailed);
    found.what = what;
    found.bytes += out->bytes;
    if (out->content == DeviceContent::kBlank)
      *out = found;
    else
      out->bytes = found.bytes;
  }
  if (to_look.size() > 1) out->bytes = bytes_together(device, out->bytes, to_look.size());
  return 0;
}

// A device that is being formatted just now looks unknown: only what stays so, unlocked, counts.
int look_twice(const LunLine& line, const std::string& device, Found* out) {
  constexpr int kTries = 100;
  constexpr useconds_t kPauseUs = 50'000;
  bool seen = false;
  for (int i = 0;; ++i) {
    *out = {};
    const int code = look(line, device, out);
    if (code != 0 || out->content != DeviceContent::kForeign || i == kTries) return code;
    bool locked = false;
    for (const std::string& leaf : leaves_of(device))
      locked |= path_being_changed(path_of_leaf(leaf));
    if (!locked && seen) return code;
    seen = !locked;
    if (locked) usleep(kPauseUs);
  }
}

int refuse_foreign(const LunLine& line, const LunName& name, const Found& found) {
  const std::string word = erase_word(found);
  const std::string what = holds_text(found.content, found.what, found.where);
  if (line.erase_given && line.erase != word) {
    return lun_refuse(
        line, text_of("%s holds %s, not %s; if that may go: --erase=%s", found.where.c_str(),
                      what.c_str(), line.erase.c_str(), word.c_str()));
  }
  return lun_refuse(line, text_of("%s holds %s; give another device, or, if that may go: lunar lun "
                                  "create %s --size %s --erase=%s",
                                  found.where.c_str(), what.c_str(),
                                  shell_word(name.device + "#" + name.name).c_str(),
                                  shell_word(line.size).c_str(), word.c_str()));
}

// Whether, and how, the device is to be formatted. 0 or an exit code.
int decide_format(const LunLine& line, const LunName& name, const Found& found, Format* out) {
  *out = Format::kNever;
  if (found.content == DeviceContent::kPhysicalLun && !line.erase_given) return 0;
  const bool by_name = found.content == DeviceContent::kBlank && line.erase == "lunar";
  if (found.content == DeviceContent::kBlank && !by_name) {
    if (line.erase_given)
      return lun_refuse(line, text_of("%s is blank, there is no %s to erase; --format formats it",
                                      name.device.c_str(), line.erase.c_str()));
    *out = Format::kIfBlank;
    if (line.format) return 0;  // waits for another process that formats it too
    if (!at_terminal())
      return lun_refuse(line,
                        text_of("%s is blank; to format it, add --format", name.device.c_str()));
    LunLine ask = line;
    ask.yes = false;
    int code = 0;
    return lun_consent(ask,
                       text_of("%s (%s) is blank and gets formatted", name.device.c_str(),
                               size_text(found.bytes).c_str()),
                       &code)
               ? 0
               : code;
  }
  if (!by_name && (!line.erase_given || line.erase != erase_word(found)))
    return refuse_foreign(line, name, found);
  int code = 0;
  *out = Format::kForce;
  return lun_consent(line,
                     text_of("%s holds %s, which is lost", found.where.c_str(),
                             by_name ? "a copy of Lunar's format at its end"
                                     : holds_text(found.content, found.what, found.where).c_str()),
                     &code)
             ? 0
             : code;
}

int wanted_size(const LunLine& line, uint64_t* out) {
  if (!line.size_given) return lun_refuse(line, "no size; give --size SIZE (as 10g) or --size max");
  if (line.size == "max") return *out = 0, 0;
  if (parse_size(line.size.c_str(), out) < 0 || *out > UINT64_MAX / 4)
    return lun_refuse(line, text_of("--size: '%s' is not a size; give one like 512m, 10g or max",
                                    line.size.c_str()));
  if (*out == 0)
    return lun_refuse(line, "--size: 0 is not a size for a LUN; give one like 512m, 10g or max");
  *out = round_up(*out, kBlock);
  return 0;
}

// What formatting would leave, before anything is written.
int fits_when_formatted(const LunLine& line, const LunName& name, const Found& found, Format format,
                        uint64_t bytes) {
  Geometry geometry;
  // too small: opening says it better
  if (format == Format::kNever || geometry_for(found.bytes, &geometry) < 0) return 0;
  const uint64_t room = geometry.extent_count * geometry.extent_bytes;
  if (bytes <= room) return 0;
  return lun_refuse(
      line, text_of("--size: %s is more than the %s that %s would have; give less",
                    size_text(bytes).c_str(), size_text(room).c_str(), name.device.c_str()));
}

// Makes the LUN on an open device, and shows it.
int make(const LunLine& line, const LunName& name, uint64_t bytes, bool formatted,
         PhysicalLun* physical) {
  PhysicalLunInfo info;
  ErrorText why;
  int error = physical->info(&info);
  if (error < 0) {
    physical->close();
    return lun_refuse(
        line,
        text_of("%s: its metadata cannot be read: %s", name.device.c_str(), errno_text(error)),
        kLunFailed);
  }
  if (line.size == "max") bytes = info.free_bytes;
  if (bytes == 0 || bytes > info.free_bytes) {
    physical->close();
    return lun_refuse(
        line,
        text_of(
            "--size: %s is more than the %s that remain on %s; give less, or remove a LUN there",
            bytes ? size_text(bytes).c_str() : "max", size_text(info.free_bytes).c_str(),
            name.device.c_str()));
  }
  VirtualOptions options;
  options.name = name.name.c_str();
  options.create = true;
  options.size_bytes = bytes;
  VirtualLun* lun = nullptr;
  error = VirtualLun::open(physical, options, &lun, &why);  // takes `physical` over
  if (error < 0) return lun_failed(line, error, why);
  const VirtualLunInfo made = lun->info();
  if (lun->physical().info(&info) < 0) info = {};
  lun->close();
  if (line.json) {
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
  return kLunDone;
}

}  // namespace

int lun_create(const LunLine& line) {
  LunName name;
  uint64_t bytes = 0;
  if (const int code = take_lun(line, line.words[0], true, &name); code != 0) return code;
  if (const int code = wanted_size(line, &bytes); code != 0) return code;
  Found found;
  if (const int code = look_twice(line, name.device, &found); code != 0) return code;
  Format format = Format::kNever;
  if (const int code = decide_format(line, name, found, &format); code != 0) return code;
  if (const int code = fits_when_formatted(line, name, found, format, bytes); code != 0)
    return code;
  PhysicalLun* physical = nullptr;
  ErrorText why;
  const int error = physical_open(name.device.c_str(), format, &physical, &why);
  if (error == -EBADMSG && format == Format::kIfBlank) {
    return lun_refuse(line, text_of("%s: its head was erased, but its end says that it carries "
                                    "virtual LUNs; `lunar lun check %s --repair` "
                                    "restores it; if they may go: --erase=lunar",
                                    name.device.c_str(), shell_word(name.device).c_str()));
  }
  if (error < 0) return lun_failed(line, error, why);
  return make(line, name, bytes, format != Format::kNever, physical);
}

}  // namespace lunar::tools
