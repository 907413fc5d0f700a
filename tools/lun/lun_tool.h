// SPDX-License-Identifier: Apache-2.0
// What the verbs of `lunar lun` share: the command line, refusals, questions, LUN URIs, and how a
// LUN is shown.
//
// Every refusal is one line on standard error: what, where, how to fix. Nothing has been changed
// then. What destroys asks on a terminal, or wants --yes.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lun/compose.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

enum LunExit : int {
  kLunDone = 0,
  kLunRepaired = 1,  // check: needs repair, or was repaired
  kLunRefused = 2,   // wrong use, bad input, no consent: nothing was changed
  kLunDamaged = 3,   // the metadata is damaged beyond its copies
  kLunFailed = 4,    // an I/O error or the like stopped it
};

struct LunLine {
  std::string verb;
  std::vector<std::string> words;  // what is no flag
  bool help = false, json = false, yes = false, format = false, repair = false;
  bool size_given = false, erase_given = false;
  std::string size, erase;
};

// One verb. `flags`: those it takes in addition to --json and --help, blank-separated; a trailing
// '=' means a value.
struct LunVerb {
  const char* name;
  const char* summary;
  const char* help;
  unsigned words_min, words_max;
  const char* flags;
  int (*run)(const LunLine& line);
};
// 0, or kLunRefused with the line already said. argv[0] is the verb.
int parse_lun_line(const LunVerb& verb, int argc, char** argv, LunLine* out);

int lun_create(const LunLine& line);
int lun_list(const LunLine& line);
int lun_info(const LunLine& line);
int lun_resize(const LunLine& line);
int lun_remove(const LunLine& line);
int lun_check(const LunLine& line);
int lun_paths(const LunLine& line);

// ---- refusals and questions

// `lunar lun VERB: text` on standard error; returns `code`.
int lun_refuse(const LunLine& line, const std::string& text, int code = kLunRefused);
// The same for a failure of the runtime: its own line, and the exit code that its errno means.
int lun_failed(const LunLine& line, int error, const ErrorText& why);
// True with --yes, or after a yes at the terminal. Otherwise false, and *code says how to end.
bool lun_consent(const LunLine& line, const std::string& what_goes, int* code);
bool at_terminal();

// ---- URIs

struct LunName {
  std::string device;  // raw URI
  std::string name;    // of the virtual LUN; "": none was given
};
LunName split_lun(const std::string& uri);
bool valid_lun_name(const std::string& name);
// Splits, and refuses what has no #NAME (or has one, wanted = false). 0 or an exit code.
int take_lun(const LunLine& line, const std::string& uri, bool wanted, LunName* out);
// The devices a raw URI is made of: itself, or the members of stripe:, paths:.
std::vector<std::string> leaves_of(const std::string& uri);
// "pmem:/x,delegate=on" -> "/x"; "" for sim: and mem:.
std::string path_of_leaf(const std::string& leaf);

// ---- opening

// 0 or an exit code
int open_physical(const LunLine& line, const std::string& device, PhysicalLun** out,
                  Format format = Format::kNever);
// Finds the LUN's entry. 0 or an exit code (kLunRefused with the names that there are).
int find_lun(const LunLine& line, const LunName& name, PhysicalLun* physical, VirtualLunInfo* out);
// Whether it is in use, also half a second later: an owner's ring outlives the owner by some
// milliseconds.
bool stays_in_use(PhysicalLun* physical, const VirtualLunInfo& lun);
std::vector<VirtualLunInfo> luns_of(PhysicalLun* physical);

// ---- showing

// What device_content() says a device holds, for people; of a key/value store also what shows it.
std::string holds_text(DeviceContent content, const std::string& what, const std::string& device);

std::string size_text(uint64_t bytes);
std::string time_text(uint64_t seconds);
std::string uuid_text(const uint8_t* uuid);
std::string type_word(const VirtualLunInfo& info);  // "scratch", "named", "key/value", "type 7"
void lun_json(JsonWriter& json, const VirtualLunInfo& info);  // one object
// fields of an open one
void physical_fields(JsonWriter& json, const std::string& device, const PhysicalLunInfo& info);
void print_json(const JsonWriter& json);

}  // namespace lunar::tools
