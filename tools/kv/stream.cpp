// SPDX-License-Identifier: Apache-2.0
// See stream.h.
#include "tools/kv/stream.h"

#include <errno.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "base/xxh3.h"
#include "kv/record.h"
#include "tools/kv/kv_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are written as they lie in memory");
constexpr char kHead[] = "LunarKV dump 1\r\n";
constexpr size_t kHeadBytes = sizeof kHead - 1, kPiece = 1 << 20;

XXH3_state_t* new_hash() {
  XXH3_state_t* state = XXH3_createState();
  if (!state) throw std::bad_alloc();
  (void)XXH3_64bits_reset(state);
  return state;
}
XXH3_state_t* state_of(void* hash) { return static_cast<XXH3_state_t*>(hash); }

struct PairHead {
  char kind;
  uint64_t key_bytes, value_bytes;
} __attribute__((packed));

std::string kind_name(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "true or false";
  return (value.is_structured() ? "an " : "a ") + std::string(value.type_name());
}

// Reads "key" or "key_base64" of an object. Returns what is wrong with it, or "".
std::string bytes_member(const nlohmann::json& object, const std::string& name, std::string* out) {
  const auto text = object.find(name), coded = object.find(name + "_base64");
  if (text != object.end() && text->is_string()) return text->get_to(*out), "";
  const auto given = coded != object.end() ? coded : text;
  if (given == object.end()) return "has no " + name + " (" + name + " or " + name + "_base64)";
  const std::string& which = given.key();
  if (!given->is_string())
    return "has " + kind_name(*given) + " as its " + which + "; it must be a string (\"" + which +
           "\":\"...\")";
  return from_base64(given->get_ref<const std::string&>(), out)
             ? ""
             : "has a " + which + " that is not base64";
}

constexpr char kByteOrderMark[] = "\xef\xbb\xbf";  // some programs write it before UTF-8

}  // namespace

PairWriter::PairWriter(FILE* file, bool lines) : file_(file), lines_(lines), hash_(new_hash()) {}
PairWriter::~PairWriter() { (void)XXH3_freeState(state_of(hash_)); }

bool PairWriter::write(const void* data, size_t bytes) {
  if (!lines_) (void)XXH3_64bits_update(state_of(hash_), data, bytes);
  return fwrite(data, 1, bytes, file_) == bytes;
}

bool PairWriter::put(std::string_view key, std::string_view value) {
  if (lines_) {
    JsonWriter json;
    json.open('{');
    json_bytes(json, "key", key);
    json_bytes(json, "value", value);
    json.close('}');
    ++pairs_;
    return write((json.text() + "\n").data(), json.text().size() + 1);
  }
  if (pairs_ == 0 && !write(kHead, kHeadBytes)) return false;
  ++pairs_;
  const PairHead head{'P', key.size(), value.size()};
  return write(&head, sizeof head) && write(key.data(), key.size()) &&
         write(value.data(), value.size());
}

bool PairWriter::finish() {
  if (!lines_) {
    if (pairs_ == 0 && !write(kHead, kHeadBytes)) return false;
    if (!write("E", 1) || !write(&pairs_, sizeof pairs_)) return false;
    const uint64_t checksum = XXH3_64bits_digest(state_of(hash_));
    if (!write(&checksum, sizeof checksum)) return false;
  }
  return fflush(file_) == 0;
}

PairReader::PairReader(FILE* file) : file_(file), hash_(new_hash()) {}

PairReader::~PairReader() {
  (void)XXH3_freeState(state_of(hash_));
  free(text_);
}

bool PairReader::fail(const std::string& text) {
  error_ = text;
  return false;
}

bool PairReader::cut_off() {
  if (ferror(file_)) return fail(text_of("cannot be read: %s", strerror(errno)));
  return fail("is cut off after " + counted(pairs_, "pair"));
}

bool PairReader::read(void* data, size_t bytes) {
  if (fread(data, 1, bytes, file_) != bytes) return cut_off();
  (void)XXH3_64bits_update(state_of(hash_), data, bytes);
  return true;
}

// A damaged length must not allocate much memory, so the text is read in pieces.
bool PairReader::read_text(uint64_t bytes, std::string* out) {
  out->clear();
  for (uint64_t done = 0; done < bytes;) {
    const size_t part = bytes - done < kPiece ? static_cast<size_t>(bytes - done) : kPiece;
    out->resize(static_cast<size_t>(done) + part);
    if (!read(out->data() + done, part)) return false;
    done += part;
  }
  return true;
}

bool PairReader::begin() {
  const int first = getc(file_);
  if (first == EOF)
    return ferror(file_) ? cut_off() : fail("is empty: neither a dump nor lines of JSON");
  (void)ungetc(first, file_);
  form_ = first == kHead[0] ? Form::kBinary : Form::kLines;
  if (form_ == Form::kLines) return true;
  char head[kHeadBytes];
  if (!read(head, sizeof head)) return false;
  return memcmp(head, kHead, sizeof head) == 0 ||
         fail("begins like a dump, but not of this version");
}

bool PairReader::end() {
  uint64_t pairs = 0, checksum = 0;
  if (!read(&pairs, sizeof pairs)) return false;
  const uint64_t own = XXH3_64bits_digest(state_of(hash_));
  if (!read(&checksum, sizeof checksum)) return false;
  if (pairs != pairs_ || checksum != own) return fail("is damaged: its checksum is wrong");
  if (getc(file_) != EOF) return fail("goes on after its end");
  over_ = true;
  return false;
}

bool PairReader::next_binary(std::string* key, std::string* value) {
  char kind = 0;
  if (!read(&kind, 1)) return false;
  if (kind == 'E') return end();
  uint64_t lengths[2];
  if (kind != 'P') return fail("is damaged after " + counted(pairs_, "pair"));
  if (!read(lengths, sizeof lengths)) return false;
  if (lengths[0] > kv::kPairBytesMax || lengths[1] > kv::kPairBytesMax)
    return fail("is damaged after " + counted(pairs_, "pair") + ": a length beyond 100 GiB");
  return read_text(lengths[0], key) && read_text(lengths[1], value);
}

bool PairReader::next_line(std::string* key, std::string* value) {
  for (;;) {
    const ssize_t length = getline(&text_, &text_room_, file_);
    if (length < 0 && !feof(file_))
      return fail(text_of("cannot be read: %s", strerror(errno)));  // or there is no memory
    if (length < 0 && pairs_ == 0)
      return fail("is empty up to line " + std::to_string(line_) +
                  ", its end: neither a dump nor lines of JSON");
    if (length < 0) return over_ = true, false;
    ++line_;
    std::string_view text(text_, static_cast<size_t>(length));
    if (line_ == 1 && text.starts_with(kByteOrderMark))
      text.remove_prefix(sizeof kByteOrderMark - 1);
    if (line_ == 1 && (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")))
      return fail("is UTF-16; lines of JSON are UTF-8 (iconv -f UTF-16 -t UTF-8)");
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
    const auto number = static_cast<unsigned long long>(line_);
    // The parser would take a zero byte for the end of the text.
    const auto object = text.find('\0') == text.npos ? nlohmann::json::parse(text, nullptr, false)
                                                     : nlohmann::json();
    if (!object.is_object() && !is_utf8(text))
      return fail(
          text_of("line %llu is not UTF-8; other bytes go into key_base64, value_base64", number));
    if (!object.is_object())
      return fail(
          text_of("line %llu is not a JSON object; a line is {\"key\":...,\"value\":...}", number));
    std::string wrong = bytes_member(object, "key", key);
    if (wrong.empty()) wrong = bytes_member(object, "value", value);
    if (!wrong.empty()) return fail(text_of("line %llu %s", number, wrong.c_str()));
    return true;
  }
}

bool PairReader::next(std::string* key, std::string* value) {
  if (over_ || !error_.empty() || (form_ == Form::kUnknown && !begin())) return false;
  const bool got = form_ == Form::kBinary ? next_binary(key, value) : next_line(key, value);
  pairs_ += got ? 1 : 0;
  return got;
}

}  // namespace lunar::tools
