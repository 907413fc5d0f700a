// SPDX-License-Identifier: Apache-2.0
// Keys and values as text: hexadecimal, base64, UTF-8 and JSON.
#include <cstring>

#include "tools/kv/kv_tool.h"

namespace lunar::tools {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int digit_of(char c, const char* digits, size_t count) {
  const void* at = memchr(digits, c, count);
  return at ? static_cast<int>(static_cast<const char*>(at) - digits) : -1;
}

// Number of bytes after the first byte of a character; -1: no character begins with it.
int tail_of(unsigned char first) {
  if (first < 0x80) return 0;
  if (first >= 0xc2 && first < 0xe0) return 1;
  if (first >= 0xe0 && first < 0xf0) return 2;
  return first >= 0xf0 && first < 0xf5 ? 3 : -1;
}

}  // namespace

std::string to_hex(std::string_view bytes) {
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    out += kHex[static_cast<unsigned char>(c) >> 4];
    out += kHex[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

bool from_hex(std::string_view text, std::string* out) {
  out->clear();
  if (text.size() % 2 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high =
        digit_of(static_cast<char>(tolower(static_cast<unsigned char>(text[i]))), kHex, 16);
    const int low =
        digit_of(static_cast<char>(tolower(static_cast<unsigned char>(text[i + 1]))), kHex, 16);
    if (high < 0 || low < 0) return false;
    *out += static_cast<char>(high << 4 | low);
  }
  return true;
}

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j)
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out += i + j > bytes.size() ? '=' : kBase64[word >> (18 - 6 * j) & 63];
  }
  return out;
}

bool from_base64(std::string_view text, std::string* out) {
  out->clear();
  if (text.size() % 4 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 4) {
    size_t padding = 0;
    if (i + 4 == text.size()) padding = text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
    uint32_t word = 0;
    for (size_t j = 0; j < 4; ++j) {
      const int digit = j >= 4 - padding ? 0 : digit_of(text[i + j], kBase64, 64);
      if (digit < 0) return false;
      word = word << 6 | static_cast<uint32_t>(digit);
    }
    if (word & ((1u << 8 * padding) - 1)) return false;  // bits beyond the last byte
    for (size_t j = 0; j < 3 - padding; ++j) *out += static_cast<char>(word >> (16 - 8 * j) & 0xff);
  }
  return true;
}

bool is_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto first = static_cast<unsigned char>(bytes[i]);
    const int tail = tail_of(first);
    if (tail < 0 || bytes.size() - i <= static_cast<size_t>(tail)) return false;
    const auto second = tail ? static_cast<unsigned char>(bytes[i + 1]) : 0x80u;
    // Overlong forms, surrogates, and numbers beyond Unicode.
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
      return false;
    for (int j = 0; j < tail; ++j) {
      if ((static_cast<unsigned char>(bytes[++i]) & 0xc0) != 0x80) return false;
    }
  }
  return true;
}

std::string escaped(std::string_view bytes) {
  const bool text = is_utf8(bytes);
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    // U+0080 to U+009F are also control characters.
    const bool control =
        c < 0x20 || c == 0x7f || (c == 0xc2 && i + 1 < bytes.size() && (bytes[i + 1] & 0x60) == 0);
    if (control || (c >= 0x80 && !text)) {
      out += "\\x";
      out += to_hex(bytes.substr(i, 1));
      if (c == 0xc2 && text) out += "\\x" + to_hex(bytes.substr(++i, 1));
    } else {
      if (c == '\\') out += '\\';
      out += static_cast<char>(c);
    }
  }
  return out;
}

void json_bytes(JsonWriter& json, const std::string& name, std::string_view bytes) {
  if (is_utf8(bytes))
    json.field(name, bytes);
  else
    json.field(name + "_base64", to_base64(bytes));
}

}  // namespace lunar::tools
