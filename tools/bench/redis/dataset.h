// SPDX-License-Identifier: Apache-2.0
// The data of `lunar bench redis`: RESP requests, and checks of the replies.
//
// All content follows from the seed, a key's number and a version, so each reply is checked byte by
// byte, and only the versions are stored. Values are incompressible, or repeat their first third
// twice. A key has parts; writes go to part 0:
//
//   strings      one value                               GET | SET
//   hashes       16 fields of value_bytes / 16           HGET | HSET field 0
//                (listpack at 1 KiB)
//   sorted sets  160 members of 64 bytes, score: number  ZSCORE, ZRANGE | ZADD member 0
//                (skiplist: above 128)
//   big hashes   3000 fields of 100 bytes (hash table)   HGET, HGETALL | HSET field 0
//
// A key has at most one write in flight. So a read must find a version from the last one
// acknowledged when the read was sent to the last one sent when its reply came.
// Threading: one thread per object.
#pragma once
#include <hiredis/hiredis.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/page_content.h"
#include "tools/bench/random.h"

namespace lunar::tools {

enum class DataKind { kStrings, kHashes, kSortedSets, kBigHashes };

enum class Verb : uint8_t { kLoad, kLoadDue, kRead, kRange, kWhole, kWrite };
inline bool is_read(Verb verb) {
  return verb == Verb::kRead || verb == Verb::kRange || verb == Verb::kWhole;
}

struct Request {
  Verb verb = Verb::kRead;
  uint16_t part = 0;     // of the key; kRange: the first of kRangeMembers
  uint32_t version = 0;  // kWrite: the new version; reads: the lowest version that they may find
  uint64_t key = 0;
  uint64_t due_ms = 0;  // kLoadDue
};

class Dataset {
 public:
  static constexpr unsigned kHashFields = 16, kSetMembers = 160, kMemberBytes = 64,
                            kRangeMembers = 10, kBigHashFields = 3000, kBigFieldBytes = 100;
  static constexpr size_t kValueBytesMin = 16, kValueBytesMax = 512 << 10;

  // Has as many keys as `data_bytes` of values need. pre: value_bytes is between the limits.
  Dataset(DataKind kind, uint64_t data_bytes, size_t value_bytes, uint64_t seed,
          bool compressible = false);
  uint64_t keys() const { return keys_; }
  uint64_t key_bytes() const { return parts_ * part_bytes_; }  // bytes of values per key
  uint64_t data_bytes() const { return keys_ * key_bytes(); }

  Request load(uint64_t key) const { return {Verb::kLoad, 0, 0, key}; }
  // The same for a key that expires at due_ms of the wall clock. pre: kStrings
  Request load_due(uint64_t key, uint64_t due_ms) const {
    return {Verb::kLoadDue, 0, 0, key, due_ms};
  }
  // Reads all parts. pre: kBigHashes
  Request read_whole(uint64_t key) const { return {Verb::kWhole, 0, acknowledged(key), key}; }
  Request read(uint64_t key, Random& random) const;
  // pre: !writing(key)
  Request write(uint64_t key);
  bool writing(uint64_t key) const { return (versions_[key] & kInFlight) != 0; }

  void append(const Request& request, std::string* out) const;
  // Checks the reply to `request`, and ends the request. Returns "", or a line that says what is
  // wrong.
  std::string check(const Request& request, const redisReply& reply);

 private:
  static constexpr uint32_t kInFlight = uint32_t{1} << 31;
  uint32_t acknowledged(uint64_t key) const { return versions_[key] & ~kInFlight; }
  bool is_hash() const { return kind_ == DataKind::kHashes || kind_ == DataKind::kBigHashes; }
  bool is_whole(const Request& request, const redisReply& reply) const;
  uint64_t item(uint64_t key, unsigned part) const { return key * parts_ + part; }
  void fill(uint64_t item, uint32_t version, char* out) const;
  void append_part(uint64_t key, unsigned part, uint32_t version, std::string* out) const;
  void append_score(unsigned part, uint32_t version, std::string* out) const;
  bool version_fits(const Request& request, unsigned part, uint32_t version) const;
  bool is_part(const Request& request, unsigned part, const redisReply& reply) const;
  bool is_right(const Request& request, const redisReply& reply) const;

  DataKind kind_;
  bool compressible_;
  unsigned parts_;
  size_t part_bytes_;
  uint64_t keys_;
  PageContent content_;
  std::vector<uint32_t> versions_;  // the acknowledged version, and kInFlight
  mutable std::string expected_;
};

// They append a part of "*3\r\n$3\r\nGET\r\n..." each.
void append_array(size_t words, std::string* out);
void append_word(std::string_view word, std::string* out);

}  // namespace lunar::tools
