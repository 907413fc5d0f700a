// SPDX-License-Identifier: Apache-2.0
// Streams of pairs, which `lunar kv dump` writes and `lunar kv load` reads. There are two forms;
// the first byte tells them apart.
//
// Binary. Numbers are 8 bytes, little-endian; keys and values are any bytes, of any length from 0
// on.
//
//   "LunarKV dump 1\r\n"                              16 bytes
//   'P' │ key length │ value length │ key │ value     a pair; any number of them, in any order
//   'E' │ number of pairs │ checksum                  the end; XXH3 (64 bits) of all bytes before
//
// A stream without its end is truncated; a stream with a wrong checksum is damaged.
//
// Lines. One JSON object per line: {"key":"text","value":"text"}. "key_base64" and "value_base64"
// replace "key" and "value" for bytes that are not valid UTF-8. Other members, empty lines and a
// byte order mark at the beginning are ignored. Lines need no end mark, but at least one pair.
// Threading: one thread.
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
  // False: it could not be written (errno).
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
  // Reads the next pair. False: the stream has ended, or error() says what is wrong.
  bool next(std::string* key, std::string* value);
  const std::string& error() const { return error_; }
  uint64_t pairs() const { return pairs_; }

 private:
  enum class Form { kUnknown, kBinary, kLines };
  bool fail(const std::string& text);
  bool read(void* data, size_t bytes);
  bool read_text(uint64_t bytes, std::string* out);
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
  char* text_ = nullptr;  // the buffer of getline
  size_t text_room_ = 0;
  void* hash_;
};

}  // namespace lunar::tools
