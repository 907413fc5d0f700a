// SPDX-License-Identifier: Apache-2.0
// See lun_tool.h.
#include "tools/lun/lun_tool.h"

#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "tools/support/text.h"

namespace lunar::tools {

bool at_terminal() { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

bool lun_consent(const LunCommand& command, const std::string& loss, int* code) {
  if (command.yes) return true;
  if (!at_terminal()) {
    *code = command.refuse(loss + "; there is no terminal to ask at: add --yes if that is wanted");
    return false;
  }
  return ask_at_terminal(command, loss, code);
}

bool ask_at_terminal(const LunCommand& command, const std::string& step, int* code) {
  fprintf(stderr, "%s. Go on? [y/N] ", printable(step).c_str());
  fflush(stderr);
  char answer[64] = {};
  const bool said = fgets(answer, sizeof answer, stdin) &&
                    (strcasecmp(answer, "y\n") == 0 || strcasecmp(answer, "yes\n") == 0);
  if (!said) *code = command.refuse("not done: the answer was not yes");
  return said;
}

// ---- URIs

LunName split_lun(const std::string& uri) {
  const size_t hash = uri.rfind('#');
  if (hash == std::string::npos || uri.find('/', hash) != std::string::npos) return {uri, ""};
  return {uri.substr(0, hash), uri.substr(hash + 1)};
}

bool valid_lun_name(const std::string& name) {
  if (name.empty() || name.size() >= kLunNameBytes || name[0] == '-' || name[0] == '.')
    return false;
  for (const char c : name) {
    if (!isalnum(static_cast<unsigned char>(c)) && !strchr("._-", c)) return false;
  }
  return true;
}

int parse_lun_name(const LunCommand& command, const std::string& uri, bool with_name,
                   LunName* out) {
  *out = split_lun(uri);
  if (out->device.empty())
    return command.refuse("the device is an empty word; give a path or SCHEME:PATH");
  if (!with_name) {
    if (out->device == uri) return 0;
    return command.refuse(text_of("%s names a virtual LUN; give the device alone: %s", uri.c_str(),
                                  out->device.c_str()));
  }
  if (out->device == uri)
    return command.refuse(text_of("%s names a device but no LUN on it; give %s", uri.c_str(),
                                  shell_word(uri + "#NAME").c_str()));
  if (valid_lun_name(out->name)) return 0;
  return command.refuse(
      text_of("'%s' is not a name for a LUN; give 1 to %zu of A-Z a-z 0-9 . _ - and begin with a "
              "letter, digit or _",
              out->name.c_str(), kLunNameBytes - 1));
}

std::vector<std::string> leaves_of(const std::string& uri) {
  std::vector<std::string> out;
  std::string leaf;
  for (const char c : uri + ";") {
    if (c == '(' || c == ')') continue;
    if (c != ';') {
      leaf += c;
      for (const char* scheme : {"stripe:", "paths:"}) {
        if (leaf == scheme) leaf.clear();
      }
      continue;
    }
    if (!leaf.empty()) out.push_back(leaf);
    leaf.clear();
  }
  return out;
}

std::string path_of_leaf(const std::string& leaf) {
  const size_t colon = leaf.find(':'), slash = leaf.find('/');
  if (colon == std::string::npos || (slash != std::string::npos && slash < colon)) return leaf;
  if (leaf.compare(0, 4, "sim:") == 0 || leaf.compare(0, 4, "mem:") == 0) return "";
  const std::string path = leaf.substr(colon + 1);
  const bool has_settings = leaf.compare(0, 5, "pmem:") == 0 || leaf.compare(0, 5, "capi:") == 0;
  return has_settings ? path.substr(0, path.find(',')) : path;
}

// ---- opening

int open_to_look(const std::string& device, OpenFor purpose, Device** out, ErrorText* why) {
  DeviceOptions options;
  options.scratch = false;
  options.claim = Claim::kLook;
  options.read_only = purpose == OpenFor::kReading;
  return raw_open(device.c_str(), options, Format::kNever, out, why);
}

int open_physical(const LunCommand& command, const std::string& device, PhysicalLun** out,
                  Format format) {
  ErrorText why;
  const int error = physical_open(device.c_str(), format, out, &why);
  return error < 0 ? command.failed(error, why) : 0;
}

std::vector<VirtualLunInfo> luns_of(PhysicalLun* physical) {
  constexpr unsigned kBatch = 64;
  std::vector<VirtualLunInfo> out;
  unsigned first = 0;
  for (;;) {
    VirtualLunInfo batch[kBatch];
    const int got = physical->list(batch, kBatch, first);
    if (got <= 0) return out;
    out.insert(out.end(), batch, batch + got);
    first = batch[got - 1].index + 1;
  }
}

bool stays_in_use(PhysicalLun* physical, const VirtualLunInfo& lun) {
  constexpr int kTries = 25;
  constexpr useconds_t kPauseUs = 20'000;
  VirtualLunInfo now = lun;
  for (int i = 0; now.in_use && i < kTries; ++i) {
    usleep(kPauseUs);
    if (physical->list(&now, 1, lun.index) != 1 || now.index != lun.index) return false;
  }
  return now.in_use;
}

int find_lun(const LunCommand& command, const LunName& name, PhysicalLun* physical,
             VirtualLunInfo* out) {
  std::vector<std::string> known;
  for (const VirtualLunInfo& lun : luns_of(physical)) {
    if (name.name == lun.name) return *out = lun, 0;
    if (lun.name[0]) known.push_back(lun.name);
  }
  const std::string near = nearest_word(name.name, known);
  const std::string hint =
      near.empty() ? text_of("`lunar lun list %s` lists its LUNs", shell_word(name.device).c_str())
                   : text_of("did you mean '%s'?", near.c_str());
  return command.refuse(text_of("%s has no LUN named '%s'; %s", name.device.c_str(),
                                name.name.c_str(), hint.c_str()));
}

// ---- showing

std::string holds_text(DeviceContent content, const std::string& what, const std::string& device) {
  if (content == DeviceContent::kBlank) return "nothing (blank)";
  if (content == DeviceContent::kStore)
    return what + " (`lunar kv info " + shell_word(device) + "`)";
  return what.empty() ? "unknown data" : what;
}

std::string time_text(uint64_t seconds) {
  const auto when = static_cast<time_t>(seconds);
  struct tm parts{};
  char text[64];
  if (seconds == 0 || !localtime_r(&when, &parts) ||
      strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts) == 0)
    return "-";
  return text;
}

std::string type_word(const VirtualLunInfo& info) {
  switch (info.type) {
    case LunType::kBlocks:
      return info.name[0] ? "named" : "scratch";
    case LunType::kKeyValue:
      return "key/value";
  }
  return text_of("type %u", static_cast<unsigned>(info.type));
}

void lun_json(JsonWriter& json, const VirtualLunInfo& info) {
  json.open('{')
      .field("name", std::string_view(info.name))
      .field("scratch", info.name[0] == '\0')
      .field("type", type_word(info))
      .field("uuid", uuid_text(info.uuid))
      .field("size_bytes", info.size_bytes)
      .field("extents", info.extents)
      .field("in_use", info.in_use)
      .field("created_s", info.created_s)
      .field("cipher_id", info.cipher_id)
      .close('}');
}

void physical_fields(JsonWriter& json, const std::string& device, const PhysicalLunInfo& info) {
  json.field("device", device)
      .field("uuid", uuid_text(info.uuid))
      .field("version", info.version)
      .field("device_bytes", info.device_bytes)
      .field("usable_bytes", info.usable_bytes)
      .field("free_bytes", info.free_bytes)
      .field("extent_bytes", info.extent_bytes)
      .field("sequence", info.sequence)
      .field("luns", info.luns)
      .field("repaired", info.repaired)
      .field("damaged_copies", info.damaged)
      .field("features", info.features);
}

}  // namespace lunar::tools
