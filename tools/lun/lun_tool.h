// SPDX-License-Identifier: Apache-2.0
// Common parts of the verbs of `lunar lun`: consent, LUN URIs, opening, and how a LUN is shown.
//
// Every refusal is one line on standard error: what, where, how to fix. Nothing has been changed
// then. A verb that destroys data asks at the terminal, or needs --yes.
// Threading: one thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lun/compose.h"
#include "tools/support/json_writer.h"
#include "tools/support/verb_command.h"

namespace lunar::tools {

class LunCommand : public VerbCommand {
 public:
  LunCommand(const char* verb, const char* description)
      : VerbCommand("lunar lun", verb, description) {}
  void add_yes() { flags().add("--yes", yes, "do not ask"); }
  bool yes = false;
};

int lun_create(int argc, char** argv);
int lun_list(int argc, char** argv);
int lun_info(int argc, char** argv);
int lun_resize(int argc, char** argv);
int lun_remove(int argc, char** argv);
int lun_check(int argc, char** argv);
int lun_paths(int argc, char** argv);

// ---- consent

// loss: what happens to which data, as a sentence. True with --yes, or after a yes at the terminal.
// Otherwise false, and *code is the exit code.
bool lun_consent(const LunCommand& command, const std::string& loss, int* code);
// The same for a step that --yes does not cover.
bool ask_at_terminal(const LunCommand& command, const std::string& step, int* code);
bool at_terminal();

// ---- URIs

struct LunName {
  std::string device;  // raw URI
  std::string name;    // of the virtual LUN; "": none was given
};
LunName split_lun(const std::string& uri);
bool valid_lun_name(const std::string& name);
// Splits a URI, and refuses one without #NAME (with_name), or with it (!with_name). 0 or an exit
// code.
int parse_lun_name(const LunCommand& command, const std::string& uri, bool with_name, LunName* out);
// The devices of a raw URI: the URI itself, or the members of stripe: and paths:.
std::vector<std::string> leaves_of(const std::string& uri);
// "pmem:/x,delegate=on" -> "/x"; "" for sim: and mem:.
std::string path_of_leaf(const std::string& leaf);

// ---- opening

enum class OpenFor { kReading, kWriting };
// Opens a device to look at what it holds: claims nothing, formats nothing, and also opens a device
// that is in use. 0 or -errno with *why.
int open_to_look(const std::string& device, OpenFor purpose, Device** out, ErrorText* why);
// 0 or an exit code
int open_physical(const LunCommand& command, const std::string& device, PhysicalLun** out,
                  Format format = Format::kNever);
// Finds the LUN's entry. 0, or an exit code after a refusal that names the nearest LUN.
int find_lun(const LunCommand& command, const LunName& name, PhysicalLun* physical,
             VirtualLunInfo* out);
// Waits up to half a second for the LUN to be unused, because an owner's ring outlives the owner by
// some milliseconds. True: the LUN is still in use.
bool stays_in_use(PhysicalLun* physical, const VirtualLunInfo& lun);
std::vector<VirtualLunInfo> luns_of(PhysicalLun* physical);

// ---- showing

// `what` device_content() found on a device, for people. For a key/value store it also names the
// command that shows it.
std::string holds_text(DeviceContent content, const std::string& what, const std::string& device);
std::string time_text(uint64_t seconds);
std::string type_word(const VirtualLunInfo& info);  // "scratch", "named", "key/value", "type 7"
// Writes one object.
void lun_json(JsonWriter& json, const VirtualLunInfo& info);
// Writes fields of an object.
void physical_fields(JsonWriter& json, const std::string& device, const PhysicalLunInfo& info);

}  // namespace lunar::tools
