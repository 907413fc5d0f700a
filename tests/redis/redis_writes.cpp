// SPDX-License-Identifier: Apache-2.0
// What writes, deletes, expiry and eviction of cold keys cost the server's main thread: data at
// four times the DRAM, and counts of faults that had to read from the LUN.
//
//   redis_writes MODULE SCENARIO CAP_MIB
//
//   writes        SET over cold strings, MSET, GETDEL, RENAME over them, DEL, UNLINK. What is to be
//                 there is there, byte by byte
//   collections   DEL and UNLINK of them
//   mixed         half GET, half SET
//   expiry        all keys expire at the same time, while a client sends PING at a steady rate
//   eviction      SET of new keys at maxmemory, under each policy: which keys go, too
//
// Threading: one thread. May not: leave files or processes behind.
#include "redis_gate.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

namespace {

using namespace e2e;

constexpr size_t kValueBytes = 1000;
constexpr unsigned kClients = 8, kPipeline = 4;
constexpr double kFaultsMax = 0.05;  // an operation
const std::string kEnd = "$5\r\n<end>\r\n";

std::string value_of(uint64_t key, uint64_t version, size_t bytes = kValueBytes) {
  std::string out(bytes, 0);
  uint64_t x = (key * 0x9E3779B97F4A7C15ull + version * 0xD1B54A32D192ED03ull) | 1;
  for (char& c : out)
    c = static_cast<char>('0' + ((x = x * 6364136223846793005ull + 1442695040888963407ull) >> 58));
  return out;
}

std::string name_of(uint64_t key) { return fmt::format("key:{:08}", key); }

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

struct Load {
  const Server& server;
  std::vector<Wire> wires;
  explicit Load(const Server& on) : server(on) {
    for (unsigned i = 0; i < kClients; ++i) wires.emplace_back(on.port());
  }
  // `total` commands over all connections, a few at a time each. What the replies are, all in one.
  std::string run(uint64_t total, const std::function<Words(uint64_t)>& command) {
    std::string replies;
    for (uint64_t at = 0; at < total;) {
      unsigned used = 0;
      for (auto& wire : wires) {
        std::string batch;
        for (unsigned i = 0; i < kPipeline && at < total; ++i) batch += resp(command(at++));
        if (batch.empty()) break;
        wire.send_all(batch + resp({"PING", "<end>"}));
        ++used;
      }
      for (unsigned i = 0; i < used; ++i) {
        std::string part = wires[i].receive_until(kEnd);
        if (!part.ends_with(kEnd))
          give_up(fmt::format("a reply is missing; the log:\n{}", server.log()));
        replies += part.substr(0, part.size() - kEnd.size());
      }
    }
    return replies;
  }
  // The same, and what it cost.
  void measure(const char* what, uint64_t total, double most,
               const std::function<Words(uint64_t)>& command, const std::string& wrong = "-") {
    const uint64_t faults = server.info("lunar_main_cold_faults"),
                   reads = server.info("lunar_overlapped_reads");
    const uint64_t begun = now_ns();
    const std::string replies = run(total, command);
    const double seconds = static_cast<double>(now_ns() - begun) / 1e9;
    require(replies.find("\n" + wrong) == std::string::npos && !replies.starts_with(wrong),
            "{}: a reply is '{}...'", what, replies.substr(0, 60));
    const double each = static_cast<double>(server.info("lunar_main_cold_faults") - faults) /
                        static_cast<double>(total);
    fmt::print(
        "{:34} {:7} operations, {:.3f} faults and {:.2f} pieces fetched an operation, {:.1f} s\n",
        what, total, each,
        static_cast<double>(server.info("lunar_overlapped_reads") - reads) /
            static_cast<double>(total),
        seconds);
    require(each <= most, "{}: {:.3f} faults of the main thread an operation, at most {} expected",
            what, each, most);
  }
};

std::unique_ptr<Server> start(const std::string& module, const Scratch& scratch, uint64_t cap_mib,
                              Words further = {}) {
  Words words{"--loadmodule", module,
              "dram",         fmt::format("{}mb", cap_mib),
              "size",         fmt::format("{}mb", cap_mib * 12),
              "lun",          scratch.path,
              "gate-hold-ms", "2000"};  // of a busy machine
  words.insert(words.end(), further.begin(), further.end());
  return std::make_unique<Server>(scratch.path, "writes", free_port(), words);
}

uint64_t keys_for(uint64_t cap_mib) { return cap_mib * kMiB * 4 / (kValueBytes + 280); }

void fill(Load& load, uint64_t keys) {
  (void)load.run(keys, [](uint64_t k) { return Words{"SET", name_of(k), value_of(k, 0)}; });
}

// Keys in an order that has nothing to do with the one they were written in.
std::vector<uint64_t> shuffled(uint64_t keys) {
  std::vector<uint64_t> all(keys);
  for (uint64_t k = 0; k < keys; ++k) all[k] = k;
  std::shuffle(all.begin(), all.end(), std::mt19937_64(7));
  return all;
}

// A key table that grows is another matter: its steps read keys.
void wait_for_tables(const Server& server) {
  wait_until("the end of the tables' growth", [&] {
    return server.ask({"DEBUG", "HTSTATS", "0"}).find("rehashing target") == std::string::npos;
  });
}

void check_values(Load& load, const std::vector<uint64_t>& keys,
                  const std::function<std::string(uint64_t)>& expected) {
  for (size_t at = 0; at < keys.size(); at += 97) {
    const std::string reply = load.server.ask({"GET", name_of(keys[at])}),
                      wanted = expected(keys[at]);
    require(
        reply == (wanted.empty() ? "$-1\r\n" : fmt::format("${}\r\n{}\r\n", wanted.size(), wanted)),
        "{} is wrong", name_of(keys[at]));
  }
}

void strings(Load& load, uint64_t count) {
  fill(load, count);
  const std::vector<uint64_t> keys = shuffled(count);
  const uint64_t n = count / 8;
  uint64_t from = 0;
  auto next = [&] { return std::exchange(from, from + n); };
  auto key = [&](uint64_t i) { return name_of(keys[i]); };
  uint64_t at = next();
  const uint64_t first = at;
  load.measure("SET over cold strings", n, kFaultsMax,
               [&](uint64_t i) { return Words{"SET", key(at + i), value_of(keys[at + i], 1)}; });
  check_values(
      load, {keys.begin() + static_cast<long>(first), keys.begin() + static_cast<long>(first + n)},
      [](uint64_t k) { return value_of(k, 1); });
  at = next();
  load.measure("MSET of 4", n / 4, 4 * kFaultsMax, [&](uint64_t i) {
    Words words{"MSET"};
    for (uint64_t j = at + i * 4; j < at + i * 4 + 4; ++j)
      words.insert(words.end(), {key(j), value_of(keys[j], 2)});
    return words;
  });
  at = next();
  load.measure("SETEX", n, kFaultsMax, [&](uint64_t i) {
    return Words{"SETEX", key(at + i), "100000", value_of(keys[at + i], 3)};
  });
  check_values(load,
               {keys.begin() + static_cast<long>(at), keys.begin() + static_cast<long>(at + n)},
               [](uint64_t k) { return value_of(k, 3); });
  at = next();
  load.measure("GETDEL", n, kFaultsMax, [&](uint64_t i) { return Words{"GETDEL", key(at + i)}; });
  at = next();
  load.measure("DEL", n, kFaultsMax, [&](uint64_t i) { return Words{"DEL", key(at + i)}; });
  check_values(load,
               {keys.begin() + static_cast<long>(at), keys.begin() + static_cast<long>(at + n)},
               [](uint64_t) { return std::string(); });
  at = next();
  load.measure("UNLINK", n, kFaultsMax, [&](uint64_t i) { return Words{"UNLINK", key(at + i)}; });
  at = next();
  load.measure("PEXPIRE of the past", n, kFaultsMax,
               [&](uint64_t i) { return Words{"PEXPIRE", key(at + i), "-1"}; });
  at = next();
  const uint64_t over = 2 * n;  // what SETEX wrote
  load.measure("RENAME over cold strings", n / 2, kFaultsMax,
               [&](uint64_t i) { return Words{"RENAME", key(at + i), key(over + i)}; });
  for (uint64_t i = 0; i < n / 2; i += 97)
    require(load.server.ask({"GET", key(over + i)}) ==
                fmt::format("${}\r\n{}\r\n", kValueBytes, value_of(keys[at + i], 0)),
            "{} was renamed wrong", key(at + i));
}

// Collections of every encoding: freeing them reads their parts. Bounds for all of these.
void collections(Load& load, uint64_t cap_mib) {
  struct Kind {
    const char* name;
    const char* command;
    bool pairs, scores;
    size_t element, elements;
    double most;
  };
  const Kind kinds[] = {{"hash table", "HSET", true, false, 50, 40, 0.05},
                        {"listpack", "HSET", true, false, 50, 20, 0.05},
                        {"set", "SADD", false, false, 100, 40, 0.05},
                        {"sorted set", "ZADD", false, true, 100, 50, 0.1},
                        {"list", "RPUSH", false, false, 400, 60, 0.1}};
  for (const Kind& kind : kinds) {
    // Valkey's default frees the old values while new ones come
    (void)load.server.ask({"FLUSHALL", "SYNC"});
    const uint64_t count =
        cap_mib * kMiB * 2 / (kind.element * kind.elements * (kind.pairs ? 2 : 1));
    (void)load.run(count, [&](uint64_t k) {
      Words words{kind.command, name_of(k)};
      for (size_t e = 0; e < kind.elements; ++e) {
        if (kind.scores) words.push_back(std::to_string((e * 7919 + k) % 1000));
        words.push_back(value_of(k, e, kind.element));
        if (kind.pairs) words.push_back(value_of(k, e + 1000, kind.element));
      }
      return words;
    });
    wait_for_tables(load.server);
    const std::vector<uint64_t> keys = shuffled(count);
    load.measure(fmt::format("DEL of a {}", kind.name).c_str(), count / 4, kind.most,
                 [&](uint64_t i) { return Words{"DEL", name_of(keys[i])}; });
    load.measure(fmt::format("UNLINK of a {}", kind.name).c_str(), count / 4, kind.most,
                 [&](uint64_t i) { return Words{"UNLINK", name_of(keys[count / 2 + i])}; });
  }
}

void mixed(Load& load, uint64_t count) {
  fill(load, count);
  std::mt19937_64 random(42);
  std::map<uint64_t, uint64_t> version;
  load.measure("half GET, half SET", count / 2, kFaultsMax, [&](uint64_t i) {
    const uint64_t k = random() % count;
    if (random() % 2 == 0) return Words{"GET", name_of(k)};
    version[k] = i;
    return Words{"SET", name_of(k), value_of(k, i)};
  });
  unsigned n = 0;
  for (const auto& [k, v] : version) {
    if (n++ % 50 != 0) continue;
    // Two connections may have written it: in which order is theirs.
    const std::string reply = load.server.ask({"GET", name_of(k)});
    require(reply.size() == kValueBytes + 9, "{} has {} bytes", name_of(k), reply.size());
  }
}

double part(std::vector<uint64_t> all, double fraction) {
  std::sort(all.begin(), all.end());
  return all.empty()
             ? 0
             : static_cast<double>(
                   all[static_cast<size_t>(static_cast<double>(all.size() - 1) * fraction)]) /
                   1e6;
}

uint64_t size_of(const Server& server) {
  return strtoull(server.ask({"DBSIZE"}).c_str() + 1, nullptr, 10);
}

uint64_t wall_ms() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

uint64_t ping(Wire& wire, uint64_t due_ns) {
  wire.send_all("PING\r\n");
  (void)wire.receive_until("+PONG\r\n");
  return now_ns() - due_ns;
}

// All keys are due at the same time. From then on PING at a steady rate, each measured from when it
// was to be sent, until they are gone; the same to a plain server that is idle, which tells what
// the machine makes of it. A replica has to be told of each key.
void expiry(Load& load, const Scratch& scratch, uint64_t count) {
  const Server& server = load.server;
  const Server idle(scratch.path, "idle", free_port(), {});
  const Server replica(scratch.path, "replica", free_port(),
                       {"--replicaof", "127.0.0.1", std::to_string(server.port())});
  wait_until("the link of the replica", [&] {
    return replica.ask({"INFO", "replication"}).find("master_link_status:up") != std::string::npos;
  });
  fill(load, count);
  const uint64_t due_ms = wall_ms() + 1000 * (3 + count / 20000);
  (void)load.run(
      count, [&](uint64_t k) { return Words{"PEXPIREAT", name_of(k), std::to_string(due_ms)}; });
  wait_for_tables(server);
  require(size_of(server) == count && wall_ms() < due_ms,
          "keys are gone before their time, or it came too early");
  while (wall_ms() < due_ms) usleep(1000);
  const uint64_t faults = server.info("lunar_main_cold_faults"), begun = now_ns();
  std::vector<uint64_t> pings, others, all;
  Wire wire(server.port()), other(idle.port());
  uint64_t left = count;
  while (left != 0 && now_ns() - begun < 300'000'000'000) {
    uint64_t next = now_ns();
    // then the server's tables shrink, and it moves entries, which is another matter
    const bool large = left > count / 6;
    for (unsigned i = 0; i < 50; ++i, next += 1'000'000) {
      while (now_ns() < next) usleep(100);
      all.push_back(ping(wire, next));
      if (large) pings.push_back(all.back());
      const uint64_t then = now_ns();
      others.push_back(ping(other, then));
    }
    left = size_of(server);
  }
  const double each = static_cast<double>(server.info("lunar_main_cold_faults") - faults) /
                      static_cast<double>(count);
  const double p50 = part(pings, 0.5), p99 = part(pings, 0.99), idle_p99 = part(others, 0.99);
  fmt::print(
      "{} keys expired in {:.1f} s, {:.3f} faults each; PING p50 {:.2f} ms, p99 {:.2f}, longest "
      "{:.2f} ({:.2f} as the "
      "tables shrink), "
      "of an idle server p99 {:.2f}, longest {:.2f}; "
      "{} in turns, {} of these cold\n",
      count, static_cast<double>(now_ns() - begun) / 1e9, each, p50, p99, part(pings, 1),
      part(all, 1), idle_p99, part(others, 1), server.info("lunar_gate_expired"),
      server.info("lunar_gate_expired_cold"));
  require(left == 0, "{} keys have not expired", left);
  require(server.info("expired_keys") == count, "expired_keys is {}, {} keys there were",
          server.info("expired_keys"), count);
  wait_until("the replica's last key", [&] { return size_of(replica) == 0; });
  require(each <= kFaultsMax, "{:.3f} faults for a key that expires", each);
  require(p50 <= 20, "p50 of PING is {:.2f} ms", p50);
  if (idle_p99 > 0.2 || part(others, 1) > 2)
    fmt::print("the machine is too busy to measure the p99\n");
  else
    require(p99 <= 2, "p99 of PING is {:.2f} ms", p99);
}

// How many of `count` keys from `first` on are there.
double share_left(Load& load, uint64_t first, uint64_t count) {
  const std::string replies =
      load.run(count, [&](uint64_t i) { return Words{"EXISTS", name_of(first + i)}; });
  return static_cast<double>(std::count(replies.begin(), replies.end(), '1')) /
         static_cast<double>(count);
}

// The gate evicts for a random policy: old keys and new ones alike, and the server's settings are
// as they were.
void check_randomness(Load& load, const std::string& policy, uint64_t count) {
  const double older = share_left(load, 0, count / 2),
               newer = share_left(load, count / 2, count - count / 2);
  fmt::print("{:.3f} of the older keys are left, {:.3f} of the newer\n", older, newer);
  require(
      older > 0.6 && older < 0.95 && newer > 0.6 && newer < 0.95 && std::abs(older - newer) < 0.05,
      "{}: {:.3f} of the older keys are left, {:.3f} of the newer", policy, older, newer);
  require(load.server.ask({"CONFIG", "GET", "maxmemory-policy"}).find(policy) != std::string::npos,
          "another policy than {}", policy);
  require(load.server.ask({"CONFIG", "GET", "maxmemory-samples"}).find("$1\r\n5\r\n") !=
              std::string::npos,
          "other samples: {}", load.server.ask({"CONFIG", "GET", "maxmemory-samples"}));
}

// Every other key of `count` is used: the server's clock of uses counts seconds.
void use_odd_keys(Load& load, uint64_t count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  (void)load.run(count / 2, [](uint64_t i) { return Words{"GET", name_of(2 * i + 1)}; });
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
}

// A policy's order: `worse` of the keys, 0 to 999 of a thousand, are those it takes first.
void check_order(Load& load, const std::string& policy, uint64_t count,
                 const std::function<bool(uint64_t)>& worse) {
  const std::string replies =
      load.run(count, [](uint64_t k) { return Words{"EXISTS", name_of(k)}; });
  uint64_t left[2] = {}, all[2] = {}, k = 0;
  for (const char c : replies)
    if (c == '0' || c == '1') {
      ++all[worse(k)];
      left[worse(k)] += c == '1';
      ++k;
    }
  const double kept = static_cast<double>(left[0]) / static_cast<double>(all[0]);
  const double worse_kept = static_cast<double>(left[1]) / static_cast<double>(all[1]);
  fmt::print("{:.3f} of the keys that {} takes last are left, {:.3f} of the others\n", kept, policy,
             worse_kept);
  require(k == count, "{} answers for {} keys", k, count);
  require(kept > 0.9 && worse_kept < 0.6,
          "{}: {:.3f} of the keys it takes last are left, {:.3f} of the others", policy, kept,
          worse_kept);
}

void evict_under(Load& load, const std::string& policy, uint64_t count) {
  (void)load.server.ask({"CONFIG", "SET", "maxmemory-policy", policy});
  (void)load.server.ask({"CONFIG", "SET", "maxmemory", "0"});
  // Valkey's default frees the old values while new ones come
  (void)load.server.ask({"FLUSHALL", "SYNC"});
  auto set = [&](uint64_t k, uint64_t version) {
    Words words{"SET", name_of(k), value_of(k, version)};
    if (policy[0] == 'v') words.insert(words.end(), {"EX", std::to_string(100000 + k % 1000)});
    return words;
  };
  (void)load.run(count, [&](uint64_t k) { return set(k, 0); });
  if (policy == "allkeys-lru") use_odd_keys(load, count);
  const uint64_t used = load.server.info("used_memory"), evicted = load.server.info("evicted_keys");
  require(load.server.ask({"CONFIG", "SET", "maxmemory", std::to_string(used + 64 * 1024)})
              .starts_with("+OK"),
          "maxmemory cannot be set");
  load.measure(fmt::format("SET of new keys, {}", policy).c_str(), count / 3, kFaultsMax,
               [&](uint64_t i) { return set(count + i, 0); });
  const uint64_t gone = load.server.info("evicted_keys") - evicted;
  fmt::print("{} evicted, {} candidates, {} keys left\n", gone,
             load.server.info("lunar_gate_evictable"), size_of(load.server));
  require(gone > count / 4, "{} keys were evicted", gone);
  wait_until("the end of eviction", [&] {
    return size_of(load.server) + load.server.info("evicted_keys") - evicted == count + count / 3;
  });
  require(load.server.info("used_memory") <= used + 512 * 1024, "used_memory is {}, maxmemory {}",
          load.server.info("used_memory"), used + 64 * 1024);
  (void)load.server.ask({"CONFIG", "SET", "maxmemory", "0"});
  if (policy.ends_with("random")) check_randomness(load, policy, count);
  if (policy == "allkeys-lru")
    check_order(load, policy, count, [](uint64_t k) { return k % 2 == 0; });
  if (policy == "volatile-ttl")
    check_order(load, policy, count, [](uint64_t k) { return k % 1000 < 400; });
}

void eviction(Load& load, uint64_t count) {
  for (const char* policy : {"allkeys-random", "volatile-random", "allkeys-lru", "allkeys-lfu",
                             "volatile-lru", "volatile-ttl"})
    evict_under(load, policy, count);
}

int run(const std::string& module, const std::string& scenario, uint64_t cap_mib) {
  Scratch scratch;
  const uint64_t keys = keys_for(cap_mib);
  const auto server = start(module, scratch, cap_mib);
  Load load(*server);
  if (scenario == "writes")
    strings(load, keys);
  else if (scenario == "collections")
    collections(load, cap_mib);
  else if (scenario == "mixed")
    mixed(load, keys);
  else if (scenario == "expiry")
    expiry(load, scratch, keys);
  else if (scenario == "eviction")
    eviction(load, keys);
  else
    return 2;
  fmt::print("held {}, rounds {}, timeouts {}\n", server->info("lunar_gate_held"),
             server->info("lunar_gate_rounds"), server->info("lunar_gate_timeouts"));
  if (g_failures != 0)
    fmt::print("{}\n",
               server->log().substr(server->log().size() < 6000 ? 0 : server->log().size() - 6000));
  return g_failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return guarded([&] {
    return run(std::filesystem::absolute(argv[1]), argv[2], strtoull(argv[3], nullptr, 10));
  });
}
