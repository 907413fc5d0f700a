// SPDX-License-Identifier: Apache-2.0
// Writes one JSON value by nested calls, and puts the commas itself.
// Threading: one thread per object.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace lunar::tools {

class JsonWriter {
 public:
  JsonWriter& open(char bracket) {
    separate();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  JsonWriter& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ':';
    fresh_ = true;
    return *this;
  }

  template <class Value>
  JsonWriter& value(const Value& v) {
    separate();
    if constexpr (std::is_same_v<Value, bool>)
      text_ += v ? "true" : "false";
    else if constexpr (std::is_floating_point_v<Value>)
      number(v);
    else if constexpr (std::is_arithmetic_v<Value>)
      text_ += fmt::format("{}", v);
    else
      quote(std::string_view(v));
    return *this;
  }
  template <class Value>
  JsonWriter& field(std::string_view name, const Value& v) {
    return key(name).value(v);
  }

  const std::string& text() const { return text_; }

 private:
  void separate() {
    if (!fresh_ && !text_.empty()) text_ += ',';
    fresh_ = false;
  }
  // Whole numbers in full, others with six digits. JSON has no NaN: null.
  void number(double v) {
    if (!std::isfinite(v))
      text_ += "null";
    else if (v == std::floor(v) && std::fabs(v) < 9e15)
      text_ += fmt::format("{}", static_cast<int64_t>(v));
    else
      text_ += fmt::format("{:.6g}", v);
  }
  void quote(std::string_view s) {
    text_ += '"';
    for (const char c : s) {
      if (c == '"' || c == '\\')
        (text_ += '\\') += c;
      else if (static_cast<unsigned char>(c) < 0x20)
        text_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      else
        text_ += c;
    }
    text_ += '"';
  }
  std::string text_;
  bool fresh_ = true;
};

// main() reports an error of standard output (finish_output); fmt::print would throw.
inline void print_json(const JsonWriter& json) { fputs((json.text() + "\n").c_str(), stdout); }

}  // namespace lunar::tools
