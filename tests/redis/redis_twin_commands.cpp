// SPDX-License-Identifier: Apache-2.0
// Random commands of the twin test: strings and their kin, keys, expiry, scripts, whole batches.
// The collections are in redis_twin_collections.cpp. See redis_twin.h.
//
// Keys keep to their type but for a seldom RENAME or COPY (never of a hash or set: then DUMP and
// SORT BY of another type's key would see the order of a hash table).
#include "redis_twin.h"

namespace e2e {

const std::vector<Script> kScripts = {
    {"return redis.call('GET', KEYS[1])", 1, false},
    {"return redis.call('STRLEN', ARGV[1])", 1, false},  // a key that was not declared
    {"local m = redis.call('SMEMBERS', KEYS[2]) table.sort(m) "
     "return {#m, m[1], m[#m], redis.call('SCARD', KEYS[2])}",
     2, false},
    {"return cjson.encode(redis.call('LRANGE', KEYS[3], -4, -1))", 3, false},
    {"local t = redis.call('TIME') return {t[1], t[2], redis.call('PTTL', KEYS[1])}", 1, false},
    {"local s = 0 for i, k in ipairs(KEYS) do s = s + (redis.call('EXISTS', k) * i) end return s",
     5, false},
    {"local v = redis.call('HINCRBY', KEYS[4], ARGV[2], 3) redis.call('RPUSH', KEYS[3], v, "
     "ARGV[3]) "
     "return {v, redis.call('LLEN', KEYS[3])}",
     4, true},
    {"local r = redis.pcall('INCR', KEYS[1]) if type(r) == 'table' and r.err then return r.err end "
     "return r",
     1, true},
    {"redis.call('SET', KEYS[1], ARGV[3]) redis.call('LPUSH', KEYS[1], 'x') return 1", 1,
     true},  // the SET stays
    {"math.randomseed(#ARGV[3]) redis.call('ZADD', KEYS[5], math.random(1000), ARGV[2]) "
     "return redis.call('ZRANGE', KEYS[5], 0, 3, 'WITHSCORES')",
     5, true},
    {"redis.call('SET', KEYS[1], ARGV[3], 'PX', 4000) return redis.status_reply(redis.call('TYPE', "
     "KEYS[1]).ok)",
     1, true},
    {"for i = 1, 20 do redis.call('RPUSH', KEYS[3], ARGV[3] .. i) end redis.call('LTRIM', KEYS[3], "
     "0, 300) "
     "return redis.call('LINDEX', KEYS[3], -1)",
     3, true},
};

std::string library(uint64_t version) {
  return fmt::format(
      "#!lua name=twin\n"
      "redis.register_function('twin_put', function(keys, args)\n"
      "  return {{redis.call('HSET', keys[2], args[1], args[2]), redis.call('SADD', keys[1], "
      "args[1]), '{}'}} end)\n"
      "redis.register_function{{function_name='twin_get', flags={{'no-writes'}}, "
      "callback=function(keys, args)\n"
      "  return {{redis.call('HGET', keys[2], args[1]), redis.call('SISMEMBER', keys[1], "
      "args[1])}} end}}\n"
      "redis.register_function('twin_move', function(keys, args)\n"
      "  if redis.call('SREM', keys[1], args[1]) == 0 then return redis.error_reply('nothing to "
      "move') end\n"
      "  return redis.call('HDEL', keys[2], args[1]) end)\n",
      version);
}

std::string Commands::text(size_t bytes) {
  std::string out(bytes, 0);
  uint64_t x = random_() | 1;
  for (char& c : out) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    c = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n"[x >> 58];
  }
  return out;
}

std::string Commands::key(char type) {
  return fmt::format("c{}:{}:{}", client_, type,
                     one_in(3) ? pick(kKeysEach / 16) : pick(kKeysEach));
}

std::string Commands::number(int64_t low, int64_t high) {
  if (one_in(60))
    return one_of("9223372036854775807", "-9223372036854775808", "9223372036854775808", "abc", "",
                  "1.5", "-1", "0", " 1");
  return std::to_string(low + static_cast<int64_t>(pick(static_cast<uint64_t>(high - low + 1))));
}

std::string Commands::deadline(char form) {
  if (one_in(80)) return one_of("0", "-1", "x", "9223372036854775807");
  const int64_t delta_ms =
      static_cast<int64_t>(one_in(3) ? pick(60'000) : 1'000'000 + pick(100'000'000));
  switch (form) {
    case 's':
      return std::to_string(1 + delta_ms / 1000);
    case 'm':
      return std::to_string(1 + delta_ms);
    case 'S':
      return std::to_string((now_ms_ + delta_ms) / 1000 -
                            (one_in(20) ? 100 : 0));  // past ones, too
    default:
      return std::to_string(now_ms_ + delta_ms - (one_in(20) ? 100'000 : 0));
  }
}

Step Commands::numbers() {
  const std::string k = key('n'), n = number(-1000, 1000);
  switch (pick(22)) {
    case 0:
      return {{"INCR", k}};
    case 1:
      return {{"DECR", k}};
    case 2:
      return {{"INCRBY", k, n}};
    case 3:
      return {{"DECRBY", k, n}};
    case 4:
      return {{"INCRBYFLOAT", k, fmt::format("{}.{}", pick(50), one_of("25", "5", "75"))}};
    case 5:
      return {{"GETSET", k, n}};
    case 6:
      return {{"SETNX", k, n}};
    case 7:
      return {{"SETEX", k, deadline('s'), n}};
    case 8:
      return {{"PSETEX", k, deadline('m'), n}};
    case 9:
      return {{"SET", k, text(pick(60)), one_of("NX", "XX", "GET", "KEEPTTL")}};
    case 10:
      return {{"SET", k, n, "PX", deadline('m'), "GET"}};
    case 11:
      return {{"SET", k, n, one_of("EXAT", "PXAT"), deadline('M')}};
    case 12:
      return {{"GETDEL", k}};
    case 13:
      return {{"GETEX", k, "PX", deadline('m')}};
    case 14:
      return {{"GETEX", k, "PERSIST"}};
    case 15:
      return {{"MSETNX", k, n, key('n'), text(20)}};
    case 16:
      return {{"LCS", k, key('n')}};
    case 17:
      return {{"LCS", k, key('n'), "IDX", "MINMATCHLEN", "2", "WITHMATCHLEN"}};
    case 18:
      return {{"APPEND", k, text(1 + pick(8))}};
    case 19:
      return {{"OBJECT", "ENCODING", k}};
    case 20:
      return {{"SUBSTR", k, "0", number(-3, 9)}};
    default:
      return {{"GET", k}};
  }
}

Step Commands::strings() {
  const std::string k = key('s');
  switch (pick(18)) {
    case 0:
    case 1:
      return {{"SET", k, text(one_in(40) ? 60'000 + pick(40'000) : pick(6000))}};
    case 2:
      return {{"APPEND", k, text(pick(200))}};
    case 3:
      return {{"SETRANGE", k, std::to_string(pick(7000)), text(pick(50))}};
    case 4:
    case 5:
      return {{"GETRANGE", k, number(-2000, 5000), number(-2000, 5000)}};
    case 6:
      return {{"MGET", k, key('s'), key('n'), key('l'), key('s'), "none"}};
    case 7:
      return {{"MSET", k, text(pick(3000)), key('n'), number(0, 99), key('s'), text(pick(100))}};
    case 8:
      return {{"STRLEN", k}};
    case 9:
      return {{"GETSET", k, text(pick(2000))}};
    case 10:
      return {{"GETEX", k, "EXAT", deadline('S')}};
    case 11:
      return {{"BITCOUNT", k}};
    default:
      return {{"GET", k}};
  }
}

Step Commands::bitmaps() {
  const std::string k = key('b'), offset = std::to_string(pick(one_in(30) ? 200'000 : 20'000)),
                    bit = std::to_string(pick(2));
  switch (pick(12)) {
    case 0:
    case 1:
      return {{"SETBIT", k, offset, one_in(50) ? "2" : bit}};
    case 2:
    case 3:
      return {{"GETBIT", k, offset}};
    case 4:
      return {{"BITCOUNT", k, number(-500, 500), number(-500, 2000), one_of("BYTE", "BIT")}};
    case 5:
      return {{"BITCOUNT", k}};
    case 6:
      return {{"BITPOS", k, bit, number(0, 500)}};
    case 7:
      return {{"BITPOS", k, bit, number(0, 500), number(-20, 2000), one_of("BYTE", "BIT")}};
    case 8:
      return {{"BITOP", one_of("AND", "OR", "XOR"), key('b'), k, key('b'), key('s')}};
    case 9:
      return {{"BITOP", "NOT", key('b'), k}};
    case 10:
      return {{"BITFIELD", k, "GET", "u8", offset, "SET", "i16", fmt::format("#{}", pick(300)),
               number(-9000, 9000), "OVERFLOW", one_of("WRAP", "SAT", "FAIL"), "INCRBY",
               one_of("u2", "i5", "u63", "i64"), offset, number(-3, 60)}};
    default:
      return {{"BITFIELD_RO", k, "GET", one_of("u4", "i13", "u63"), offset, "GET", "u1", "#7"}};
  }
}

Step Commands::hyperloglogs() {
  const std::string k = key('p');
  switch (pick(7)) {
    case 0:
    case 1:
    case 2:
      return {{"PFADD", k, text(6), text(6), number(0, 500), member()}};
    case 3:
    case 4:
      return {{"PFCOUNT", k}};
    case 5:
      return {{"PFCOUNT", k, key('p'), key('p')}};
    default:
      return {{"PFMERGE", key('p'), k, key('p')}};
  }
}

Step Commands::expiry() {
  const std::string k = any_key();
  switch (pick(12)) {
    case 0:
      return {{"EXPIRE", k, deadline('s')}};
    case 1:
      return {{"PEXPIRE", k, deadline('m')}};
    case 2:
      return {{"EXPIREAT", k, deadline('S')}};
    case 3:
      return {{"PEXPIREAT", k, deadline('M')}};
    case 4:
      return {{"EXPIRE", k, deadline('s'), one_of("NX", "XX", "GT", "LT")}};
    case 5:
    case 6:
    case 7:
      return {{"PERSIST", k}};
    case 8:
      return {{"TTL", k}};
    case 9:
      return {{"PTTL", k}};
    case 10:
      return {{"EXPIRETIME", k}};
    default:
      return {{"PEXPIRETIME", k}};
  }
}

Step Commands::keyspace() {
  const char type = kTypes[pick(sizeof(kTypes) - 1)];
  const bool table = type == 'h' || type == 't';
  const std::string k = key(type);
  const std::string other = key(!table && one_in(12) ? "sbplzxg"[pick(7)] : type);
  const std::string db = one_in(40) ? "9" : std::to_string(pick(3));
  switch (pick(20)) {
    case 0:
      return {{"DEL", k, any_key()}};
    case 1:
      return {{"UNLINK", k}};
    case 2:
    case 3:
      return {{"EXISTS", k, any_key(), any_key()}};
    case 4:
    case 5:
      return {{"TYPE", k}};
    case 6:
    case 7:
      return {{"RENAME", k, other}};
    case 8:
      return {{"RENAMENX", k, other}};
    case 9:
    case 10:
      return {{"COPY", k, other, "REPLACE"}};
    case 11:
      return {{"COPY", k, other, "DB", db, "REPLACE"}};
    case 12:
      return {{"COPY", k, other}};
    case 13:
      return {{"MOVE", k, db}};
    case 14:
      return {{"TOUCH", k, other, any_key()}};
    case 15:
      return {{"OBJECT", one_of("ENCODING", "ENCODING", "REFCOUNT", "NOTHING"), k}};
    case 16:
    case 17:
      return {{"DEBUG", "DIGEST-VALUE", k, other}};
    default:
      return {{"DUMP", k}, table ? Order::kLength : Order::kAsIs};
  }
}

Step Commands::sorts() {
  const std::string numbers = fmt::format("c{}:n:*", client_), list = key('l'),
                    limit = number(0, 5), count = number(-1, 20);
  switch (pick(8)) {
    case 0:
      return {{"SORT", key('t'), "ALPHA", "LIMIT", limit, count}};
    case 1:
      return {{"SORT", key('t'), "DESC"}};
    case 2:
      return {{"SORT", list, "ALPHA", "DESC"}};
    case 3:
      // ties
      return {{"SORT", list, "BY", numbers, "GET", "#", "GET", numbers, "ALPHA"}, Order::kPairs};
    case 4:
      return {{"SORT", list, "BY", fmt::format("c{}:h:*->f1", client_), "LIMIT", limit, count}};
    case 5:
      return {{"SORT", key('z'), "BY", "nosort", "DESC", "LIMIT", limit, count}};
    case 6:
      return {{"SORT", key('t'), "ALPHA", "STORE", key('l')}};
    default:
      return {{"SORT_RO", list, "LIMIT", limit, count}};
  }
}

Step Commands::scripts() {
  if (one_in(4)) {
    const std::string f = one_of("twin_put", "twin_get", "twin_move", "twin_none");
    return {{f == "twin_get" && one_in(2) ? "FCALL_RO" : "FCALL", f, "2", key('t'), key('h'),
             member(), text(pick(60))}};
  }
  const size_t which = pick(kScripts.size());
  const Script& script = kScripts[which];
  const bool by_digest = which < digests_.size() && one_in(2);
  Words words{by_digest ? "EVALSHA" : "EVAL", by_digest ? digests_[which] : script.text,
              std::to_string(script.keys)};
  if (!by_digest && (!script.writes || one_in(10))) words[0] = one_in(2) ? "EVAL_RO" : "EVAL";
  const char types[] = {'n', 't', 'l', 'h', 'z'};
  for (unsigned i = 0; i < script.keys; ++i) words.push_back(key(which == 0 ? 's' : types[i]));
  for (const std::string& w : {key('s'), member(), text(pick(40))}) words.push_back(w);
  return {words};
}

Step Commands::any() {
  switch (pick(28)) {
    case 0:
    case 1:
    case 2:
      return strings();
    case 3:
    case 4:
      return numbers();
    case 5:
      return bitmaps();
    case 6:
      return hyperloglogs();
    case 7:
    case 8:
    case 9:
      return lists();
    case 10:
    case 11:
    case 12:
      return hashes();
    case 13:
    case 14:
    case 15:
      return sets();
    case 16:
    case 17:
      return sorted_sets();
    case 18:
    case 19:
      return sorted_set_ranges();
    case 20:
      return streams();
    case 21:
      return stream_groups();
    case 22:
      return geo();
    case 23:
    case 24:
      return keyspace();
    case 25:
      return expiry();
    case 26:
      return sorts();
    default:
      return scripts();
  }
}

Batch Commands::batch(unsigned client) {
  client_ = client;
  Batch out{{{"SELECT", std::to_string(one_in(5) ? pick(3) : 0)}}};
  const bool multi = one_in(5);
  if (multi && one_in(3)) {
    out.push_back({{"WATCH", any_key(), any_key()}});
    if (one_in(2)) out.push_back(any());
    if (one_in(8)) out.push_back({{"UNWATCH"}});
  }
  if (multi) out.push_back({{"MULTI"}});
  for (uint64_t n = 1 + pick(one_in(10) ? 150 : 24); n > 0; --n) {
    if (one_in(40)) {
      const char type = kTypes[pick(sizeof(kTypes) - 1)];
      for (auto& step : fill(key(type), type)) out.push_back(step);
    } else {
      out.push_back(any());
    }
    // EXECABORT in MULTI
    if (one_in(400)) out.push_back({{one_of("NOSUCH", "GET", "LPUSH", "ZADD", "XADD"), key('s')}});
  }
  if (multi) out.push_back({{one_in(8) ? "DISCARD" : "EXEC"}});
  return out;
}

}  // namespace e2e
