// SPDX-License-Identifier: Apache-2.0
// A data set of all types for redis-server: the value of key i follows from i and a version, so
// that two servers can be given the same.
// Threading: one thread a server. May not be used by code that ships.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/e2e/e2e.h"
#include "tools/support/redis_server.h"

namespace e2e {

constexpr uint64_t kKeyBytes = 3000;  // of content, about, at every key
constexpr uint64_t kPipeline = 200;

inline std::string content(uint64_t key, uint64_t part, size_t bytes) {
  std::string text;
  for (uint64_t x = key * 0x9E3779B97F4A7C15ull + part + 1; text.size() < bytes;
       x = x * 6364136223846793005ull + key + 1)
    text += fmt::format("{:016x}", x);
  text.resize(bytes);
  return text;
}

// One command that makes the value of `key`: strings, hashes, lists, sets and sorted sets; every
// 25th of them is too long for redis' compact encodings.
inline Words make_value(uint64_t key, uint64_t version) {
  const std::string name = fmt::format("key:{}", key);
  const uint64_t parts = key / 5 % 25 == 0 ? 300 : 20;
  const size_t bytes = kKeyBytes / (parts == 300 ? 100 : 20);
  if (key % 5 == 0) return {"SET", name, content(key, version, kKeyBytes)};
  static const char* const kVerbs[] = {"", "HSET", "RPUSH", "SADD", "ZADD"};
  Words words{kVerbs[key % 5], name};
  for (uint64_t part = 0; part < parts; ++part) {
    if (key % 5 == 1) words.push_back(fmt::format("field {}", part));
    if (key % 5 == 4) words.push_back(std::to_string(part * version % 97));
    words.push_back(fmt::format("{}:", part) + content(key, part + version, bytes));
  }
  return words;
}

inline void fill(lunar::tools::RedisServer& server, uint64_t first, uint64_t count,
                 uint64_t version) {
  for (uint64_t done = 0; done < count;) {
    const uint64_t batch = std::min(kPipeline, count - done);
    for (uint64_t i = 0; i < batch; ++i) server.send(make_value(first + done + i, version));
    for (uint64_t i = 0; i < batch; ++i) (void)server.receive();
    done += batch;
  }
}

inline std::string digest(lunar::tools::RedisServer& server) {
  const auto reply = server.command({"DEBUG", "DIGEST"});
  return std::string(reply->str, static_cast<size_t>(reply->len));
}

}  // namespace e2e
