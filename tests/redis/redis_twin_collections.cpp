// SPDX-License-Identifier: Apache-2.0
// Random commands of the twin test: lists, hashes, sets, sorted sets, streams, geo, and fresh
// values of all types. Random picks (SPOP, SRANDMEMBER, ...) ask for all elements: which ones come
// otherwise is chance. See redis_twin.h.
#include "redis_twin.h"

namespace e2e {
namespace {

const std::string kAll = "100000";  // more than any collection has

}  // namespace

std::string Commands::member(const std::string& of) {
  if (!of.empty() && of.back() % 2 == 0) return std::to_string(pick(1200));  // sets of integers
  return fmt::format("f{}", pick(one_in(4) ? 300 : 25));
}

std::string Commands::score() {
  if (one_in(80)) return one_of("inf", "-inf", "nan", "1e300", "x");
  return fmt::format("{}{}", static_cast<int64_t>(pick(200)) - 40, one_in(3) ? ".5" : "");
}

std::string Commands::stream_id() {
  if (one_in(60)) return one_of("x", "0-0", "0", "-", "+", "$");
  return fmt::format("{}-{}", now_ms_ - static_cast<int64_t>(pick(40'000)), pick(4));
}

std::string Commands::place(bool longitude) {
  if (one_in(200)) return "200";
  return fmt::format("{}.{:04}", static_cast<int64_t>(pick(longitude ? 40 : 30)) - 10,
                     pick(10'000));
}

Batch Commands::fill(const std::string& k, char type) {
  const bool large = one_in(8);
  Words words;
  const uint64_t n = large ? 100 + pick(200) : 1 + pick(24), bytes = large ? pick(200) : pick(60);
  switch (type) {
    case 'n':
      words = {"SET", k, one_in(3) ? text(pick(30)) : std::to_string(pick(5000))};
      break;
    case 's':
      words = {"SET", k, text(large ? 5000 + pick(30'000) : 100 + pick(4500))};
      break;
    case 'b':
      words = {"SET", k, text(large ? 6000 : 200 + pick(2500))};
      break;
    case 'p':
      words = {"PFADD", k};
      for (uint64_t i = 0; i < (large ? 2500 : n); ++i)
        words.push_back(std::to_string(pick(1'000'000)));
      break;
    case 'l':
      words = {"RPUSH", k};
      for (uint64_t i = 0; i < n; ++i)
        words.push_back(one_in(5) ? std::to_string(pick(900)) : text(bytes + (large ? 100 : 0)));
      break;
    case 'h':
      words = {"HSET", k};
      for (uint64_t i = 0; i < n; ++i)
        words.insert(words.end(),
                     {fmt::format("f{}", i), i == 1 ? std::to_string(pick(90)) : text(bytes)});
      break;
    case 't':
      words = {"SADD", k};
      for (uint64_t i = 0; i < 2 * n; ++i)
        words.push_back(k.back() % 2 == 0 && !one_in(2000) ? member(k)
                                                           : member(k) + text(bytes / 2));
      break;
    case 'y':
      words = {"ZADD", k};
      for (uint64_t i = 0; i < n; ++i)
        words.insert(words.end(), {"0", fmt::format("f{}", i) + text(one_in(4) ? bytes : 0)});
      break;
    case 'z':
      words = {"ZADD", k};
      for (uint64_t i = 0; i < n; ++i)
        words.insert(words.end(), {std::to_string(pick(100)),
                                   fmt::format("f{}", i) + (one_in(4) ? text(bytes) : "")});
      break;
    case 'x': {
      Batch out{{{"DEL", k}}};
      for (uint64_t i = 0; i < (large ? 40 : 6); ++i)
        out.push_back(
            {{"XADD", k, fmt::format("1000-{}", i + 1), "a", text(pick(400)), "b", text(5)}});
      for (const char* group : {"g0", "g1"}) out.push_back({{"XGROUP", "CREATE", k, group, "0"}});
      return out;
    }
    default:
      words = {"GEOADD", k};
      for (uint64_t i = 0; i < n; ++i)
        words.insert(words.end(), {place(true), place(false), fmt::format("f{}", i)});
  }
  if (words[0] == "SET") return {{words}};
  return {{{"DEL", k}}, {words}};
}

Step Commands::lists() {
  const std::string k = key('l'), other = key('l'), value = text(one_in(30) ? 9000 : pick(250)),
                    i = number(-12, 12);
  const std::string end = one_of("LEFT", "RIGHT");
  switch (pick(22)) {
    case 0:
    case 1:
      return {{"RPUSH", k, value, number(0, 9), text(30)}};
    case 2:
      return {{"LPUSH", k, value, text(10)}};
    case 3:
      return {{one_of("RPUSHX", "LPUSHX"), k, value}};
    case 4:
      return {{"LPOP", k}};
    case 5:
      return {{"RPOP", k, number(0, 4)}};
    case 6:
    case 7:
    case 8:
      return {{"LRANGE", k, i, number(-12, 12)}};
    case 9:
      return {{"LINDEX", k, i}};
    case 10:
      return {{"LSET", k, i, value}};
    case 11:
      return {{"LINSERT", k, one_of("BEFORE", "AFTER"), number(0, 9), value}};
    case 12:
      return {{"LREM", k, number(-2, 2), number(0, 9)}};
    case 13:
      return {{"LTRIM", k, "0", number(20, 300)}};
    case 14:
      return {{"LPOS", k, number(0, 9), "RANK", number(1, 2), "COUNT", number(0, 3)}};
    case 15:
      return {{"LMOVE", k, other, end, one_of("LEFT", "RIGHT")}};
    case 16:
      return {{"RPOPLPUSH", k, other}};
    case 17:
      return {{"LMPOP", "3", k, other, key('l'), end, "COUNT", "2"}};
    case 18:
      return {{"OBJECT", "ENCODING", k}};
    default:
      return {{"LLEN", k}};
  }
}

Step Commands::hashes() {
  const std::string k = key('h'), f = member(), value = text(one_in(20) ? 700 : pick(60));
  switch (pick(22)) {
    case 0:
    case 1:
      return {{"HSET", k, f, value, member(), number(0, 50)}};
    case 2:
      return {{"HSETNX", k, f, value}};
    case 3:
      return {{"HMSET", k, f, value, member(), value}};
    case 4:
    case 5:
    case 6:
      return {{"HGET", k, f}};
    case 7:
      return {{"HMGET", k, f, member(), "none", member()}};
    case 8:
      return {{"HDEL", k, f, member()}};
    case 9:
      return {{"HEXISTS", k, f}};
    case 10:
      return {{"HSTRLEN", k, f}};
    case 11:
      return {{"HINCRBY", k, f, number(-5, 50)}};
    case 12:
      return {{"HINCRBYFLOAT", k, f, "0.25"}};
    case 13:
      return {{"HGETALL", k}, Order::kPairs};
    case 14:
      return {{"HKEYS", k}, Order::kUnordered};
    case 15:
      return {{"HVALS", k}, Order::kUnordered};
    case 16:
      return {{"HRANDFIELD", k, kAll}, Order::kUnordered};
    case 17:
      return {{"HRANDFIELD", k, kAll, "WITHVALUES"}, Order::kPairs};
    case 18:
      return {{"HSCAN", k, "0", "COUNT", kAll}, Order::kScanPairs};
    case 19:
      return {{"HSCAN", k, "0", "MATCH", "f1*", "COUNT", kAll}, Order::kScanPairs};
    case 20:
      return {{"OBJECT", "ENCODING", k}};
    default:
      return {{"HLEN", k}};
  }
}

Step Commands::sets() {
  const std::string k = key('t'), other = key('t'), m = member(k);
  switch (pick(24)) {
    case 0:
    case 1:
      return {{"SADD", k, m, member(k), one_in(200) ? text(80) : member(k)}};
    case 2:
      return {{"SREM", k, m, member(k)}};
    case 3:
    case 4:
    case 5:
      return {{"SISMEMBER", k, m}};
    case 6:
      return {{"SMISMEMBER", k, m, member(), member(k)}};
    case 7:
      return {{"SCARD", k}};
    case 8:
      return {{"SMEMBERS", k}, Order::kUnordered};
    case 9:
      return {{"SMOVE", k, other, m}};
    case 10:
      return {{"SPOP", k, one_in(4) ? kAll : "0"}, Order::kUnordered};
    case 11:
      return {{"SRANDMEMBER", k, kAll}, Order::kUnordered};
    case 12:
      return {{"SINTER", k, other}, Order::kUnordered};
    case 13:
      return {{"SUNION", k, other, key('t')}, Order::kUnordered};
    case 14:
      return {{"SDIFF", k, other, key('t')}, Order::kUnordered};
    case 15:
      return {{one_of("SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"), key('t'), k, other}};
    case 16:
      return {{"SINTERCARD", "2", k, other, "LIMIT", number(0, 9)}};
    case 17:
      return {{"SSCAN", k, "0", "COUNT", kAll}, Order::kScan};
    case 18:
      return {{"SSCAN", k, "0", "MATCH", "*1*", "COUNT", kAll}, Order::kScan};
    case 19:
      return {{"OBJECT", "ENCODING", k}};
    default:
      return {{"SISMEMBER", other, member(other)}};
  }
}

Step Commands::sorted_sets() {
  const std::string k = key('z'), other = key('z'), m = member(), s = score();
  switch (pick(24)) {
    case 0:
    case 1:
      return {{"ZADD", k, s, m, score(), member()}};
    case 2:
      return {{"ZADD", k, one_of("NX", "XX", "GT", "LT"), "CH", s, m, "5", text(20)}};
    case 3:
      return {{"ZADD", k, "XX", "INCR", s, m}};
    case 4:
      return {{"ZINCRBY", k, number(-5, 5), m}};
    case 5:
    case 6:
      return {{"ZSCORE", k, m}};
    case 7:
      return {{"ZMSCORE", k, m, member(), "none"}};
    case 8:
      return {{"ZREM", k, m, member()}};
    case 9:
      return {{"ZCARD", k}};
    case 10:
      return {{"ZPOPMIN", k, number(0, 3)}};
    case 11:
      return {{"ZPOPMAX", k}};
    case 12:
      return {{"ZMPOP", "2", k, other, one_of("MIN", "MAX"), "COUNT", "2"}};
    case 13:
      return {{"ZRANDMEMBER", k, kAll}, Order::kUnordered};
    case 14:
      return {{"ZRANDMEMBER", k, kAll, "WITHSCORES"}, Order::kPairs};
    case 15:
      return {{"ZSCAN", k, "0", "COUNT", kAll}, Order::kScanPairs};
    case 16:
      return {{one_of("ZUNIONSTORE", "ZINTERSTORE"), key('z'), "3", k, other, key('t'), "WEIGHTS",
               "2", "1", "-3", "AGGREGATE", one_of("SUM", "MIN", "MAX")}};
    case 17:
      return {{"ZDIFFSTORE", key('z'), "2", k, other}};
    case 18:
      return {{one_of("ZUNION", "ZINTER", "ZDIFF"), "2", k, one_in(2) ? other : key('t'),
               "WITHSCORES"}};
    case 19:
      return {{"ZINTERCARD", "2", k, other, "LIMIT", number(0, 9)}};
    case 20:
      return {{"ZRANGESTORE", key('z'), k, number(-5, 5), number(-9, 30)}};
    default:
      return {{one_of("ZRANK", "ZREVRANK"), k, m}};
  }
}

Step Commands::sorted_set_ranges() {
  const std::string k = key('z'), low = fmt::format("{}{}", one_in(3) ? "(" : "", score()),
                    high = one_in(4) ? "+inf" : score();
  switch (pick(12)) {
    case 0:
    case 1:
      return {{"ZRANGE", k, number(-9, 9), number(-9, 30), "WITHSCORES"}};
    case 2:
      return {{"ZRANGE", k, low, high, "BYSCORE", "LIMIT", number(0, 3), number(-1, 9)}};
    case 3:
      return lexical_ranges();
    case 4:
      return {{"ZRANGE", k, high, low, "BYSCORE", "REV", "WITHSCORES"}};
    case 5:
      return {{"ZRANGEBYSCORE", k, low, high, "WITHSCORES", "LIMIT", "0", number(0, 9)}};
    case 6:
      return {{"ZREVRANGEBYSCORE", k, high, low}};
    case 7:
      return lexical_ranges();
    case 8:
      return {{"ZCOUNT", k, low, high}};
    case 9:
      return {{"ZREMRANGEBYRANK", k, number(0, 3), number(0, 4)}};
    case 10:
      return {{"ZREMRANGEBYSCORE", k, low, low}};
    default:
      return {{"ZREVRANGE", k, "0", number(0, 9)}};
  }
}

// Only where all scores are equal: in a skip list of several scores the answer follows its random
// levels.
Step Commands::lexical_ranges() {
  const std::string k = key('y'),
                    low = one_in(3) ? "-" : fmt::format("{}{}", one_of("[", "("), member());
  const std::string high = one_in(3) ? "+" : fmt::format("[{}", member());
  switch (pick(9)) {
    case 0:
      return {{"ZADD", k, "0", member(), "0", member() + text(2)}};
    case 1:
      return {{"ZREM", k, member()}};
    case 2:
      return {{"ZRANGE", k, low, high, "BYLEX", "LIMIT", number(0, 3), number(-1, 9)}};
    case 3:
      return {{"ZRANGE", k, high, low, "BYLEX", "REV"}};
    case 4:
      return {{"ZRANGEBYLEX", k, low, high}};
    case 5:
      return {{"ZREVRANGEBYLEX", k, high, low}};
    case 6:
      return {{"ZLEXCOUNT", k, low, high}};
    case 7:
      return {{"ZREMRANGEBYLEX", k, low, low == "-" ? "[f1" : low}};
    default:
      return {{"ZPOPMIN", k}};
  }
}

Step Commands::streams() {
  const std::string k = key('x'), id = stream_id();
  switch (pick(16)) {
    case 0:
    case 1:
      return {{"XADD", k, "*", "a", text(pick(300)), "b", number(0, 9)}};
    case 2:
      return {{"XADD", k, "MAXLEN", one_of("~", "="), number(5, 40), id, "a", text(pick(300))}};
    case 3:
      return {{"XADD", k, "NOMKSTREAM", fmt::format("{}-*", now_ms_), "c", text(20), "a", "1"}};
    case 4:
      return {{"XADD", k, "MINID", "~", id, "LIMIT", "20", "*", "a", "2"}};
    case 5:
    case 6:
      return {{"XRANGE", k, one_in(2) ? "-" : id, "+", "COUNT", number(1, 8)}};
    case 7:
      return {{"XREVRANGE", k, "+", one_in(2) ? fmt::format("({}", id) : "-", "COUNT", "4"}};
    case 8:
      return {{"XREAD", "COUNT", "3", "STREAMS", k, key('x'), "0", id}};
    case 9:
      return {{"XDEL", k, id, fmt::format("1000-{}", 1 + pick(40))}};
    case 10:
      return {{"XTRIM", k, one_of("MAXLEN", "MINID"), number(3, 1000)}};
    case 11:
      return {{"XINFO", "STREAM", k}};
    case 12:
      return {{"XINFO", "STREAM", k, "FULL", "COUNT", "5"}};
    case 13:
      return {{"XSETID", k, id}};
    default:
      return {{"XLEN", k}};
  }
}

Step Commands::stream_groups() {
  const std::string k = key('x'), group = one_of("g0", "g1", "g2"), consumer = one_of("ann", "bob");
  const std::string id = fmt::format("1000-{}", 1 + pick(6)), idle = number(0, 3000);
  switch (pick(16)) {
    case 0:
      return {{"XGROUP", "CREATE", k, group, one_of("0", "$", "1000-3"), "MKSTREAM"}};
    case 1:
      return {{"XGROUP", one_of("CREATECONSUMER", "DELCONSUMER"), k, group, consumer}};
    case 2:
      return {{"XGROUP", "SETID", k, group, id}};
    case 3:
      return {{"XGROUP", "DESTROY", k, "g2"}};
    case 4:
    case 5:
    case 6:
      return {{"XREADGROUP", "GROUP", group, consumer, "COUNT", number(1, 3), "STREAMS", k,
               one_in(4) ? "0" : ">"}};
    case 7:
      return {{"XREADGROUP", "GROUP", group, consumer, "NOACK", "STREAMS", k, ">"}};
    case 8:
    case 9:
      return {{"XACK", k, group, id, fmt::format("1000-{}", 1 + pick(6))}};
    case 10:
      return {{"XCLAIM", k, group, consumer, idle, id, "IDLE", "20", one_of("FORCE", "JUSTID")}};
    case 11:
      return {{"XAUTOCLAIM", k, group, consumer, idle, "0", "COUNT", "3"}};
    case 12:
      return {{"XPENDING", k, group}};
    case 13:
      return {{"XPENDING", k, group, "IDLE", idle, "-", "+", "5"}};
    case 14:
      return {{"XINFO", "CONSUMERS", k, group}};
    default:
      return {{"XINFO", "GROUPS", k}};
  }
}

Step Commands::geo() {
  const std::string k = key('g'), m = member(), radius = std::to_string(100 + pick(1500));
  switch (pick(10)) {
    case 0:
    case 1:
      return {{"GEOADD", k, place(true), place(false), m, place(true), place(false), member()}};
    case 2:
      return {{"GEOADD", k, one_of("NX", "XX"), "CH", place(true), place(false), m}};
    case 3:
      return {{"GEOPOS", k, m, member(), "none"}};
    case 4:
      return {{"GEODIST", k, m, member(), one_of("m", "km", "mi", "yd")}};
    case 5:
      return {{"GEOHASH", k, m, member()}};
    case 6:
      return {{"GEOSEARCH", k, "FROMLONLAT", place(true), place(false), "BYRADIUS", radius, "km",
               one_of("ASC", "DESC"), "COUNT", "7", "WITHCOORD", "WITHDIST"}};
    case 7:
      return {{"GEOSEARCH", k, "FROMMEMBER", m, "BYBOX", radius, radius, "km", "WITHHASH"}};
    case 8:
      return {{"GEOSEARCHSTORE", key('g'), k, "FROMLONLAT", place(true), place(false), "BYRADIUS",
               radius, "km", "COUNT", "9", "ANY"}};
    default:
      return {{"GEORADIUS_RO", k, place(true), place(false), radius, "km", "WITHDIST", "ASC"}};
  }
}

}  // namespace e2e
