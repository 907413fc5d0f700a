// SPDX-License-Identifier: Apache-2.0
// Common parts of the verbs of `lunar kv`: flags, opening, refusals, and keys and values as text.
// Threading: one thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv/store.h"
#include "kv/store_path.h"
#include "tools/support/json_writer.h"
#include "tools/support/verb_command.h"

namespace lunar::tools {

// A verb with its place and --dram.
class KvCommand : public VerbCommand {
 public:
  KvCommand(const char* verb, const char* description);
  std::optional<int> parse(int argc, char** argv);
  std::string place;
  // OpenMode::kReadOnly also opens a store with a damaged log (kv::StoreOptions::salvage).
  bool salvage = false;

  // Parses the value of a size flag; "" is 0. False: refused, and *code is the exit code.
  bool size(const char* flag, const std::string& text, uint64_t* out, int* code) const;
  // Opens the existing store. kLoadOrMake makes one if the place is blank. log_bytes_most: as in
  // kv::StoreOptions. 0 or an exit code.
  int open(kv::OpenMode mode, kv::Store** out, uint64_t log_bytes_most = 0) const;
  // The same for a caller that reports a failure itself: 0, or -errno with *why. *code is not 0 if
  // a flag was refused.
  int open(kv::OpenMode mode, kv::Store** out, ErrorText* why, int* code,
           uint64_t log_bytes_most = 0) const;
  // Refuses after an error of open(). Returns the exit code.
  int failed_to_open(int status, const ErrorText& why) const;
  // Says that an error stopped the command after it had changed something. Returns the exit code.
  int stopped(int status, const std::string& text) const;
  int dram(uint64_t* bytes) const;  // 0 or an exit code
  // True unless the place is a path that leads to nothing.
  bool is_there() const;
  // Makes the changes durable and closes the store. 0 or an exit code.
  int flush_and_close(kv::Store* store) const;

 private:
  std::string dram_;
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

// A visit of all pairs, in the order of the device.
struct Pairs {
  bool (*on_pair)(void* context, kv::Bytes key, kv::Bytes value);  // as kv::Sweep::on_pair
  void* context;
  bool keys_only;
};
// Visits the pairs of a store that was opened with kLook, and closes it. 0, or an exit code after a
// line on standard error; kExitDamaged: some pairs cannot be read.
int visit_pairs(const KvCommand& command, kv::Store* store, const Pairs& pairs);

inline std::string_view view_of(kv::Bytes bytes) {
  return {static_cast<const char*>(bytes.data), bytes.size};
}
inline kv::Bytes bytes_of(std::string_view text) { return {text.data(), text.size()}; }

// Reads the whole value of a key. Returns its length, or -errno (-ENOENT: no such key).
[[nodiscard]] int64_t read_value(kv::Store* store, std::string_view key, std::string* out);

// ---- bytes as text (bytes_text.cpp)

std::string to_hex(std::string_view bytes);
[[nodiscard]] bool from_hex(std::string_view text, std::string* out);
std::string to_base64(std::string_view bytes);
[[nodiscard]] bool from_base64(std::string_view text, std::string* out);
bool is_utf8(std::string_view bytes);
// Bytes as part of a line: a character that is not printable as \xNN, a backslash twice. The result
// determines the bytes.
std::string escaped(std::string_view bytes);
// Writes the field NAME if the bytes are valid UTF-8, else NAME_base64.
void json_bytes(JsonWriter& json, const std::string& name, std::string_view bytes);

}  // namespace lunar::tools
