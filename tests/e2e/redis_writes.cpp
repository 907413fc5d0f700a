// SPDX-License-Identifier: Apache-2.0
// What writes, deletes, expiry and eviction of cold keys cost the server's main thread: data at four times the DRAM, and counts of faults that
// had to read from the LUN.
//
//   redis_writes MODULE SCENARIO CAP_MIB
//
//   writes        SET over cold strings, MSET, GETDEL, RENAME over them, DEL, UNLINK. What is to be there is there, byte by byte
//   collections   DEL and UNLINK of them
//   mixed         half GET, half SET
//
// Threading: one thread. May not: leave files or processes behind.
#include "redis_gate.h"

#include <filesystem>
#include <functional>
#include <map>
#include <random>

namespace {

using namespace e2e;

constexpr size_t kValueBytes = 1000;
constexpr unsigned kClients = 8, kPipeline = 4;
constexpr double kFaultsMax = 0.05;   // an operation
const std::string kEnd = "$5\r\n<end>\r\n";

std::string value_of(uint64_t key, uint64_t version, size_t bytes = kValueBytes) {
  std::string out(bytes, 0);
  uint64_t x = (key * 0x9E3779B97F4A7C15ull + version * 0xD1B54A32D192ED03ull) | 1;
  for (char& c : out) c = static_cast<char>('0' + ((x = x * 6364136223846793005ull + 1442695040888963407ull) >> 58));
  return out;
}

std::string name_of(uint64_t key) { return fmt::format("key:{:08}", key); }

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
        require(part.ends_with(kEnd), "a reply is missing");
        replies += part.substr(0, part.size() - kEnd.size());
      }
    }
    return replies;
  }
  // The same, and what it cost.
  void measure(const char* what, uint64_t total, double most, const std::function<Words(uint64_t)>& command, const std::string& wrong = "-") {
    const uint64_t faults = server.info("lunar_cold_faults"), reads = server.info("lunar_overlapped_reads");
    const std::string replies = run(total, command);
    require(replies.find("\n" + wrong) == std::string::npos && !replies.starts_with(wrong), "{}: a reply is '{}...'", what, replies.substr(0, 60));
    const double each = static_cast<double>(server.info("lunar_cold_faults") - faults) / static_cast<double>(total);
    fmt::print("{:34} {:7} operations, {:.3f} faults and {:.2f} pieces fetched an operation\n", what, total, each,
               static_cast<double>(server.info("lunar_overlapped_reads") - reads) / static_cast<double>(total));
    require(each <= most, "{}: {:.3f} faults of the main thread an operation, at most {} expected", what, each, most);
  }
};

std::unique_ptr<Server> start(const std::string& module, const Scratch& scratch, uint64_t cap_mib, Words further = {}) {
  Words words{"--loadmodule", module, "dram", fmt::format("{}mb", cap_mib), "size", fmt::format("{}mb", cap_mib * 16), "lun", scratch.path,
              "gate-hold-ms", "2000"};   // of a busy machine
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

void check_values(Load& load, const std::vector<uint64_t>& keys, const std::function<std::string(uint64_t)>& expected) {
  for (size_t at = 0; at < keys.size(); at += 97) {
    const std::string reply = load.server.ask({"GET", name_of(keys[at])}), wanted = expected(keys[at]);
    require(reply == (wanted.empty() ? "$-1\r\n" : fmt::format("${}\r\n{}\r\n", wanted.size(), wanted)), "{} is wrong", name_of(keys[at]));
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
  load.measure("SET over cold strings", n, kFaultsMax, [&](uint64_t i) { return Words{"SET", key(at + i), value_of(keys[at + i], 1)}; });
  check_values(load, {keys.begin() + static_cast<long>(first), keys.begin() + static_cast<long>(first + n)}, [](uint64_t k) { return value_of(k, 1); });
  at = next();
  load.measure("MSET of 4", n / 4, 4 * kFaultsMax, [&](uint64_t i) {
    Words words{"MSET"};
    for (uint64_t j = at + i * 4; j < at + i * 4 + 4; ++j) words.insert(words.end(), {key(j), value_of(keys[j], 2)});
    return words;
  });
  at = next();
  load.measure("SETEX", n, kFaultsMax, [&](uint64_t i) { return Words{"SETEX", key(at + i), "100000", value_of(keys[at + i], 3)}; });
  check_values(load, {keys.begin() + static_cast<long>(at), keys.begin() + static_cast<long>(at + n)}, [](uint64_t k) { return value_of(k, 3); });
  at = next();
  load.measure("GETDEL", n, kFaultsMax, [&](uint64_t i) { return Words{"GETDEL", key(at + i)}; });
  at = next();
  load.measure("DEL", n, kFaultsMax, [&](uint64_t i) { return Words{"DEL", key(at + i)}; });
  check_values(load, {keys.begin() + static_cast<long>(at), keys.begin() + static_cast<long>(at + n)}, [](uint64_t) { return std::string(); });
  at = next();
  load.measure("UNLINK", n, kFaultsMax, [&](uint64_t i) { return Words{"UNLINK", key(at + i)}; });
  at = next();
  load.measure("PEXPIRE of the past", n, kFaultsMax, [&](uint64_t i) { return Words{"PEXPIRE", key(at + i), "-1"}; });
  at = next();
  const uint64_t over = 2 * n;   // what SETEX wrote
  load.measure("RENAME over cold strings", n / 2, kFaultsMax, [&](uint64_t i) { return Words{"RENAME", key(at + i), key(over + i)}; });
  for (uint64_t i = 0; i < n / 2; i += 97)
    require(load.server.ask({"GET", key(over + i)}) == fmt::format("${}\r\n{}\r\n", kValueBytes, value_of(keys[at + i], 0)), "{} was renamed wrong", key(at + i));
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
  const Kind kinds[] = {{"hash table", "HSET", true, false, 50, 40, 0.05}, {"listpack", "HSET", true, false, 50, 20, 0.05}, {"set", "SADD", false, false, 100, 40, 0.05},
                        {"sorted set", "ZADD", false, true, 100, 50, 0.1}, {"list", "RPUSH", false, false, 400, 60, 0.1}};
  for (const Kind& kind : kinds) {
    (void)load.server.ask({"FLUSHALL"});
    const uint64_t count = cap_mib * kMiB * 2 / (kind.element * kind.elements * (kind.pairs ? 2 : 1));
    (void)load.run(count, [&](uint64_t k) {
      Words words{kind.command, name_of(k)};
      for (size_t e = 0; e < kind.elements; ++e) {
        if (kind.scores) words.push_back(std::to_string((e * 7919 + k) % 1000));
        words.push_back(value_of(k, e, kind.element));
        if (kind.pairs) words.push_back(value_of(k, e + 1000, kind.element));
      }
      return words;
    });
    // A key table that grows is another matter: its steps read keys.
    wait_until("the key table's end of growth", [&] { return load.server.ask({"DEBUG", "HTSTATS", "0"}).find("rehashing target") == std::string::npos; });
    const std::vector<uint64_t> keys = shuffled(count);
    load.measure(fmt::format("DEL of a {}", kind.name).c_str(), count / 4, kind.most, [&](uint64_t i) { return Words{"DEL", name_of(keys[i])}; });
    load.measure(fmt::format("UNLINK of a {}", kind.name).c_str(), count / 4, kind.most, [&](uint64_t i) { return Words{"UNLINK", name_of(keys[count / 2 + i])}; });
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

int run(const std::string& module, const std::string& scenario, uint64_t cap_mib) {
  Scratch scratch;
  const uint64_t keys = keys_for(cap_mib);
  const auto server = start(module, scratch, cap_mib);
  Load load(*server);
  if (scenario == "writes") strings(load, keys);
  else if (scenario == "collections") collections(load, cap_mib);
  else if (scenario == "mixed") mixed(load, keys);
  else return 2;
  fmt::print("held {}, rounds {}, timeouts {}\n", server->info("lunar_gate_held"), server->info("lunar_gate_rounds"), server->info("lunar_gate_timeouts"));
  return g_failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return guarded([&] { return run(std::filesystem::absolute(argv[1]), argv[2], strtoull(argv[3], nullptr, 10)); });
}
