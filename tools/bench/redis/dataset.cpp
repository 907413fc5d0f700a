// SPDX-License-Identifier: Apache-2.0
// See dataset.h. Requests are formatted without printf, because the load generator shares the
// machine with the measured server. Replies come from hiredis' reader, which is the same in 0.14
// and 1.x.
#include "tools/bench/redis/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace lunar::tools {

namespace {

void append_number(uint64_t number, std::string* out) {
  char text[24];
  out->append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

void append_key(uint64_t key, std::string* out) {
  char text[16] = {'k', 'e', 'y', ':'};
  for (size_t i = sizeof text; i-- > 4; key /= 10) text[i] = static_cast<char>('0' + key % 10);
  append_word({text, sizeof text}, out);
}

void append_field(unsigned field, std::string* out) {
  char text[5] = {'f'};
  const size_t digits = field < 100 ? 2 : 4;
  for (size_t i = digits; i > 0; --i, field /= 10) text[i] = static_cast<char>('0' + field % 10);
  append_word({text, 1 + digits}, out);
}

void append_number_word(uint64_t number, std::string* out) {
  char text[24];
  append_word(
      {text, static_cast<size_t>(std::to_chars(text, text + sizeof text, number).ptr - text)}, out);
}

// The parts of a key of each kind. part_bytes 0: an equal share of the value size.
struct Shape {
  unsigned parts;
  size_t part_bytes;
};
constexpr Shape kShapes[] = {{1, 0},
                             {Dataset::kHashFields, 0},
                             {Dataset::kSetMembers, Dataset::kMemberBytes},
                             {Dataset::kBigHashFields, Dataset::kBigFieldBytes}};
const Shape& shape_of(DataKind kind) { return kShapes[static_cast<size_t>(kind)]; }

size_t part_bytes_of(DataKind kind, size_t value_bytes) {
  const Shape& shape = shape_of(kind);
  return shape.part_bytes != 0 ? shape.part_bytes
                               : std::max(sizeof(uint64_t), value_bytes / shape.parts);
}

}  // namespace

void append_array(size_t words, std::string* out) {
  *out += '*';
  append_number(words, out);
  *out += "\r\n";
}

void append_word(std::string_view word, std::string* out) {
  *out += '$';
  append_number(word.size(), out);
  *out += "\r\n";
  *out += word;
  *out += "\r\n";
}

Dataset::Dataset(DataKind kind, uint64_t data_bytes, size_t value_bytes, uint64_t seed,
                 bool compressible)
    : kind_(kind),
      compressible_(compressible),
      parts_(shape_of(kind).parts),
      part_bytes_(part_bytes_of(kind, value_bytes)),
      keys_(std::max<uint64_t>(1, data_bytes / (parts_ * part_bytes_))),
      content_(seed, (part_bytes_ + 7) / 8 * 8),
      versions_(keys_),
      expected_((part_bytes_ + 7) / 8 * 8, '\0') {}

// Word 0 is a stamp of item and version; the other words follow from item and version.
void Dataset::fill(uint64_t item, uint32_t version, char* out) const {
  content_.fill(item ^ (uint64_t{version} << 40), out);
  const uint64_t stamp = content_.stamp(item, version);
  memcpy(out, &stamp, sizeof stamp);
  const size_t third = std::max(sizeof stamp, part_bytes_ / 3 / sizeof stamp * sizeof stamp);
  for (size_t at = third; compressible_ && at < part_bytes_; at += third)
    memcpy(out + at, out, std::min(third, part_bytes_ - at));
}

void Dataset::append_part(uint64_t key, unsigned part, uint32_t version, std::string* out) const {
  fill(item(key, part), version, expected_.data());
  append_word({expected_.data(), part_bytes_}, out);
}

// Each write lowers the score of member 0 by one, from 0, so the ranks do not change.
void Dataset::append_score(unsigned part, uint32_t version, std::string* out) const {
  if (part == 0 && version > 0)
    append_word("-" + std::to_string(version), out);
  else
    append_number_word(part, out);
}

Request Dataset::read(uint64_t key, Random& random) const {
  Request request{Verb::kRead, 0, acknowledged(key), key};
  if (kind_ == DataKind::kSortedSets && random.below(2) == 0) {
    request.verb = Verb::kRange;
    request.part = static_cast<uint16_t>(random.below(kSetMembers - kRangeMembers + 1));
  } else if (parts_ > 1) {
    request.part = static_cast<uint16_t>(random.below(parts_));
  }
  return request;
}

Request Dataset::write(uint64_t key) {
  const uint32_t version = acknowledged(key) + 1;
  versions_[key] |= kInFlight;
  return {Verb::kWrite, 0, version, key};
}

void Dataset::append(const Request& request, std::string* out) const {
  const unsigned part = request.part;
  const auto begin = [&](size_t words, std::string_view command) {
    append_array(words, out);
    append_word(command, out);
    append_key(request.key, out);
  };
  switch (request.verb) {
    case Verb::kLoad:
    case Verb::kLoadDue:
    case Verb::kWrite: {
      const unsigned parts = request.verb == Verb::kWrite ? 1 : parts_;
      const bool due = request.verb == Verb::kLoadDue;
      if (kind_ == DataKind::kStrings) {
        begin(due ? 5 : 3, "SET");
      } else {
        begin(2 + size_t{2} * parts, is_hash() ? "HSET" : "ZADD");
      }
      for (unsigned i = 0; i < parts; ++i) {
        if (is_hash()) append_field(i, out);
        if (kind_ == DataKind::kSortedSets) append_score(i, request.version, out);
        // The name of a member has no versions, only its score has.
        append_part(request.key, i, kind_ == DataKind::kSortedSets ? 0 : request.version, out);
      }
      if (due) append_word("PXAT", out), append_number_word(request.due_ms, out);
      return;
    }
    case Verb::kRead:
      begin(kind_ == DataKind::kStrings ? 2 : 3, kind_ == DataKind::kStrings ? "GET"
                                                 : is_hash()                 ? "HGET"
                                                                             : "ZSCORE");
      if (is_hash()) append_field(part, out);
      if (kind_ == DataKind::kSortedSets) append_part(request.key, part, 0, out);
      return;
    case Verb::kRange:
      begin(4, "ZRANGE");
      append_number_word(part, out);
      append_number_word(part + kRangeMembers - 1, out);
      return;
    case Verb::kWhole:
      begin(2, "HGETALL");
      return;
  }
}

bool Dataset::version_fits(const Request& request, unsigned part, uint32_t version) const {
  if (part != 0) return version == 0;
  const uint32_t now = versions_[request.key];
  const uint32_t most = (now & ~kInFlight) + ((now & kInFlight) != 0 ? 1 : 0);
  return version >= request.version && version <= most;
}

bool Dataset::is_part(const Request& request, unsigned part, const redisReply& reply) const {
  if (reply.type != REDIS_REPLY_STRING || static_cast<size_t>(reply.len) != part_bytes_)
    return false;
  uint64_t stamp;
  memcpy(&stamp, reply.str, sizeof stamp);
  const uint64_t key_item = item(request.key, part);
  const auto version = static_cast<uint32_t>(stamp);
  const bool fits =
      kind_ == DataKind::kSortedSets ? version == 0 : version_fits(request, part, version);
  if (!fits || stamp != content_.stamp(key_item, version)) return false;
  fill(key_item, version, expected_.data());
  return memcmp(expected_.data(), reply.str, part_bytes_) == 0;
}

// Fields may come in any order, but each once.
bool Dataset::is_whole(const Request& request, const redisReply& reply) const {
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != size_t{2} * parts_) return false;
  std::vector<bool> seen(parts_);
  for (size_t i = 0; i < reply.elements; i += 2) {
    const redisReply& field = *reply.element[i];
    if (field.type != REDIS_REPLY_STRING || field.len < 2 || field.str[0] != 'f') return false;
    const auto part = static_cast<unsigned>(strtoul(field.str + 1, nullptr, 10));
    if (part >= parts_ || seen[part] || !is_part(request, part, *reply.element[i + 1]))
      return false;
    seen[part] = true;
  }
  return true;
}

bool Dataset::is_right(const Request& request, const redisReply& reply) const {
  switch (request.verb) {
    case Verb::kLoad:
    case Verb::kLoadDue:
    case Verb::kWrite:
      if (kind_ == DataKind::kStrings)
        return reply.type == REDIS_REPLY_STATUS && strcmp(reply.str, "OK") == 0;
      // The number of new fields or members.
      return reply.type == REDIS_REPLY_INTEGER &&
             reply.integer == (request.verb == Verb::kWrite ? 0 : parts_);
    case Verb::kRead: {
      if (kind_ != DataKind::kSortedSets) return is_part(request, request.part, reply);
      if (reply.type != REDIS_REPLY_STRING) return false;
      char* end = nullptr;
      const long score = strtol(reply.str, &end, 10);
      if (end == reply.str || *end != 0) return false;
      return request.part == 0
                 ? score <= 0 && version_fits(request, 0, static_cast<uint32_t>(-score))
                 : score == request.part;
    }
    case Verb::kRange:
      if (reply.type != REDIS_REPLY_ARRAY || reply.elements != kRangeMembers) return false;
      for (unsigned i = 0; i < kRangeMembers; ++i) {
        if (!is_part(request, request.part + i, *reply.element[i])) return false;
      }
      return true;
    case Verb::kWhole:
      return is_whole(request, reply);
  }
  return false;
}

std::string Dataset::check(const Request& request, const redisReply& reply) {
  const bool right = is_right(request, reply);
  if (request.verb == Verb::kWrite) versions_[request.key] = request.version;
  if (right) return {};
  static constexpr const char* kVerbs[] = {"load",       "load",       "read",
                                           "range read", "whole read", "write"};
  std::string got = reply.type == REDIS_REPLY_ERROR ? fmt::format("the error {}", reply.str)
                    : reply.type == REDIS_REPLY_NIL ? std::string("nothing")
                    : reply.type == REDIS_REPLY_STRING
                        ? fmt::format("{} other bytes", reply.len)
                        : fmt::format("a reply of type {}", reply.type);
  return fmt::format("{} of key {} part {}: the server answers {}",
                     kVerbs[static_cast<size_t>(request.verb)], request.key, request.part, got);
}

}  // namespace lunar::tools
