// SPDX-License-Identifier: Apache-2.0
// The table of command_keys.h, and a hash over it that the compiler builds.
#include "command_keys.h"

#include <array>

namespace lunar::redis {
namespace {

constexpr int8_t small(int number) { return static_cast<int8_t>(number); }
constexpr CommandKeys range(const char* name, int first, int last, int step, Wants wants,
                            int member = 0, int member_step = 0) {
  return {name,        KeyForm::kRange, small(first),  small(last),
          small(step), wants,           small(member), small(member_step)};
}
constexpr CommandKeys one(const char* name, Wants wants, int member = 0, int member_step = 0) {
  return range(name, 1, 1, 1, wants, member, member_step);
}
constexpr CommandKeys all(const char* name, Wants wants) { return range(name, 1, -1, 1, wants); }
constexpr CommandKeys counted(const char* name, int first, int extra = 0) {
  const Wants wants = extra != 0 ? Wants::kStores : Wants::kValue;
  return {name, KeyForm::kCounted, small(first), small(extra), 1, wants, 0, 0};
}
constexpr CommandKeys special(const char* name, KeyForm form, int8_t first, int8_t words_from = 0) {
  return {name, form, first, words_from, 1, Wants::kValue, 0, 0};
}
constexpr CommandKeys streams(const char* name, int8_t from) {
  return {name, KeyForm::kStreams, from, 0, 1, Wants::kValue, 0, 0};
}

constexpr Wants kObject = Wants::kObject, kValue = Wants::kValue, kFreed = Wants::kFreed,
                kFreedLater = Wants::kFreedLater, kMoves = Wants::kMoves, kStores = Wants::kStores,
                kDepends = Wants::kDepends;

constexpr CommandKeys kCommands[] = {
    // strings
    one("GET", kValue),
    one("SET", kDepends),
    one("SETEX", kFreed),
    one("PSETEX", kFreed),
    one("SETNX", kObject),
    one("GETSET", kValue),
    one("GETDEL", kValue),
    one("GETEX", kValue),
    one("GETRANGE", kValue),
    one("SUBSTR", kValue),
    one("SETRANGE", kValue),
    one("APPEND", kValue),
    one("STRLEN", kValue),
    one("INCR", kValue),
    one("DECR", kValue),
    one("INCRBY", kValue),
    one("DECRBY", kValue),
    one("INCRBYFLOAT", kValue),
    all("MGET", kValue),
    range("MSET", 1, -1, 2, kFreed),
    range("MSETNX", 1, -1, 2, kObject),
    range("LCS", 1, 2, 1, kValue),
    one("BITCOUNT", kValue),
    one("BITFIELD", kValue),
    one("BITFIELD_RO", kValue),
    one("BITPOS", kValue),
    range("BITOP", 2, -1, 1, kStores),
    one("GETBIT", kValue),
    one("SETBIT", kValue),
    one("PFADD", kValue),
    all("PFCOUNT", kValue),
    all("PFMERGE", kValue),
    one("DELEX", kValue),
    one("DELIFEQ", kValue),
    one("DIGEST", kValue),
    CommandKeys{"MSETEX", KeyForm::kCounted, 1, 0, 2, kFreed, 0, 0},
    // any type
    all("DEL", kFreed),
    all("UNLINK", kFreedLater),
    all("EXISTS", kObject),
    all("TOUCH", kObject),
    all("WATCH", kObject),
    one("TYPE", kObject),
    one("TTL", kObject),
    one("PTTL", kObject),
    one("EXPIRETIME", kObject),
    one("PEXPIRETIME", kObject),
    one("EXPIRE", kDepends),
    one("PEXPIRE", kDepends),
    one("EXPIREAT", kDepends),
    one("PEXPIREAT", kDepends),
    one("PERSIST", kObject),
    one("MOVE", kObject),
    range("RENAME", 1, 2, 1, kMoves),
    range("RENAMENX", 1, 2, 1, kObject),
    range("COPY", 1, 2, 1, kValue),
    one("DUMP", kValue),
    one("RESTORE", kDepends),
    one("RESTORE-ASKING", kDepends),
    special("SORT", KeyForm::kStored, 1, 2),
    one("SORT_RO", kValue),
    special("MIGRATE", KeyForm::kMigrated, 3),
    range("OBJECT", 2, 2, 1, kObject),
    range("MEMORY", 2, 2, 1, kValue),
    // lists
    one("LPUSH", kValue),
    one("RPUSH", kValue),
    one("LPUSHX", kValue),
    one("RPUSHX", kValue),
    one("LPOP", kValue),
    one("RPOP", kValue),
    one("LLEN", kValue),
    one("LINDEX", kValue),
    one("LINSERT", kValue),
    one("LPOS", kValue),
    one("LRANGE", kValue),
    one("LREM", kValue),
    one("LSET", kValue),
    one("LTRIM", kValue),
    range("LMOVE", 1, 2, 1, kValue),
    range("RPOPLPUSH", 1, 2, 1, kValue),
    range("BLPOP", 1, -2, 1, kValue),
    range("BRPOP", 1, -2, 1, kValue),
    range("BLMOVE", 1, 2, 1, kValue),
    range("BRPOPLPUSH", 1, 2, 1, kValue),
    counted("LMPOP", 1),
    counted("BLMPOP", 2),
    // hashes
    one("HGET", kValue, 2, 1),
    one("HSET", kValue, 2, 2),
    one("HSETNX", kValue, 2, 2),
    one("HMSET", kValue, 2, 2),
    one("HMGET", kValue, 2, 1),
    one("HDEL", kValue, 2, 1),
    one("HEXISTS", kValue, 2, 1),
    one("HSTRLEN", kValue, 2, 1),
    one("HINCRBY", kValue, 2, 2),
    one("HINCRBYFLOAT", kValue, 2, 2),
    one("HGETALL", kValue),
    one("HKEYS", kValue),
    one("HVALS", kValue),
    one("HLEN", kValue),
    one("HRANDFIELD", kValue),
    one("HSCAN", kValue),
    one("HEXPIRE", kValue, kBehindFields, 1),
    one("HPEXPIRE", kValue, kBehindFields, 1),
    one("HEXPIREAT", kValue, kBehindFields, 1),
    one("HPEXPIREAT", kValue, kBehindFields, 1),
    one("HEXPIRETIME", kValue, kBehindFields, 1),
    one("HPEXPIRETIME", kValue, kBehindFields, 1),
    one("HTTL", kValue, kBehindFields, 1),
    one("HPTTL", kValue, kBehindFields, 1),
    one("HPERSIST", kValue, kBehindFields, 1),
    one("HGETDEL", kValue, kBehindFields, 1),
    one("HGETEX", kValue, kBehindFields, 1),
    one("HSETEX", kValue, kBehindFields, 2),
    // sets
    one("SADD", kValue, 2, 1),
    one("SREM", kValue, 2, 1),
    one("SISMEMBER", kValue, 2, 1),
    one("SMISMEMBER", kValue, 2, 1),
    one("SCARD", kValue),
    one("SMEMBERS", kValue),
    one("SPOP", kValue),
    one("SRANDMEMBER", kValue),
    one("SSCAN", kValue),
    range("SMOVE", 1, 2, 1, kValue, 3, 1),
    all("SINTER", kValue),
    all("SUNION", kValue),
    all("SDIFF", kValue),
    all("SINTERSTORE", kStores),
    all("SUNIONSTORE", kStores),
    all("SDIFFSTORE", kStores),
    counted("SINTERCARD", 1),
    // sorted sets
    one("ZADD", kValue, 3, 2),
    one("ZINCRBY", kValue, 3, 2),
    one("ZSCORE", kValue, 2, 1),
    one("ZMSCORE", kValue, 2, 1),
    one("ZREM", kValue, 2, 1),
    one("ZRANK", kValue, 2, 2),
    one("ZREVRANK", kValue, 2, 2),
    one("ZCARD", kValue),
    one("ZCOUNT", kValue),
    one("ZLEXCOUNT", kValue),
    one("ZRANGE", kValue),
    one("ZREVRANGE", kValue),
    one("ZRANGEBYSCORE", kValue),
    one("ZREVRANGEBYSCORE", kValue),
    one("ZRANGEBYLEX", kValue),
    one("ZREVRANGEBYLEX", kValue),
    one("ZREMRANGEBYRANK", kValue),
    one("ZREMRANGEBYSCORE", kValue),
    one("ZREMRANGEBYLEX", kValue),
    one("ZPOPMIN", kValue),
    one("ZPOPMAX", kValue),
    one("ZRANDMEMBER", kValue),
    one("ZSCAN", kValue),
    range("ZRANGESTORE", 1, 2, 1, kStores),
    range("BZPOPMIN", 1, -2, 1, kValue),
    range("BZPOPMAX", 1, -2, 1, kValue),
    counted("ZMPOP", 1),
    counted("BZMPOP", 2),
    counted("ZUNION", 1),
    counted("ZINTER", 1),
    counted("ZDIFF", 1),
    counted("ZINTERCARD", 1),
    counted("ZUNIONSTORE", 2, 1),
    counted("ZINTERSTORE", 2, 1),
    counted("ZDIFFSTORE", 2, 1),
    // places
    one("GEOADD", kValue),
    one("GEODIST", kValue, 2, 1),
    one("GEOHASH", kValue, 2, 1),
    one("GEOPOS", kValue, 2, 1),
    special("GEORADIUS", KeyForm::kStored, 1, 6),
    one("GEORADIUS_RO", kValue),
    special("GEORADIUSBYMEMBER", KeyForm::kStored, 1, 5),
    one("GEORADIUSBYMEMBER_RO", kValue),
    one("GEOSEARCH", kValue),
    range("GEOSEARCHSTORE", 1, 2, 1, kStores),
    // streams
    one("XADD", kValue),
    one("XLEN", kValue),
    one("XRANGE", kValue),
    one("XREVRANGE", kValue),
    one("XDEL", kValue),
    one("XTRIM", kValue),
    one("XACK", kValue),
    one("XCLAIM", kValue),
    one("XAUTOCLAIM", kValue),
    one("XPENDING", kValue),
    one("XSETID", kValue),
    range("XGROUP", 2, 2, 1, kValue),
    range("XINFO", 2, 2, 1, kValue),
    streams("XREAD", 1),
    streams("XREADGROUP", 4),
    one("XACKDEL", kValue),
    one("XDELEX", kValue),
    one("XCFGSET", kValue),
    // scripts: the keys that the call names
    counted("EVAL", 2),
    counted("EVALSHA", 2),
    counted("EVAL_RO", 2),
    counted("EVALSHA_RO", 2),
    counted("FCALL", 2),
    counted("FCALL_RO", 2),
    // sets of vectors: their layout is not known
    one("VADD", kObject),
    one("VCARD", kObject),
    one("VDIM", kObject),
    one("VEMB", kObject),
    one("VGETATTR", kObject),
    one("VINFO", kObject),
    one("VISMEMBER", kObject),
    one("VLINKS", kObject),
    one("VRANDMEMBER", kObject),
    one("VRANGE", kObject),
    one("VREM", kObject),
    one("VSETATTR", kObject),
    one("VSIM", kObject),
    // Lunar's own: they act on the memory of values, which they do not read
    range("LUNAR", 2, -1, 1, kObject),
};

// The commands that read beyond the top level of values.
struct Reaching {
  Reach reach;
  const char* names;  // each followed by a blank
};
constexpr Reaching kReaching[] = {
    {Reach::kAll,
     "GET GETEX GETSET GETDEL MGET LCS BITCOUNT BITPOS BITOP DUMP SORT SORT_RO MIGRATE HGETALL "
     "HKEYS HVALS SMEMBERS SUNION SUNIONSTORE ZUNION ZUNIONSTORE LPOS LREM LINSERT DIGEST "},
    {Reach::kFirst, "COPY "},
    {Reach::kSmallest, "SINTER SINTERSTORE SINTERCARD ZINTER ZINTERSTORE ZINTERCARD "},
    {Reach::kLikeFirst, "SDIFF SDIFFSTORE ZDIFF ZDIFFSTORE "},
    {Reach::kIndexes, "LRANGE ZRANGE ZREVRANGE ZRANGESTORE "},
    {Reach::kIndex, "LINDEX LSET "},
    {Reach::kScores, "ZRANGEBYSCORE ZREVRANGEBYSCORE ZRANGEBYLEX ZREVRANGEBYLEX "},
    {Reach::kScan, "HSCAN SSCAN ZSCAN "},
    {Reach::kBytes, "GETRANGE SUBSTR "},
    {Reach::kIds, "XRANGE "},
    {Reach::kIdsBack, "XREVRANGE "},
    {Reach::kSince, "XREAD "},
};

constexpr char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

constexpr size_t length_of(const char* text) {
  size_t n = 0;
  while (text[n] != 0) ++n;
  return n;
}

constexpr uint32_t hash_of(const char* text, size_t bytes) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<uint8_t>(upper(text[i]))) * 16777619u;
  return hash ^ hash >> 15;
}

// The table with the reach of each command. left_over: names in kReaching that it does not have.
struct Table {
  std::array<CommandKeys, std::size(kCommands)> command;
  unsigned left_over = 0;
};
constexpr Table kTable = [] {
  Table table{std::to_array(kCommands)};
  for (const Reaching& some : kReaching)
    for (const char* name = some.names; *name != 0;) {
      size_t bytes = 0;
      while (name[bytes] != ' ') ++bytes;
      CommandKeys* found = nullptr;
      for (CommandKeys& one : table.command) {
        size_t same = 0;
        while (same < bytes && one.name[same] == name[same]) ++same;
        if (same == bytes && one.name[bytes] == 0) found = &one;
      }
      if (found != nullptr)
        found->reach = some.reach;
      else
        ++table.left_over;
      name += bytes + 1;
    }
  return table;
}();
static_assert(kTable.left_over == 0);

constexpr size_t kSlots = 1024;  // linear probing; 0: empty, else index + 1
static_assert(std::size(kCommands) < 255);
constexpr auto kIndex = [] {
  std::array<uint8_t, kSlots> slots{};
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    size_t at = hash_of(kCommands[i].name, length_of(kCommands[i].name)) % kSlots;
    while (slots[at] != 0) at = (at + 1) % kSlots;
    slots[at] = static_cast<uint8_t>(i + 1);
  }
  return slots;
}();

}  // namespace

bool same_word(Slice text, const char* upper_case) {
  size_t i = 0;
  for (; i < text.bytes && upper_case[i] != 0; ++i)
    if (upper(text.data[i]) != upper_case[i]) return false;
  return i == text.bytes && upper_case[i] == 0;
}

int small_number(Slice text) {
  if (text.bytes == 0 || text.bytes > 6) return -1;
  int number = 0;
  for (size_t i = 0; i < text.bytes; ++i) {
    if (text.data[i] < '0' || text.data[i] > '9') return -1;
    number = number * 10 + (text.data[i] - '0');
  }
  return number;
}

int chosen_database(const Command& command) {
  const bool select = command.kept == 2 && same_word(command.argument[0], "SELECT");
  return select ? small_number(command.argument[1]) : -1;
}

bool signed_number(Slice text, int64_t* out) {
  const bool minus = text.bytes != 0 && text.data[0] == '-';
  int64_t number = 0;
  if (text.bytes <= (minus ? 1u : 0u) || text.bytes > 18) return false;
  for (size_t i = minus ? 1 : 0; i < text.bytes; ++i) {
    if (text.data[i] < '0' || text.data[i] > '9') return false;
    number = number * 10 + (text.data[i] - '0');
  }
  *out = minus ? -number : number;
  return true;
}

unsigned first_member(const CommandKeys& keys, const Command& command) {
  if (keys.member != kBehindFields) return static_cast<unsigned>(keys.member);
  unsigned i = 2;
  while (i < command.kept && !same_word(command.argument[i], "FIELDS")) ++i;
  return i + 2;  // the number of fields is between
}

bool has_word(const Command& command, unsigned from, unsigned end, const char* upper_case) {
  for (unsigned i = from; i < command.kept && i < end; ++i)
    if (same_word(command.argument[i], upper_case)) return true;
  return false;
}

const CommandKeys* find_command_keys(Slice name) {
  if (name.bytes == 0 || name.bytes > 24) return nullptr;
  for (size_t at = hash_of(name.data, name.bytes) % kSlots; kIndex[at] != 0; at = (at + 1) % kSlots)
    if (same_word(name, kTable.command[kIndex[at] - 1].name))
      return &kTable.command[kIndex[at] - 1];
  return nullptr;
}

}  // namespace lunar::redis
