// SPDX-License-Identifier: Apache-2.0
// The Redis module in the distribution's redis-server, data at four times its DRAM and of all types: what it holds, saves, replays and
// sends to replicas is what a plain server has.
//
//   redis_module MODULE SCENARIO CAP_MIB VALUES_MIB
//
//   save      fill tiered and plain: digests equal, strings read back; BGSAVE under writes: the dump loads in a plain server as
//             the data of the fork
//   reload    io-threads that read; SAVE, DEBUG RELOAD, restart from the dump
//   append    append-only file with two rewrites under writes; kill -9; restart from it
//   replica   tiered replicas of a tiered server, diskless and from a file, then live writes
//
// A server that did not evict twice its budget, or whose resident set passed the cap + 64 MiB, fails the test.
// Threading: one thread. May not: leave files or processes behind.
#include <signal.h>
#include <unistd.h>

#include <stdexcept>

#include "e2e.h"
#include "redis_demo/server.h"
#include "redis_values.h"

namespace {

using namespace e2e;
using lunar::tools::RedisServer;
using lunar::tools::ServerSetup;

constexpr int kPatienceSeconds = 900;   // DEBUG DIGEST of 1 GiB
constexpr double kWaitSecondsMax = 120;

struct Run {
  std::string module;
  uint64_t cap = 0, keys = 0;
  const Scratch* scratch = nullptr;

  ServerSetup plain(const std::string& name, const std::string& dump, const std::string& further = "") const {
    ServerSetup result;
    result.redis_server = redis_server();
    result.directory = scratch->file(name);   // of its own: append-only files have one name
    std::filesystem::create_directories(result.directory);
    result.name = name;
    result.dump = dump;
    result.saves = false;
    // What the server is told beside what the demo tells it, by a shell that execs it.
    if (!further.empty()) result.wrapper = {"/bin/sh", "-c", "exec \"$@\" " + further, "sh"};
    return result;
  }
  // The LUN has room for the data set and what a child of it is promised at fork.
  ServerSetup tiered(const std::string& name, const std::string& dump, const std::string& further = "") const {
    return plain(name, dump,
                 fmt::format("--loadmodule {} dram {} lun {} size {} {}", module, cap, scratch->path, 24 * cap, further));
  }
};

uint64_t peak_rss(pid_t pid) {
  const std::string status = text_of(fmt::format("/proc/{}/status", pid));
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? 0 : strtoull(status.c_str() + at + 6, nullptr, 10) * 1024;
}

uint64_t figure(RedisServer& server, const std::string& name) {
  return strtoull(server.info("lunar", "lunar_" + name).c_str(), nullptr, 10);
}

// It lived above its budget, within its cap, without an error.
void check_tiered(RedisServer& server, const Run& run, const std::string& name, uint64_t evicted_factor) {
  const uint64_t evicted = figure(server, "evicted_pages") * 4096, resident = figure(server, "resident_peak_bytes"),
                 rss = peak_rss(server.pid());
  require(figure(server, "dram_budget_bytes") == run.cap, "{}: its budget is {:.0f} MiB", name,
          mib(figure(server, "dram_budget_bytes")));
  require(evicted >= evicted_factor * run.cap, "{}: evicted {:.0f} MiB, less than {} x the budget", name, mib(evicted),
          evicted_factor);
  require(resident <= run.cap, "{}: tiered pages peaked at {:.1f} MiB, above the cap", name, mib(resident));
  require(rss > 0 && rss <= run.cap + kOverhead, "{}: its resident set peaked at {:.1f} MiB", name, mib(rss));
  for (const char* key : {"read_errors", "write_errors", "poisoned_pages"})
    require(figure(server, key) == 0, "{}: {} is {}", name, key, figure(server, key));
  fmt::print("{:8} cap {:.0f} MiB  peak RSS {:.1f}  evicted {:.1f} MiB\n", name, mib(run.cap), mib(rss), mib(evicted));
}

void must_be(const std::string& what, const std::string& got, const std::string& wanted) {
  require(got == wanted, "{}: digest {}, not {}", what, got, wanted);
}

// Every string as it was written; other types are compared by digest.
void read_back(RedisServer& server, const Run& run, uint64_t version) {
  uint64_t wrong = 0;
  for (uint64_t key = 0; key < run.keys; key += 5) {
    const auto reply = server.command({"GET", fmt::format("key:{}", key)});
    wrong += reply->type != REDIS_REPLY_STRING ||
             std::string(reply->str, static_cast<size_t>(reply->len)) != content(key, version, kKeyBytes);
  }
  require(wrong == 0, "{} strings are not what was written", wrong);
}

// The same writes to each server, all over the data set: new versions, deletions, new keys.
void write_some(const std::vector<RedisServer*>& servers, const Run& run, uint64_t rounds, uint64_t version) {
  for (uint64_t i = 0; i < rounds; ++i) {
    const uint64_t place = (i * 2654435761 + version) % run.keys;
    for (RedisServer* server : servers) {
      fill(*server, place, 40, version);
      (void)server->command({"DEL", fmt::format("key:{}", place + 3)});
      fill(*server, run.keys + i, 10, version);
    }
  }
}

template <class Done>
void wait_until(const std::string& what, Done done) {
  for (const double start = now_s(); !done();) {
    if (now_s() - start > kWaitSecondsMax) throw std::runtime_error(what + " does not come");
    usleep(20'000);
  }
}

void wait_for_child(RedisServer& server, const std::string& running, const std::string& status) {
  wait_until("the end of " + running, [&] { return server.info("persistence", running) == "0"; });
  const std::string state = server.info("persistence", status);
  require(state == "ok", "{} is '{}':\n{}", status, state, server.log_tail());
}

std::string digest_of_dump(const Run& run, const std::string& from, const std::string& name) {
  const ServerSetup setup = run.plain(name, "dump.rdb");
  std::filesystem::copy_file(run.scratch->file(from) + "/dump.rdb", setup.directory + "/dump.rdb",
                             std::filesystem::copy_options::overwrite_existing);
  RedisServer server(setup);
  server.set_patience(kPatienceSeconds);
  return digest(server);
}

void save(const Run& run) {
  RedisServer tiered(run.tiered("tiered", "dump.rdb")), plain(run.plain("plain", "dump.rdb"));
  tiered.set_patience(kPatienceSeconds);
  plain.set_patience(kPatienceSeconds);
  fill(tiered, 0, run.keys, 1);
  fill(plain, 0, run.keys, 1);
  read_back(tiered, run, 1);
  const std::string at_fork = digest(plain);
  must_be("the tiered server", digest(tiered), at_fork);
  (void)tiered.command({"BGSAVE"});
  write_some({&tiered, &plain}, run, 20, 2);
  wait_for_child(tiered, "rdb_bgsave_in_progress", "rdb_last_bgsave_status");
  must_be("the dump of BGSAVE", digest_of_dump(run, "tiered", "bgsave"), at_fork);
  const std::string now = digest(plain);
  require(now != at_fork, "the writes changed nothing");
  must_be("after BGSAVE and writes", digest(tiered), now);
  check_tiered(tiered, run, "tiered", 3);
}

void reload(const Run& run) {
  RedisServer plain(run.plain("plain", "dump.rdb"));
  plain.set_patience(kPatienceSeconds);
  fill(plain, 0, run.keys, 1);
  const std::string wanted = digest(plain);
  {
    RedisServer tiered(run.tiered("tiered", "dump.rdb", "--io-threads 3 --io-threads-do-reads yes"));
    tiered.set_patience(kPatienceSeconds);
    fill(tiered, 0, run.keys, 1);
    (void)tiered.command({"SAVE"});
    must_be("the dump of SAVE", digest_of_dump(run, "tiered", "dump"), wanted);
    (void)tiered.command({"DEBUG", "RELOAD"});
    must_be("after DEBUG RELOAD", digest(tiered), wanted);
    check_tiered(tiered, run, "tiered", 2);
    tiered.shut_down();
  }
  RedisServer again(run.tiered("tiered", "dump.rdb"));
  again.set_patience(kPatienceSeconds);
  read_back(again, run, 1);
  must_be("after a restart", digest(again), wanted);
  check_tiered(again, run, "restart", 1);
}

void append(const Run& run) {
  RedisServer plain(run.plain("plain", "dump.rdb"));
  plain.set_patience(kPatienceSeconds);
  {
    RedisServer tiered(run.tiered("tiered", "dump.rdb"));
    tiered.set_patience(kPatienceSeconds);
    fill(tiered, 0, run.keys, 1);
    fill(plain, 0, run.keys, 1);
    (void)tiered.command({"CONFIG", "SET", "appendfsync", "always"});
    (void)tiered.command({"CONFIG", "SET", "appendonly", "yes"});
    write_some({&tiered, &plain}, run, 20, 2);
    wait_for_child(tiered, "aof_rewrite_in_progress", "aof_last_bgrewrite_status");
    (void)tiered.command({"BGREWRITEAOF"});
    write_some({&tiered, &plain}, run, 20, 3);
    wait_for_child(tiered, "aof_rewrite_in_progress", "aof_last_bgrewrite_status");
    write_some({&tiered, &plain}, run, 5, 4);
    check_tiered(tiered, run, "tiered", 2);
    kill(tiered.pid(), SIGKILL);
    usleep(200'000);
  }
  RedisServer again(run.tiered("tiered", "dump.rdb", "--appendonly yes"));
  again.set_patience(kPatienceSeconds);
  must_be("after kill -9 and a restart", digest(again), digest(plain));
  check_tiered(again, run, "restart", 1);
}

void follow(RedisServer& replica, const RedisServer& master) {
  (void)replica.command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
  wait_until("the link of a replica", [&] { return replica.info("replication", "master_link_status") == "up"; });
}

void replica(const Run& run) {
  RedisServer master(run.tiered("master", "dump.rdb", "--repl-diskless-sync-delay 0")),
      diskless(run.tiered("diskless", "dump.rdb", "--repl-diskless-load swapdb")), disk(run.tiered("disk", "dump.rdb"));
  for (RedisServer* server : {&master, &diskless, &disk}) server->set_patience(kPatienceSeconds);
  fill(master, 0, run.keys, 1);
  (void)master.command({"CONFIG", "SET", "repl-diskless-sync", "yes"});
  follow(diskless, master);
  write_some({&master}, run, 10, 2);
  (void)master.command({"CONFIG", "SET", "repl-diskless-sync", "no"});
  follow(disk, master);
  write_some({&master}, run, 10, 3);
  const auto both = master.command({"WAIT", "2", "60000"});
  require(both->integer == 2, "{} of 2 replicas have all writes", both->integer);
  const std::string wanted = digest(master);
  must_be("the diskless replica", digest(diskless), wanted);
  must_be("the replica from a file", digest(disk), wanted);
  require(master.info("stats", "sync_full") == "2", "full syncs: {}", master.info("stats", "sync_full"));
  check_tiered(master, run, "master", 2);
  check_tiered(diskless, run, "diskless", 1);
  check_tiered(disk, run, "disk", 1);
}

int test(const std::string& scenario, const Run& run) {
  const double start = now_s();
  if (scenario == "save") save(run);
  else if (scenario == "reload") reload(run);
  else if (scenario == "append") append(run);
  else if (scenario == "replica") replica(run);
  else require(false, "no scenario '{}'", scenario);
  fmt::print("{} in {:.1f} s\n", g_failures == 0 ? "equal" : "failed", now_s() - start);
  return g_failures > 0;
}

}   // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: redis_module MODULE SCENARIO CAP_MIB VALUES_MIB\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (redis_missing()) return 77;
  const Scratch scratch;
  const Run run{std::filesystem::absolute(argv[1]), strtoull(argv[3], nullptr, 10) * kMiB, strtoull(argv[4], nullptr, 10) * kMiB / kKeyBytes, &scratch};
  try {
    return test(argv[2], run);
  } catch (const std::runtime_error& error) {
    const bool refused = strstr(error.what(), "userfaultfd") != nullptr && access("/dev/userfaultfd", R_OK | W_OK) != 0 &&
                         geteuid() != 0;
    fmt::print("{}{}\n", refused ? "skip: userfaultfd: " : "FAIL: ", error.what());
    return refused ? 77 : 1;
  }
}
