// SPDX-License-Identifier: Apache-2.0
// See lun_tool.h.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/lun/lun_tool.h"

#include <errno.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sstream>

#include "tools/support/text.h"

namespace lunar::tools {
namespace {

std::vector<std::string> split_words(const char* text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

// "-5g" is a size, "-f" a flag.
bool is_flag(const char* word) {
  return word[0] == '-' && word[1] && !isdigit(static_cast<unsigned char>(word[1])) &&
         word[1] != '.';
}

int unknown_flag(const LunVerb& verb, const LunLine& line, const std::string& name) {
  std::vector<std::string> known = {"--json", "--help"};
  for (std::string flag : split_words(verb.flags)) {
    if (flag.back() == '=') flag.pop_back();
    known.push_back(flag);
  }
  const std::string near = nearest_word(name, known);
  if (!near.empty())
    return lun_refuse(line,
                      text_of("unknown flag %s; did you mean %s?", name.c_str(), near.c_str()));
  return lun_refuse(line, text_of("unknown flag %s; `lunar lun %s --help` lists those there are",
                                  name.c_str(), verb.name));
}

// Whether `name` is a flag of the verb: 0 no, 1 yes, 2 with a value.
int kind_of_flag(const LunVerb& verb, const std::string& name) {
  if (name == "--json" || name == "--help" || name == "-h") return 1;
  for (const std::string& flag : split_words(verb.flags)) {
    if (flag == name) return 1;
    if (flag == name + "=") return 2;
  }
  return 0;
}

void store_flag(const std::string& name, const std::string& value, LunLine* out) {
  if (name == "--help" || name == "-h")
    out->help = true;
  else if (name == "--json")
    out->json = true;
  else if (name == "--yes")
    out->yes = true;
  else if (name == "--format")
    out->format = true;
  else if (name == "--repair")
    out->repair = true;
  else if (name == "--size")
    out->size_given = true, out->size = value;
  else if (name == "--erase")
    out->erase_given = true, out->erase = value;
}

}  // namespace

int parse_lun_line(const LunVerb& verb, int argc, char** argv, LunLine* out) {
  out->verb = verb.name;
  bool only_words = false;
  for (int at = 1; at < argc; ++at) {
    if (only_words || !is_flag(argv[at])) {
      out->words.push_back(argv[at]);
      continue;
    }
    if (strcmp(argv[at], "--") == 0) {
      only_words = true;
      continue;
    }
    const std::string word = argv[at];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const int kind = kind_of_flag(verb, name);
    if (kind == 0) return unknown_flag(verb, *out, name);
    if (kind == 1 && equals != std::string::npos)
      return lun_refuse(*out, text_of("%s takes no value", name.c_str()));
    std::string value;
    if (kind == 2 && equals != std::string::npos)
      value = word.substr(equals + 1);
    else if (kind == 2 && at + 1 < argc)
      value = argv[++at];
    else if (kind == 2)
      return lun_refuse(*out, text_of("%s needs a value; `lunar lun %s --help` tells which",
                                      name.c_str(), verb.name));
    store_flag(name, value, out);
    if (out->help) return 0;
  }
  if (out->words.size() < verb.words_min)
    return lun_refuse(
        *out, text_of("too few words; `lunar lun %s --help` shows how it is used", verb.name));
  if (out->words.size() > verb.words_max)
    return lun_refuse(*out,
                      text_of("%s is one word too many; `lunar lun %s --help` shows how it is used",
                              out->words[verb.words_max].c_str(), verb.name));
  return 0;
}

// ---- refusals and questions

int lun_refuse(const LunLine& line, const std::string& text, int code) {
  fflush(stdout);
  fprintf(stderr, "lunar lun %s: %s\n", line.verb.c_str(), printable(text).c_str());
  return code;
}

int lun_failed(const LunLine& line, int error, const ErrorText& why) {
  int code = kLunRefused;
  switch (-error) {
    case EBADMSG:
    case EUCLEAN:
      code = kLunDamaged;
      break;
    case EIO:
    case ENOMEM:
    case ETIMEDOUT:
    case ETIME:
    case EMFILE:
    case ENFILE:
    case ENOLCK:
      code = kLunFailed;
      break;
    default:
      break;
  }
  return lun_refuse(line, why.text[0] ? std::string(why.text) : std::string(errno_text(error)),
                    code);
}

bool at_terminal() { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

bool lun_consent(const LunLine& line, const std::string& what_goes, int* code) {
  if (line.yes) return true;
  if (!at_terminal()) {
    *code = lun_refuse(line,
                       what_goes + "; there is no terminal to ask at: add --yes if that is wanted");
    return false;
  }
  fprintf(stderr, "%s. Go on? [y/N] ", what_goes.c_str());
  fflush(stderr);
  char answer[64] = {};
  const bool said = fgets(answer, sizeof answer, stdin) &&
                    (strcasecmp(answer, "y\n") == 0 || strcasecmp(answer, "yes\n") == 0);
  if (!said) *code = lun_refuse(line, "not done: the answer was not yes");
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

int take_lun(const LunLine& line, const std::string& uri, bool wanted, LunName* out) {
  *out = split_lun(uri);
  if (out->device.empty())
    return lun_refuse(line, "the device is an empty word; give a path or SCHEME:PATH");
  if (!wanted) {
    if (out->device == uri) return 0;
    return lun_refuse(line, text_of("%s names a virtual LUN; give the device alone: %s",
                                    uri.c_str(), out->device.c_str()));
  }
  if (out->device == uri)
    return lun_refuse(line, text_of("%s names a device but no LUN on it; give %s", uri.c_str(),
                                    shell_word(uri + "#NAME").c_str()));
  if (valid_lun_name(out->name)) return 0;
  return lun_refuse(line, text_of("'%s' is not a name for a LUN; give 1 to %zu of A-Z a-z 0-9 . _ "
                                  "- and begin with none of . -",
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

int open_physical(const LunLine& line, const std::string& device, PhysicalLun** out,
                  Format format) {
  ErrorText why;
  const int error = physical_open(device.c_str(), format, out, &why);
  return error < 0 ? lun_failed(line, error, why) : 0;
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

int find_lun(const LunLine& line, const LunName& name, PhysicalLun* physical, VirtualLunInfo* out) {
  std::vector<std::string> known;
  for (const VirtualLunInfo& lun : luns_of(physical)) {
    if (name.name == lun.name) return *out = lun, 0;
    if (lun.name[0]) known.push_back(lun.name);
  }
  const std::string near = nearest_word(name.name, known);
  return lun_refuse(line,
                    text_of("%s has no LUN named '%s'; %s", name.device.c_str(), name.name.c_str(),
                            near.empty() ? text_of("`lunar lun list %s` shows those there are",
                                                   shell_word(name.device).c_str())
                                               .c_str()
                                         : text_of("did you mean '%s'?", near.c_str()).c_str()));
}

// ---- showing

std::string holds_text(DeviceContent content, const std::string& what, const std::string& device) {
  if (content == DeviceContent::kBlank) return "nothing (blank)";
  if (content == DeviceContent::kStore)
    return what + " (`lunar kv info " + shell_word(device) + "`)";
  return what.empty() ? "unknown data" : what;
}

std::string size_text(uint64_t bytes) { return format_size(bytes).text; }

std::string time_text(uint64_t seconds) {
  const auto when = static_cast<time_t>(seconds);
  struct tm parts{};
  char text[64];
  if (seconds == 0 || !localtime_r(&when, &parts) ||
      strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts) == 0)
    return "-";
  return text;
}

std::string uuid_text(const uint8_t* uuid) {
  std::string out;
  for (int i = 0; i < 16; ++i)
    out += text_of(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
  return out;
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

void print_json(const JsonWriter& json) { printf("%s\n", json.text().c_str()); }

}  // namespace lunar::tools
