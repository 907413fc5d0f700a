// SPDX-License-Identifier: Apache-2.0
// Pairs as a stream: what `lunar kv dump` writes and `lunar kv load` reads.
//
// Binary. Numbers are 8 bytes, little-endian; keys and values are any bytes, of any length from 0
// on.
//
//   "LunarKV dump 1\r\n"                              16 bytes
//   'P' │ key length │ value length │ key │ value     a pair; any number of them, in any order
//   'E' │ number of pairs │ checksum                  the end. XXH3 (64 bits) of what is before
//
// A stream without its end is cut off, and one with another checksum is damaged: neither passes for
// a whole one.
//
// Lines. One JSON object a line: {"key":"text","value":"text"}. Instead of "key" there may be
// "key_base64", and instead of "value" "value_base64": what is not valid UTF-8 is written so. Other
// members are left alone, and so are empty lines, and a byte order mark in front. These have no end
// that could be missed, but one pair at least. Which of the two a stream is, its first byte tells.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace lunar::tools {

class PairWriter {
 public:
  PairWriter(FILE* file, bool lines);  // file: not owned
  ~PairWriter();
  PairWriter(const PairWriter&) = delete;
  PairWriter& operator=(const PairWriter&) = delete;
  // False: the file does not take it (errno).
  [[nodiscard]] bool put(std::string_view key, std::string_view value);
  [[nodiscard]] bool finish();
  uint64_t pairs() const { return pairs_; }

 private:
  bool write(const void* data, size_t bytes);
  FILE* file_;
  bool lines_;
  uint64_t pairs_ = 0;
  void* hash_;  // XXH3_state_t
};

class PairReader {
 public:
  explicit PairReader(FILE* file);  // not owned
  ~PairReader();
  PairReader(const PairReader&) = delete;
  PairReader& operator=(const PairReader&) = delete;
  // The next pair. False: that was all, or error() says what is wrong.
  bool next(std::string* key, std::string* value);
  const std::string& error() const { return error_; }
  uint64_t pairs() const { return pairs_; }

 private:
  enum class Form { kUnknown, kBinary, kLines };
  bool fail(const std::string& text);
  bool take(void* data, size_t bytes);
  bool take_text(uint64_t bytes, std::string* out);
  bool begin();
  bool next_binary(std::string* key, std::string* value);
  bool next_line(std::string* key, std::string* value);
  bool end();
  bool cut_off();

  FILE* file_;
  Form form_ = Form::kUnknown;
  uint64_t pairs_ = 0, line_ = 0;
  bool over_ = false;
  std::string error_;
  char* text_ = nullptr;  // of getline
  size_t text_room_ = 0;
  void* hash_;
};

}  // namespace lunar::tools
