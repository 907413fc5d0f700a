// SPDX-License-Identifier: Apache-2.0
// lunar kv get, set, del and scan.
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tools/kv/kv_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr char kHexHelp[] = "keys, and values on the command line, are hexadecimal: 00ff61";

// Decodes words of the line with --hex. False: refused, and *code is the exit code.
bool decode_words(const KvCommand& command, bool hex, std::vector<std::string>* words, int* code) {
  for (std::string& word : *words) {
    if (!hex) continue;
    const std::string text = word;
    if (from_hex(text, &word)) continue;
    *code = command.refuse(
        text_of("--hex: '%s' is not hexadecimal; give two digits per byte", text.c_str()));
    return false;
  }
  return true;
}

std::string shown(std::string_view key, bool hex) { return hex ? to_hex(key) : escaped(key); }

int unreadable(const KvCommand& command, const std::string& key, bool hex, int64_t status) {
  return command.failed(
      status, text_of("%s: key '%s' cannot be read: %s; `lunar kv check %s` shows where it is",
                      command.place.c_str(), shown(key, hex).c_str(),
                      errno_text(static_cast<int>(status)), shell_word(command.place).c_str()));
}

// Appends a whole file ("-": standard input) to *out. 0 or -errno.
int read_file(const std::string& path, std::string* out) {
  const bool named = path != "-";
  FILE* file = named ? fopen(path.c_str(), "rbe") : stdin;
  if (!file) return -errno;
  char buffer[64 * 1024];
  while (!feof(file) && !ferror(file)) out->append(buffer, fread(buffer, 1, sizeof buffer, file));
  const int status = ferror(file) ? -errno : 0;
  if (named) (void)fclose(file);
  return status;
}

int write_out(const KvCommand& command, std::string_view bytes) {
  if (fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && fflush(stdout) == 0)
    return kExitDone;
  return command.refuse(text_of("standard output: %s", strerror(errno)), kExitFailed);
}

struct Scan {
  bool json, hex, values;
  std::string prefix;
  uint64_t limit, found;
  bool written;
};

bool scan_pair(void* context, kv::Bytes key_bytes, kv::Bytes value_bytes) {
  auto& scan = *static_cast<Scan*>(context);
  const std::string_view key = view_of(key_bytes), value = view_of(value_bytes);
  if (key.substr(0, scan.prefix.size()) != scan.prefix) return true;
  std::string line;
  if (scan.json) {
    JsonWriter json;
    json.open('{');
    json_bytes(json, "key", key);
    scan.values ? json_bytes(json, "value", value) : (void)json.field("value_bytes", value.size());
    line = json.close('}').text();
  } else {
    line = shown(key, scan.hex);
    if (scan.values) line += "\t" + shown(value, scan.hex);
  }
  line += '\n';
  scan.written = fwrite(line.data(), 1, line.size(), stdout) == line.size();
  return scan.written && ++scan.found < scan.limit;
}

}  // namespace

int kv_get(int argc, char** argv) {
  KvCommand command(
      "get",
      "Writes the value of KEY to standard output, unchanged. Exit code 1: there is no such key.");
  std::vector<std::string> key(1);
  bool hex = false;
  command.flags().add("KEY", key[0]).required();
  command.flags().add("--hex", hex, kHexHelp);
  if (const auto code = command.parse(argc, argv)) return *code;
  int code = 0;
  if (!decode_words(command, hex, &key, &code)) return code;
  kv::Store* store = nullptr;
  if (code = command.open(kv::OpenMode::kReadOnly, &store); code != 0) return code;
  std::string value;
  const int64_t length = read_value(store, key[0], &value);
  store->close();
  if (length == -ENOENT)
    return command.refuse(
        text_of("%s: has no key '%s'; `lunar kv scan %s` lists the keys", command.place.c_str(),
                shown(key[0], hex).c_str(), shell_word(command.place).c_str()),
        kExitNo);
  if (length < 0) return unreadable(command, key[0], hex, length);
  if (!command.json) return write_out(command, value);
  JsonWriter json;
  json.open('{');
  json_bytes(json, "key", key[0]);
  json_bytes(json, "value", value);
  json.close('}');
  return write_out(command, json.text() + "\n");
}

int kv_set(int argc, char** argv) {
  KvCommand command(
      "set",
      "Gives KEY a value: VALUE, or the contents of a file or of standard input. It is durable "
      "when the command ends. Each set writes the index; for many pairs use `lunar kv load`.");
  std::vector<std::string> words(1), value(1);
  std::string file;
  bool hex = false;
  command.flags().add("KEY", words[0]).required();
  const Flag word = command.flags().add("VALUE", value[0]);
  command.flags()
      .add("--file", file, "take the value from this file; -: standard input")
      .excludes(word);
  command.flags().add("--hex", hex, kHexHelp);
  if (const auto code = command.parse(argc, argv)) return *code;
  int code = 0;
  if (!decode_words(command, hex, &words, &code) || !decode_words(command, hex, &value, &code))
    return code;
  if (!word.given()) {
    if (file.empty() && isatty(STDIN_FILENO))
      return command.refuse("no value; give it as a word, by --file, or on standard input");
    if (const int status = read_file(file.empty() ? "-" : file, &value[0]); status < 0)
      return command.refuse(
          text_of("%s: %s", file.empty() ? "standard input" : file.c_str(), strerror(-status)));
  }
  kv::Store* store = nullptr;
  if (code = command.open(kv::OpenMode::kLoad, &store); code != 0) return code;
  if (const int status = store->set(bytes_of(words[0]), bytes_of(value[0])); status < 0) {
    store->close();
    return command.failed(status,
                          text_of("%s: key '%s': %s; nothing was changed", command.place.c_str(),
                                  shown(words[0], hex).c_str(), errno_text(status)));
  }
  if (code = command.flush_and_close(store); code != 0 || !command.json) return code;
  JsonWriter json;
  json.open('{');
  json_bytes(json, "key", words[0]);
  json.field("value_bytes", value[0].size()).close('}');
  print_json(json);
  return kExitDone;
}

int kv_del(int argc, char** argv) {
  KvCommand command(
      "del",
      "Deletes keys. This is durable when the command ends. Exit code 1: one of the keys did not "
      "exist.");
  std::vector<std::string> keys;
  bool hex = false;
  command.flags().add("KEY", keys).required();
  command.flags().add("--hex", hex, kHexHelp);
  if (const auto code = command.parse(argc, argv)) return *code;
  int code = 0;
  if (!decode_words(command, hex, &keys, &code)) return code;
  kv::Store* store = nullptr;
  if (code = command.open(kv::OpenMode::kLoad, &store); code != 0) return code;
  uint64_t deleted = 0;
  std::string absent;
  for (const std::string& key : keys) {
    const int64_t status = store->del(bytes_of(key));
    if (status < 0 && status != -ENOENT) {
      store->close();
      return unreadable(command, key, hex, status);
    }
    deleted += status >= 0 ? 1 : 0;
    if (status == -ENOENT) absent += (absent.empty() ? "'" : ", '") + shown(key, hex) + "'";
  }
  if (code = command.flush_and_close(store); code != 0) return code;
  if (command.json) {
    JsonWriter json;
    json.open('{').field("deleted", deleted).field("absent", keys.size() - deleted).close('}');
    print_json(json);
  }
  if (absent.empty()) return kExitDone;
  return command.refuse(text_of("%s: has no key %s", command.place.c_str(), absent.c_str()),
                        kExitNo);
}

int kv_scan(int argc, char** argv) {
  KvCommand command(
      "scan",
      "Prints the keys, one per line, in no order. A character that is not printable appears as "
      "\\xNN, and \\ as \\\\. Reads all keys, even with --prefix: the store finds whole keys "
      "only.");
  std::vector<std::string> prefix(1);
  uint64_t limit = UINT64_MAX;
  bool hex = false, values = false;
  command.flags().add("--prefix", prefix[0], "only keys that begin with this");
  command.flags().add("--limit", limit, "at most this many keys");
  command.flags().add("--values", values, "also print a tab and the value");
  command.flags().add("--hex", hex, "keys, values and the prefix are hexadecimal");
  if (const auto code = command.parse(argc, argv)) return *code;
  int code = 0;
  if (!decode_words(command, hex, &prefix, &code)) return code;
  kv::Store* store = nullptr;
  if (code = command.open(kv::OpenMode::kReadOnly, &store); code != 0) return code;
  Scan scan{command.json, hex, values, prefix[0], limit, 0, true};
  if (limit != 0) code = visit_pairs(command, store, {scan_pair, &scan, !values});
  if (limit == 0) store->close();
  if (scan.written) return write_out(command, "") == kExitDone ? code : kExitFailed;
  return command.refuse(text_of("standard output: %s", strerror(errno)), kExitFailed);
}

}  // namespace lunar::tools
