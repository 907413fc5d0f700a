// SPDX-License-Identifier: Apache-2.0
// Commands that go through whole cold values, of a megabyte or so: faults of the server a command,
// from INFO lunar, and what a client that asks for a hot key sees meanwhile. Counts decide, times
// are printed.
//
//   redis_collections MODULE DRAM_MIB KEYS
//
// KEYS values of each kind, several times the DRAM together, their elements written in turns, so
// that a value's elements lie among others'; and as many that their tables are being moved to a
// larger size. Each command is asked once for each key of its kind. Replies are compared with what
// was written: their length, and a sum over their bytes that does not depend on the order of
// elements.
//
// Threading: one thread. May not: leave files or processes behind.
#include <map>

#include "redis_gate.h"

namespace {

using namespace e2e;

constexpr unsigned kRounds = 3;  // of a case, at most
constexpr unsigned kFields = 3650, kElements = 400, kElementBytes = 500, kFieldBytes = 100,
                   kTurn = 100;
const std::string kEnd = "$5\r\n<end>\r\n";

std::string value_of(unsigned key, unsigned n, size_t bytes) {
  std::string out = fmt::format("{}.{}.", key, n);
  uint64_t x = (key * 7919ull + n) * 2862933555777941757ull + 3037000493ull;
  while (out.size() < bytes)
    out.push_back(static_cast<char>(
        'a' + ((x = x * 6364136223846793005ull + 1442695040888963407ull) >> 59) % 26));
  return out;
}

struct Kind {
  const char* name;
  unsigned elements;
  Words (*write)(const std::string& key, unsigned k, unsigned n);
};
const Kind kKinds[] = {
    {"hash", kFields,
     [](const std::string& key, unsigned k, unsigned n) -> Words {
       return {"HSET", key, fmt::format("field:{}", n), value_of(k, n, kFieldBytes)};
     }},
    {"set", kFields,
     [](const std::string& key, unsigned k, unsigned n) -> Words {
       return {"SADD", key, value_of(k, n, kFieldBytes)};
     }},
    {"zset", kFields,
     [](const std::string& key, unsigned k, unsigned n) -> Words {
       return {"ZADD", key, std::to_string(n * 7919 % 10007), value_of(k, n, kFieldBytes)};
     }},
    {"list", kFields,
     [](const std::string& key, unsigned k, unsigned n) -> Words {
       return {"RPUSH", key, value_of(k, n, 3 * kFieldBytes)};
     }},
    {"stream", kElements,
     [](const std::string& key, unsigned k, unsigned n) -> Words {
       return {"XADD", key, fmt::format("{}-1", n + 1), "f", value_of(k, n, 2 * kElementBytes)};
     }},
    {"string", 1,
     [](const std::string& key, unsigned k, unsigned) -> Words {
       return {"SET", key, value_of(k, 0, 1 << 20)};
     }},
    {"other", 1,
     [](const std::string& key, unsigned k, unsigned) -> Words {
       return {"SET", key, value_of(k, 0, 1 << 20)};
     }},
};

// One command on each key of a kind. `most`: faults a command that are allowed. What is left is
// memory for replies, which had been evicted since it was free; before whole values were fetched,
// 70 to 230 for whole collections.
struct Case {
  const char *name, *kind;
  Words (*ask)(const std::string& key);
  double most;
};
unsigned number_of(const std::string& key) {
  return static_cast<unsigned>(strtoul(key.c_str() + key.find(':') + 1, nullptr, 10));
}
std::string member_of(const std::string& key, unsigned n) {
  return value_of(number_of(key), n, kFieldBytes);
}

const Case kCases[] = {
    {"HGETALL", "hash", [](const std::string& key) -> Words { return {"HGETALL", key}; }, 25},
    {"HVALS", "hash", [](const std::string& key) -> Words { return {"HVALS", key}; }, 25},
    {"SMEMBERS", "set", [](const std::string& key) -> Words { return {"SMEMBERS", key}; }, 25},
    {"ZRANGE", "zset",
     [](const std::string& key) -> Words { return {"ZRANGE", key, "0", "-1", "WITHSCORES"}; }, 25},
    {"LRANGE", "list", [](const std::string& key) -> Words { return {"LRANGE", key, "0", "-1"}; },
     40},
    {"LRANGE middle", "list",
     [](const std::string& key) -> Words { return {"LRANGE", key, "1400", "1500"}; }, 4},
    {"LINDEX", "list", [](const std::string& key) -> Words { return {"LINDEX", key, "-1200"}; }, 3},
    {"XRANGE", "stream", [](const std::string& key) -> Words { return {"XRANGE", key, "-", "+"}; },
     25},
    {"XREAD", "stream",
     [](const std::string& key) -> Words { return {"XREAD", "STREAMS", key, "0"}; }, 25},
    {"GET", "string", [](const std::string& key) -> Words { return {"GET", key}; }, 12},
    {"GETRANGE", "string",
     [](const std::string& key) -> Words { return {"GETRANGE", key, "700000", "710000"}; }, 3},
    {"DUMP", "hash", [](const std::string& key) -> Words { return {"DUMP", key}; }, 40},
    {"HMGET", "hash",
     [](const std::string& key) -> Words {
       return {"HMGET", key, "field:7", "field:1407", "none", "field:2999"};
     },
     2},
    {"SMISMEMBER", "set",
     [](const std::string& key) -> Words {
       return {"SMISMEMBER",         key,    member_of(key, 7),
               member_of(key, 1407), "none", member_of(key, 2999)};
     },
     2},
    {"ZMSCORE", "zset",
     [](const std::string& key) -> Words {
       return {"ZMSCORE",           key, member_of(key, 7), member_of(key, 1407), "none",
               member_of(key, 2999)};
     },
     2},
    {"SORT", "list", [](const std::string& key) -> Words { return {"SORT", key, "ALPHA", "DESC"}; },
     40},
    // to itself, so that the values stay as they are
    {"SMOVE", "set",
     [](const std::string& key) -> Words { return {"SMOVE", key, key, member_of(key, 1407)}; }, 3},
};

struct Seen {
  uint64_t bytes = 0, sum = 0;
  bool operator==(const Seen&) const = default;
};

Seen seen(const std::string& reply) {
  Seen out{reply.size(), 0};
  for (const char c : reply)
    out.sum += static_cast<uint64_t>(static_cast<unsigned char>(c)) * static_cast<unsigned char>(c);
  return out;
}

struct Scene {
  Server& server;
  Wire wire, hot;
  unsigned keys;
  std::vector<double> waits;  // of the hot client, milliseconds

  std::string ask(const Words& words) {
    wire.send_all(resp(words) + resp({"ECHO", "<end>"}));
    return wire.receive_until(kEnd);
  }
  // The hot client asks all the time until the reply is there.
  std::string ask_beside(const Words& words) {
    wire.send_all(resp(words) + resp({"ECHO", "<end>"}));
    for (pollfd p{wire.fd(), POLLIN, 0}; poll(&p, 1, 0) == 0;) ask_hot();
    std::string reply = wire.receive_until(kEnd);
    for (unsigned i = 0; i < 5; ++i) ask_hot();
    return reply;
  }
  void ask_hot() {
    const double start = now_s();
    hot.send_all(resp({"GET", "hot"}));
    if (const std::string reply = hot.receive_until("\r\nwarm\r\n"); reply != "$4\r\nwarm\r\n")
      give_up("the hot key: " + reply);
    waits.push_back((now_s() - start) * 1e3);
  }
};

std::string key_name(const char* kind, unsigned k) { return fmt::format("{}:{}", kind, k); }

void fill(Scene& scene) {
  for (unsigned n = 0; n < kFields; n += kTurn) {
    std::string batch;
    for (const Kind& kind : kKinds)
      for (unsigned k = 0; k < scene.keys; ++k)
        for (unsigned i = n; i < n + kTurn && i < kind.elements; ++i)
          batch += resp(kind.write(key_name(kind.name, k), k, i));
    scene.wire.send_all(batch + resp({"ECHO", "<end>"}));
    if (const std::string replies = scene.wire.receive_until(kEnd);
        replies.find("\r\n-") != std::string::npos)
      give_up("filling: " + replies.substr(0, 200));
  }
  (void)scene.ask({"SET", "hot", "warm"});
}

uint64_t faults(Scene& scene) { return scene.server.info("lunar_main_cold_faults"); }

// What the cases before have brought in goes; by commands whose replies are short, as the memory of
// long ones is used again.
void sweep(Scene& scene) {
  for (const char* command : {"BITCOUNT", "LPOS"})
    for (unsigned k = 0; k < scene.keys; ++k) {
      Words words = {command, key_name(*command == 'B' ? "string" : "list", k)};
      if (*command == 'L') words.push_back("none");
      (void)scene.ask(words);
    }
  for (unsigned k = 0; k < scene.keys; ++k) (void)scene.ask({"BITCOUNT", key_name("other", k)});
}

// Faults a command.
double measured(Scene& scene, const Case& one, bool first) {
  static std::map<std::string, Seen> replies;
  scene.waits.clear();
  sweep(scene);
  const uint64_t before = faults(scene), bytes_before = scene.server.info("lunar_lun_read_bytes"),
                 held = scene.server.info("lunar_gate_held"),
                 rounds = scene.server.info("lunar_gate_rounds"),
                 late = scene.server.info("lunar_gate_timeouts");
  const double start = now_s();
  for (unsigned k = 0; k < scene.keys; ++k) {
    const std::string key = key_name(one.kind, k);
    std::string reply = scene.ask_beside(one.ask(key));
    if (one.name == std::string("DUMP") &&
        reply.size() > kEnd.size() + 10)  // its checksum knows the order of elements
      reply.erase(reply.size() - kEnd.size() - 10, 8);
    const Seen now = seen(reply);
    const auto [at, is_new] = replies.emplace(std::string(one.name) + key, now);
    require(is_new == first && at->second == now,
            "{} {}: the reply has {} bytes, at first it had {}", one.name, key, now.bytes,
            at->second.bytes);
  }
  const double took = (now_s() - start) * 1e3 / scene.keys,
               each = static_cast<double>(faults(scene) - before) / scene.keys;
  std::sort(scene.waits.begin(), scene.waits.end());
  fmt::print(
      "{:14} {:7.1f} faults a command (at most {}), {:6.0f} KiB read, {:5.1f} holds, {:5.1f} "
      "rounds, {} late; {:6.2f} "
      "ms; hot: {} reads, p50 {:.2f} p99 {:.2f} max {:.2f} ms\n",
      one.name, each, one.most,
      static_cast<double>(scene.server.info("lunar_lun_read_bytes") - bytes_before) / 1024 /
          scene.keys,
      static_cast<double>(scene.server.info("lunar_gate_held") - held) / scene.keys,
      static_cast<double>(scene.server.info("lunar_gate_rounds") - rounds) / scene.keys,
      scene.server.info("lunar_gate_timeouts") - late, took, scene.waits.size(),
      scene.waits[scene.waits.size() / 2], scene.waits[scene.waits.size() * 99 / 100],
      scene.waits.back());
  return each;
}

// A value that is not fetched faults in every round; what the server touches meanwhile for its own
// sake (timers, free memory of the allocator that was evicted), in some. So one round within the
// limit decides.
void check(Scene& scene, const Case& one) {
  double least = measured(scene, one, false);
  for (unsigned round = 1; round < kRounds && least > one.most; ++round)
    least = std::min(least, measured(scene, one, false));
  require(least <= one.most, "{}: at least {:.1f} faults a command in {} rounds", one.name, least,
          kRounds);
}

int run(const std::string& module, uint64_t dram_mib, unsigned keys) {
  const Scratch scratch;
  Server server(scratch.path, "tiered", free_port(),
                {"--loadmodule", module, "dram", fmt::format("{}mb", dram_mib), "lun", scratch.path,
                 "size", fmt::format("{}mb", 24 * dram_mib), "gate-hold-ms", "5000"});
  Scene scene{server, Wire(server.port()), Wire(server.port()), keys, {}};
  fill(scene);
  require(server.info("lunar_evicted_pages") * 4096 > dram_mib * kMiB,
          "the values fit into DRAM: nothing is tested");
  for (const Case& one : kCases) (void)measured(scene, one, true);
  for (const Case& one : kCases) check(scene, one);
  return verdict(server.log());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return guarded([&] {
    return run(std::filesystem::absolute(argv[1]), strtoull(argv[2], nullptr, 10),
               static_cast<unsigned>(strtoul(argv[3], nullptr, 10)));
  });
}
