// SPDX-License-Identifier: Apache-2.0
// What the verbs of `lunar kv` share: their common flags, opening, refusals, keys and values as
// text. Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv/store.h"
#include "kv/store_path.h"
#include "tools/support/flags.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

enum KvExit : int {
  kKvDone = 0,
  kKvAbsent = 1,   // get, del: a key is not there. check: damage that no pair is lost by
  kKvRefused = 2,  // wrong use, bad input, a place that is taken or in use: nothing was changed
  kKvDamaged = 3,  // something that the store holds cannot be read as it was written
  kKvFailed = 4,   // an I/O error, no space, or the like stopped it
};

// The flags of every verb, and the parser that a verb adds its own to.
class KvCommand {
 public:
  KvCommand(const char* verb, const char* description);
  // Runs the parser: nothing, or the exit code to end with (help was asked for, or the line is
  // wrong).
  std::optional<int> parse(int argc, char** argv);
  Flags& flags() { return flags_; }
  std::string place;
  bool json = false;
  // what is opened to look at may have a damaged log (kv::StoreOptions::salvage)
  bool salvage = false;

  // `lunar kv VERB: text` on standard error; returns `code`.
  int refuse(const std::string& text, int code = kKvRefused) const;
  // The same for an error of the runtime: its own line, and the exit code that its errno means.
  int failed(int64_t error, const std::string& text) const;
  // A size flag; "": 0. False: refused, *code says how to end.
  bool size(const char* flag, const std::string& text, uint64_t* out, int* code) const;
  // Opens the store that is there; kLoadOrMake: where the place is blank, one that is made. 0 or an
  // exit code.
  int open(kv::OpenMode mode, kv::Store** out) const;
  // The same for a caller that says why not: 0, or -errno with *why. *code: not 0 where the line
  // was wrong.
  int open(kv::OpenMode mode, kv::Store** out, ErrorText* why, int* code) const;
  // What an error of opening means, in a line of its own.
  int failed_to_open(int status, const ErrorText& why) const;
  int dram(uint64_t* bytes) const;  // 0 or an exit code
  // Whether the place may be blank (an empty file, a device without content), not a path that leads
  // to nothing.
  bool is_there() const;
  // Makes what was changed durable and closes. 0 or an exit code.
  int flush_and_close(kv::Store* store) const;

 private:
  std::string verb_, dram_;
  Flags flags_;
};

int kv_create(int argc, char** argv);
int kv_info(int argc, char** argv);
int kv_check(int argc, char** argv);
int kv_get(int argc, char** argv);
int kv_set(int argc, char** argv);
int kv_del(int argc, char** argv);
int kv_scan(int argc, char** argv);
int kv_load(int argc, char** argv);
int kv_dump(int argc, char** argv);
int kv_grow(int argc, char** argv);
int kv_compact(int argc, char** argv);

// All pairs of a store that was opened with kLook, in the order of the device.
struct Pairs {
  bool (*on_pair)(void* context, kv::Bytes key, kv::Bytes value);  // as kv::Sweep::on_pair
  void* context;
  bool keys_only;
};
// Closes the store. 0; kKvDamaged with the line said: so many pairs cannot be read; or another exit
// code.
int visit_pairs(const KvCommand& command, kv::Store* store, const Pairs& pairs);

inline std::string_view view_of(kv::Bytes bytes) {
  return {static_cast<const char*>(bytes.data), bytes.size};
}
inline kv::Bytes bytes_of(std::string_view text) { return {text.data(), text.size()}; }

// Reads whole pairs: the value of a key that is there. Its length, or -errno.
[[nodiscard]] int64_t read_value(kv::Store* store, std::string_view key, std::string* out);

// ---- bytes as text (bytes_text.cpp)

std::string to_hex(std::string_view bytes);
[[nodiscard]] bool from_hex(std::string_view text, std::string* out);
std::string to_base64(std::string_view bytes);
[[nodiscard]] bool from_base64(std::string_view text, std::string* out);
bool is_utf8(std::string_view bytes);
// A line's worth: what is no printable character as \xNN, a backslash twice, so that it can be told
// what it was.
std::string escaped(std::string_view bytes);
// As NAME where it is valid UTF-8, else as NAME_base64.
void json_bytes(JsonWriter& json, const std::string& name, std::string_view bytes);
void print_json(const JsonWriter& json);

}  // namespace lunar::tools
