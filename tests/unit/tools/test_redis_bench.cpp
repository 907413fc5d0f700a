// SPDX-License-Identifier: Apache-2.0
// Parts of `lunar bench redis`, without a server: requests, the check of replies, workloads, sizes,
// arguments.
#include "tests/catch.h"

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/bench/redis/dataset.h"
#include "tools/bench/redis/redis_options.h"
#include "tools/bench/redis/workloads.h"
#include "tools/support/procfs.h"

using namespace lunar::tools;

namespace {

using Parsed = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

// RESP to a reply, as a server's answer would be parsed. A request is RESP too: an array of words.
Parsed parsed(const std::string& text) {
  redisReader* reader = redisReaderCreate();
  void* reply = nullptr;
  REQUIRE(redisReaderFeed(reader, text.data(), text.size()) == REDIS_OK);
  REQUIRE(redisReaderGetReply(reader, &reply) == REDIS_OK);
  redisReaderFree(reader);
  REQUIRE(reply != nullptr);
  return {static_cast<redisReply*>(reply), freeReplyObject};
}

std::vector<std::string> words_of(const Dataset& data, const Request& request) {
  std::string text;
  data.append(request, &text);
  const Parsed reply = parsed(text);
  REQUIRE(reply->type == REDIS_REPLY_ARRAY);
  std::vector<std::string> words;
  for (size_t i = 0; i < reply->elements; ++i) {
    words.emplace_back(reply->element[i]->str, static_cast<size_t>(reply->element[i]->len));
  }
  return words;
}

std::string bulk(const std::string& text) {
  std::string out;
  append_word(text, &out);
  return out;
}

std::string check(Dataset& data, const Request& request, const std::string& resp) {
  return data.check(request, *parsed(resp));
}

RedisOptions parsed_options(std::vector<std::string> words) {
  words.insert(words.begin(), "redis");
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  Flags flags("", "redis");
  RedisOptions options;
  parse_redis_options(flags, options, static_cast<int>(raw.size()), raw.data());
  return options;
}

}  // namespace

TEST_CASE("a GET is right only with its own key's value, whole") {
  Dataset data(DataKind::kStrings, 1 << 20, 1024, 5);
  REQUIRE(data.keys() == 1024);
  Random random(1);
  const std::vector<std::string> load = words_of(data, data.load(7)),
                                 other = words_of(data, data.load(8));
  REQUIRE(load.size() == 3);
  CHECK(load[0] == "SET");
  CHECK(load[1] == "key:000000000007");
  CHECK(load[2].size() == 1024);
  CHECK(load[2] != other[2]);
  const Request get = data.read(7, random);
  CHECK(words_of(data, get) == std::vector<std::string>{"GET", load[1]});
  CHECK(check(data, get, bulk(load[2])).empty());
  CHECK_FALSE(check(data, get, bulk(other[2])).empty());
  std::string flipped = load[2];
  flipped[1000] = static_cast<char>(flipped[1000] ^ 1);
  CHECK_FALSE(check(data, get, bulk(flipped)).empty());
  CHECK_FALSE(check(data, get, bulk(load[2].substr(0, 1023))).empty());
  CHECK_FALSE(check(data, get, bulk(std::string(1024, '\0'))).empty());
  CHECK(check(data, get, "$-1\r\n").find("nothing") != std::string::npos);
  CHECK(check(data, get, "-OOM command not allowed\r\n").find("OOM") != std::string::npos);
}

TEST_CASE("a read finds no version older than acknowledged and none that was never sent") {
  Dataset data(DataKind::kStrings, 64 << 10, 1024, 5);
  Random random(1);
  const std::string first = words_of(data, data.load(3))[2];
  const Request early = data.read(3, random);
  const Request write = data.write(3);
  CHECK(data.writing(3));
  const std::string second = words_of(data, write)[2];
  CHECK(second != first);
  // In flight: either is right.
  CHECK(check(data, early, bulk(first)).empty());
  CHECK(check(data, early, bulk(second)).empty());
  CHECK(check(data, write, "+OK\r\n").empty());
  CHECK_FALSE(data.writing(3));
  const Request late = data.read(3, random);
  CHECK_FALSE(check(data, late, bulk(first)).empty());  // a lost update
  CHECK(check(data, late, bulk(second)).empty());
  CHECK(check(data, early, bulk(first)).empty());  // sent before the write was acknowledged
  Dataset ahead(DataKind::kStrings, 64 << 10, 1024, 5);
  (void)check(ahead, ahead.write(3), "+OK\r\n");
  CHECK_FALSE(check(data, late, bulk(words_of(ahead, ahead.write(3))[2]))
                  .empty());  // version 2: never sent here
}

TEST_CASE("hash fields and sorted-set members are checked by place, score and version") {
  Random random(3);
  Dataset hashes(DataKind::kHashes, 1 << 20, 1024, 5);
  std::vector<std::string> load = words_of(hashes, hashes.load(2));
  REQUIRE(load.size() == 2 + 2 * Dataset::kHashFields);
  CHECK(check(hashes, hashes.load(2), ":16\r\n").empty());
  CHECK_FALSE(check(hashes, hashes.load(2), ":15\r\n").empty());
  for (int i = 0; i < 50; ++i) {
    const Request get = hashes.read(2, random);
    const std::vector<std::string> words = words_of(hashes, get);
    CHECK(words[2] == load[2 + 2 * get.part]);
    CHECK(check(hashes, get, bulk(load[3 + 2 * get.part])).empty());
    CHECK_FALSE(
        check(hashes, get, bulk(load[3 + 2 * ((get.part + 1) % Dataset::kHashFields)])).empty());
  }
  Dataset sets(DataKind::kSortedSets, 1 << 20, 1024, 5);
  load = words_of(sets, sets.load(1));
  REQUIRE(load.size() == 2 + 2 * Dataset::kSetMembers);
  bool ranged = false, scored = false;
  for (int i = 0; i < 200; ++i) {
    const Request read = sets.read(1, random);
    if (read.verb == Verb::kRange) {
      ranged = true;
      std::string right, shifted;
      append_array(Dataset::kRangeMembers, &right);
      append_array(Dataset::kRangeMembers, &shifted);
      for (unsigned m = 0; m < Dataset::kRangeMembers; ++m) {
        right += bulk(load[3 + 2 * (read.part + m)]);
        shifted += bulk(load[3 + 2 * ((read.part + m + 1) % Dataset::kSetMembers)]);
      }
      CHECK(check(sets, read, right).empty());
      CHECK_FALSE(check(sets, read, shifted).empty());
      CHECK_FALSE(check(sets, read, "*0\r\n").empty());
    } else {
      scored = true;
      CHECK(check(sets, read, bulk(load[2 + 2 * read.part])).empty());
      CHECK_FALSE(check(sets, read, bulk("9999")).empty());
    }
  }
  CHECK(ranged);
  CHECK(scored);
  const Request add = sets.write(1);
  CHECK(words_of(sets, add)[2] == "-1");
  CHECK(words_of(sets, add)[3] == load[3]);  // the same member
  CHECK(check(sets, add, ":0\r\n").empty());
  CHECK_FALSE(check(sets, Request{Verb::kRead, 0, 1, 1}, bulk("0")).empty());
  CHECK(check(sets, Request{Verb::kRead, 0, 1, 1}, bulk("-1")).empty());
}

TEST_CASE(
    "values have exactly the size asked for, and compressible ones repeat their first third") {
  Random random(1);
  for (const size_t bytes : {16u, 100u, 1000u, 1024u}) {
    INFO(bytes);
    for (const bool compressible : {false, true}) {
      Dataset data(DataKind::kStrings, 64 << 10, bytes, 5, compressible);
      CHECK(data.keys() == (64 << 10) / bytes);
      const std::string value = words_of(data, data.load(3))[2];
      REQUIRE(value.size() == bytes);
      CHECK(value != words_of(data, data.load(4))[2]);
      CHECK(check(data, data.read(3, random), bulk(value)).empty());
      const size_t third = std::max<size_t>(8, bytes / 3 / 8 * 8);
      CHECK((value.compare(0, bytes - third, value, third, bytes - third) == 0) == compressible);
      std::string flipped = value;
      flipped.back() = static_cast<char>(flipped.back() ^ 1);
      CHECK_FALSE(check(data, data.read(3, random), bulk(flipped)).empty());
    }
  }
}

TEST_CASE("a whole hash is right with all its fields, each once and in any order") {
  Dataset data(DataKind::kBigHashes, 4 << 20, 1024, 5);
  const std::vector<std::string> load = words_of(data, data.load(2));
  const unsigned fields = Dataset::kBigHashFields;
  REQUIRE(load.size() == 2 + size_t{2} * fields);
  CHECK(load[3].size() == Dataset::kBigFieldBytes);
  CHECK(words_of(data, data.read_whole(2)) == std::vector<std::string>{"HGETALL", load[1]});
  const auto reply = [&](unsigned first, unsigned count, unsigned swapped) {
    std::string out;
    append_array(size_t{2} * count, &out);
    for (unsigned i = 0; i < count; ++i) {
      const unsigned at = (first + i) % fields;
      out += bulk(load[2 + 2 * at]) + bulk(load[3 + 2 * (at == swapped ? (at + 1) % fields : at)]);
    }
    return out;
  };
  const Request whole = data.read_whole(2);
  CHECK(check(data, whole, reply(0, fields, fields)).empty());
  CHECK(check(data, whole, reply(1234, fields, fields)).empty());
  CHECK_FALSE(check(data, whole, reply(0, fields - 1, fields)).empty());
  CHECK_FALSE(check(data, whole, reply(0, fields, 2999)).empty());
  std::string twice = reply(0, fields, fields);
  twice.replace(twice.rfind("f2999"), 5, "f2998");
  CHECK_FALSE(check(data, whole, twice).empty());
}

TEST_CASE("a key that expires is written with its end") {
  Dataset data(DataKind::kStrings, 64 << 10, 1024, 5);
  const std::vector<std::string> words = words_of(data, data.load_due(7, 1234567890123));
  CHECK(words == std::vector<std::string>{"SET", "key:000000000007",
                                          words_of(data, data.load(7))[2], "PXAT",
                                          "1234567890123"});
  CHECK(check(data, data.load_due(7, 1), "+OK\r\n").empty());
}

TEST_CASE("every workload has a name of its own and its line in the help") {
  std::set<std::string> names;
  for (const RedisBase& one : redis_bases()) {
    INFO(one.name);
    CHECK(names.insert(one.name).second);
    CHECK(known_redis_workload(one.name).base == &one);
    CHECK(workloads_help().find(one.help) != std::string::npos);
    CHECK((one.hot_share != 0) ==
          (one.keys == KeyChoice::kHot || one.keys == KeyChoice::kHotAndCold));
  }
}

TEST_CASE("workload names take -pipe and -fits") {
  const RedisWorkload plain = known_redis_workload("get"),
                      both = known_redis_workload("zset-pipe-fits");
  CHECK_FALSE(plain.fits);
  CHECK_FALSE(plain.pipelined);
  CHECK(std::string(both.base->name) == "zset");
  CHECK(both.base->stage->kind == DataKind::kSortedSets);
  CHECK(both.fits);
  CHECK(both.pipelined);
  for (const char* name : {"", "gets", "-fits", "get-fits-pipe", "get-pipe-pipe", "get-"}) {
    INFO(name);
    CHECK_FALSE(parse_redis_workload(name).has_value());
    CHECK_THROWS_AS(known_redis_workload(name), std::logic_error);
  }
}

TEST_CASE("arguments of the bench are checked") {
  RedisOptions options = parsed_options({"--redis-server", "/bin/true", "--dram", "32m"});
  CHECK(options.data_bytes == 128u << 20);
  CHECK(options.value_bytes == 1024);
  CHECK(options.connections == 50);
  options = parsed_options(
      {"--redis-server", "/bin/true", "--quick", "--fits", "--workloads", "get,get-fits,zipf"});
  CHECK(options.workloads == std::vector<std::string>{"get-fits", "zipf-fits"});
  CHECK(options.rounds == 1);
  const std::vector<std::vector<std::string>> bad{
      {"--dram", "lots"},
      {"--dram", "8m"},
      {"--dram", "64m", "--data", "32m"},
      {"--shards", "0"},
      {"--dram", "32m", "--shards", "4"},
      {"--connections", "4", "--dram", "64m", "--shards", "4"},
      {"--swap", "tape"},
      {"--value-size", "8"},
      {"--value-size", "1m"},
      {"--connections", "1"},
      {"--pipeline", "0"},
      {"--workloads", "get,put"},
      {"--systems", "swap,flash"},
      {"--rounds", "0"},
      {"--seconds", "0"},
      {"--options", "fault"},
      {"--module", "/none.so"},
      {"--redis-server", "/none"},
      {"--frobnicate"}};
  for (std::vector<std::string> words : bad) {
    INFO(words[0] << " " << (words.size() > 1 ? words[1] : ""));
    if (words[0] != "--redis-server") words.insert(words.end(), {"--redis-server", "/bin/true"});
    CHECK_THROWS_AS(parsed_options(words), FlagsError);
  }
}

TEST_CASE("data that fits does fit, whatever the value size") {
  RedisOptions options;
  options.dram_bytes = 64 << 20;
  options.data_bytes = 256 << 20;
  for (const size_t value_bytes : {16u, 64u, 100u, 1024u, 65536u}) {
    options.value_bytes = value_bytes;
    const uint64_t fits = stage_data_bytes(options, DataKind::kStrings, true);
    CHECK(redis_footprint(fits, value_bytes) <= options.dram_bytes / 4 * 3 + 4096);
    CHECK(redis_footprint(fits, value_bytes) >= options.dram_bytes / 2);
    CHECK(stage_data_bytes(options, DataKind::kStrings, false) == options.data_bytes);
  }
}

TEST_CASE("options of Lunar's backends come as pairs") {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  CHECK(lunar_options("follow=no,stats_file=/x=y") ==
        Pairs{{"follow", "no"}, {"stats-file", "/x=y"}});
  CHECK(lunar_options("").empty());
}

TEST_CASE("CPU of a process is read behind its name") {
  const std::string stat =
      "42 (a) b (c) S 1 42 42 0 -1 4194304 9 8 7 6 100 50 30 20 20 0 5 0 1 2 3";
  CHECK(parse_process_cpu_seconds(stat, 100) == 2.0);
  CHECK_FALSE(parse_process_cpu_seconds("42 (name", 100).has_value());
  CHECK_FALSE(parse_process_cpu_seconds("42 (name) S 1 2", 100).has_value());
}
