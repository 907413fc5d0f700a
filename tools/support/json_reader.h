// SPDX-License-Identifier: Apache-2.0
// Reads one JSON text into values: what another program measured (fio), lines of pairs. Numbers are
// doubles; objects keep their keys.
// Threading: one thread an object. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lunar::tools {

class JsonValue {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  double number = 0;  // also of true (1) and false (0)
  std::string text;
  std::vector<JsonValue> items;
  std::map<std::string, JsonValue> members;

  // The value at that path of keys, or null where there is none.
  const JsonValue* find(std::initializer_list<std::string_view> path) const {
    const JsonValue* at = this;
    for (const std::string_view key : path) {
      const auto found = at->members.find(std::string(key));
      if (found == at->members.end()) return nullptr;
      at = &found->second;
    }
    return at;
  }
  double number_at(std::initializer_list<std::string_view> path, double otherwise = 0) const {
    const JsonValue* found = find(path);
    return found && found->kind == Kind::kNumber ? found->number : otherwise;
  }

  // Nothing when the text is no JSON (or nested beyond reason). What follows the value goes to
  // *rest; with nullptr nothing may follow. Of members of one name the last counts.
  static std::optional<JsonValue> parse(std::string_view text, std::string_view* rest = nullptr) {
    JsonValue value;
    if (!value.read(&text, 0)) return std::nullopt;
    (void)next(&text);  // over blanks
    if (!rest && !text.empty()) return std::nullopt;
    if (rest) *rest = text;
    return value;
  }

 private:
  static constexpr int kDepthMax = 64;
  static char next(std::string_view* in) {
    const size_t at = in->find_first_not_of(" \t\r\n");
    in->remove_prefix(at == std::string_view::npos ? in->size() : at);
    return in->empty() ? '\0' : in->front();
  }
  static bool skip(std::string_view* in, std::string_view word) {
    if (in->substr(0, word.size()) != word) return false;
    in->remove_prefix(word.size());
    return true;
  }
  static bool read_hex(std::string_view* in, unsigned* code) {
    if (in->size() < 4 ||
        in->substr(0, 4).find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      return false;
    *code = static_cast<unsigned>(strtoul(std::string(in->substr(0, 4)).c_str(), nullptr, 16));
    in->remove_prefix(4);
    return true;
  }
  // What follows \u, as UTF-8; two of them are one character beyond 16 bits. Half of one is no
  // text.
  static bool read_escape(std::string_view* in, std::string* out) {
    unsigned code = 0, low = 0;
    if (!read_hex(in, &code) || (code >= 0xdc00 && code < 0xe000)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
      if (!skip(in, "\\u") || !read_hex(in, &low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code < 0x80) return *out += static_cast<char>(code), true;
    const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out += static_cast<char>((0xff00 >> (tail + 1) & 0xff) | code >> 6 * tail);
    for (int i = tail - 1; i >= 0; --i) *out += static_cast<char>(0x80 | (code >> 6 * i & 0x3f));
    return true;
  }
  static bool read_string(std::string_view* in, std::string* out) {
    if (!skip(in, "\"")) return false;
    while (!in->empty()) {
      char c = in->front();
      in->remove_prefix(1);
      if (c == '"') return true;
      if (c == '\\') {
        if (in->empty()) return false;
        c = in->front();
        in->remove_prefix(1);
        if (c == 'u') {
          if (!read_escape(in, out)) return false;
          continue;
        }
        const size_t at = std::string_view("\"\\/ntrbf").find(c);
        if (at == std::string_view::npos) return false;
        c = "\"\\/\n\t\r\b\f"[at];
      } else if (static_cast<unsigned char>(c) < 0x20) {
        return false;
      }
      *out += c;
    }
    return false;
  }
  bool read(std::string_view* in, int depth) {
    const char c = next(in);
    if (depth > kDepthMax) return false;
    if (c == '{' || c == '[') return read_container(in, c == '{', depth);
    if (c == '"') return kind = Kind::kString, read_string(in, &text);
    if (skip(in, "null")) return true;
    if (skip(in, "true")) return kind = Kind::kBool, number = 1, true;
    if (skip(in, "false")) return kind = Kind::kBool, true;
    const std::string digits(in->substr(0, in->find_first_not_of("+-.0123456789eE")));
    char* end = nullptr;
    number = strtod(digits.c_str(), &end);
    kind = Kind::kNumber;
    in->remove_prefix(static_cast<size_t>(end - digits.c_str()));
    return end != digits.c_str();
  }
  bool read_container(std::string_view* in, bool object, int depth) {
    const char close = object ? '}' : ']';
    kind = object ? Kind::kObject : Kind::kArray;
    in->remove_prefix(1);
    if (next(in) == close) return in->remove_prefix(1), true;
    for (;;) {
      std::string key;
      if (object &&
          (next(in) != '"' || !read_string(in, &key) || next(in) != ':' || !skip(in, ":")))
        return false;
      JsonValue& value = object ? members[key] = JsonValue() : items.emplace_back();
      if (!value.read(in, depth + 1)) return false;
      const char c = next(in);
      if (c != ',' && c != close) return false;
      in->remove_prefix(1);
      if (c == close) return true;
    }
  }
};

}  // namespace lunar::tools
