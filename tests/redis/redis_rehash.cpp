// SPDX-License-Identifier: Apache-2.0
// One added key makes the server double a cold hash table: faults of the server until all entries
// have moved, and what a client that sends PING sees meanwhile. Counts decide, times are printed.
//
//   redis_rehash MODULE DRAM_MIB
//
// 2^17 keys fill a table of that size (Valkey: 7 * 2^14 but one, 7 a bucket: its cron doubles a
// full one); the next two make the server move it to one of twice the size, a bucket a command and
// as many as it can in a millisecond a cron tick: each entry and each key is read. MEMORY STATS
// tells when it is done. FLUSHDB, SWAPDB and a save in the midst of it must leave the keys as they
// are; the server's setting activerehashing must read as a client has set it, all the time.
//
// Threading: one thread. May not: leave files or processes behind.
#include "redis_gate.h"

#include <sstream>

namespace {

using namespace e2e;

constexpr unsigned kValueBytes = 200;
// 900 (Valkey) to 3,200 without our help: each page of entries and keys
constexpr uint64_t kFaultsMax = 400;
constexpr unsigned kCoolers = 24;  // of 1 MiB
constexpr double kSecondsMax = 60;
const std::string kEnd = "$5\r\n<end>\r\n";

struct Scene {
  Server& server;
  Wire wire;
  bool valkey = server.ask({"INFO", "server"}).find("valkey_version:") != std::string::npos;
  unsigned keys = valkey ? (7 << 14) - 1 : 1 << 17;

  std::string ask(const Words& words) {
    wire.send_all(resp(words) + resp({"ECHO", "<end>"}));
    return wire.receive_until(kEnd);
  }
  // Redis 7.0: entries and objects of 40 bytes, a table of 2^17 slots and one of twice the size;
  // then only the latter.
  bool moves(unsigned index) {
    const std::string text = ask({"MEMORY", "STATS"});
    auto number = [&](const std::string& name, size_t from) -> uint64_t {
      const size_t at = text.find(name + "\r\n:", from);
      return at == std::string::npos ? 0
                                     : strtoull(text.c_str() + at + name.size() + 3, nullptr, 10);
    };
    constexpr const char* kMoving = "overhead.db.hashtable.rehashing";  // of all databases
    if (text.find(kMoving) != std::string::npos) return number(kMoving, 0) >= 1u << 20;
    const size_t at = text.find(fmt::format("db.{}\r\n", index));
    return at != std::string::npos &&
           number("overhead.hashtable.main", at) >= keys * (40 + 3 * 8ull - 2);
  }
};

std::string key_name(unsigned k) { return fmt::format("key:{}", k); }

std::string value_of(unsigned k) {
  std::string value = fmt::format("{}.", k);
  value.resize(kValueBytes, static_cast<char>('a' + k % 26));
  return value;
}

void fill(Scene& scene, unsigned keys) {
  for (unsigned k = 0; k < keys; k += 512) {
    std::string batch;
    for (unsigned i = k; i < k + 512 && i < keys; ++i)
      batch += resp({"SET", key_name(i), value_of(i)});
    scene.wire.send_all(batch + resp({"ECHO", "<end>"}));
    (void)scene.wire.receive_until(kEnd);
  }
}

// Everything of the keys goes to the LUN: large values of another database take its place.
void cool(Scene& scene, unsigned database) {
  (void)scene.ask({"SELECT", "3"});
  for (unsigned i = 0; i < kCoolers; ++i)
    (void)(scene.ask({"EXISTS", key_name(i)}).starts_with(":1")
               ? std::string()
               : scene.ask({"SETRANGE", key_name(i), "1048575", "x"}));
  for (unsigned turn = 0; turn < 6; ++turn)
    for (unsigned i = 0; i < kCoolers; ++i) (void)scene.ask({"BITCOUNT", key_name(i)});
  (void)scene.ask({"SELECT", std::to_string(database)});
}

// PINGs until the entries have moved.
void wait_for_rehash(Scene& scene, const char* when, unsigned database,
                     const std::string& cron_moves) {
  require(scene.moves(database), "{}: no rehash runs", when);
  const uint64_t before = scene.server.info("lunar_main_cold_faults"),
                 read = scene.server.info("lunar_lun_read_bytes");
  const double start = now_s();
  std::vector<double> waits;
  while (now_s() - start < kSecondsMax && scene.moves(database)) {
    const std::string setting = scene.ask({"CONFIG", "GET", "activerehashing"});
    require(setting.find("\r\n" + cron_moves + "\r\n") != std::string::npos,
            "{}: activerehashing is {}", when, setting);
    for (unsigned i = 0; i < 40; ++i) {
      const double sent = now_s();
      (void)scene.ask({"PING"});
      waits.push_back((now_s() - sent) * 1e3);
      usleep(2000);
    }
  }
  const double took = now_s() - start;
  const uint64_t faults = scene.server.info("lunar_main_cold_faults") - before;
  std::sort(waits.begin(), waits.end());
  fmt::print(
      "{}: {} faults, {:.1f} MiB read, {:.1f} s; PING p50 {:.2f} p99 {:.2f} max {:.2f} ms, {} over "
      "5 ms\n",
      when, faults, mib(scene.server.info("lunar_lun_read_bytes") - read), took,
      waits[waits.size() / 2], waits[waits.size() * 99 / 100], waits.back(),
      std::count_if(waits.begin(), waits.end(), [](double ms) { return ms > 5; }));
  require(took < kSecondsMax, "{}: the rehash does not end", when);
  require(faults <= kFaultsMax, "{}: {} faults, at most {}", when, faults, kFaultsMax);
}

void check_keys(Scene& scene, const char* when) {
  unsigned right = 0;
  for (unsigned k = 0; k < scene.keys; k += 128) {
    std::string batch, wanted;
    for (unsigned i = k; i < k + 128; i += 16) {
      batch += resp({"GET", key_name(i)});
      wanted += fmt::format("${}\r\n{}\r\n", kValueBytes, value_of(i));
    }
    scene.wire.send_all(batch + resp({"ECHO", "<end>"}));
    right += scene.wire.receive_until(kEnd) == wanted + kEnd ? 8 : 0;
  }
  const unsigned asked = (scene.keys + 15) / 16;
  require(right == asked, "{}: {} keys of {} are right", when, right, asked);
  const std::string size = scene.ask({"DBSIZE"});
  require(size.starts_with(fmt::format(":{}\r\n", scene.keys + 2)), "{}: DBSIZE {}", when, size);
}

// The child that saves has some seconds, then it is ended as the server itself would: on a busy
// machine it takes a minute.
void end_save(const Server& server) {
  for (unsigned i = 0; i < 600 && server.info("rdb_bgsave_in_progress") != 0; ++i) {
    usleep(100000);
    if (i != 40) continue;
    std::istringstream children(text_of(fmt::format("/proc/{0}/task/{0}/children", server.pid())));
    for (pid_t child; children >> child;) kill(child, SIGUSR1);
  }
  require(server.info("rdb_bgsave_in_progress") == 0, "a child that saves does not end");
}

int run(const std::string& module, uint64_t dram_mib) {
  const Scratch scratch;
  Server server(scratch.path, "tiered", free_port(),
                {"--loadmodule", module, "dram", fmt::format("{}mb", dram_mib), "lun", scratch.path,
                 "size", fmt::format("{}mb", 24 * dram_mib)});
  Scene scene{server, Wire(server.port())};
  fill(scene, scene.keys);
  require(server.info("lunar_evicted_pages") * 4096 > dram_mib * kMiB,
          "the keys fit into DRAM: nothing is tested");
  cool(scene, 0);
  (void)scene.ask({"MSET", "one more", "x", "and one", "x"});
  wait_for_rehash(scene, "doubled", 0, "yes");
  check_keys(scene, "doubled");

  // Emptied, in the midst of it too, and filled again; then on the way another database's number,
  // and a child that saves (the server does not rehash while it lives).
  (void)scene.ask({"FLUSHDB"});
  fill(scene, scene.keys / 4 + 512);  // a smaller table is being doubled
  for (unsigned i = 0; i < 6; ++i)
    (void)scene.ask({"FLUSHALL", "ASYNC"});  // each makes new tables of all databases
  fill(scene, scene.keys);
  cool(scene, 0);
  (void)scene.ask({"MSET", "one more", "x", "and one", "x"});
  usleep(50000);
  (void)scene.ask({"CONFIG", "SET", "activerehashing", "no"});
  (void)scene.ask({"SWAPDB", "0", "1"});
  (void)scene.ask({"BGSAVE"});
  end_save(server);
  (void)scene.ask({"SELECT", "1"});
  if (scene.moves(1)) wait_for_rehash(scene, "swapped", 1, "no");
  check_keys(scene, "swapped");
  return verdict(server.log());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return guarded(
      [&] { return run(std::filesystem::absolute(argv[1]), strtoull(argv[2], nullptr, 10)); });
}
