// SPDX-License-Identifier: Apache-2.0
// The Redis module in the distribution's redis-server, data at four times its DRAM and of all
// types: what it holds, saves, replays and sends to replicas is what a plain server has.
//
//   redis_module MODULE SCENARIO CAP_MIB VALUES_MIB
//
//   save      fill tiered and plain: digests equal, strings read back; BGSAVE under writes: the
//             dump loads in a plain server as the data of the fork
//   reload    io-threads that read; SAVE, DEBUG RELOAD, restart from the dump
//   append    append-only file with two rewrites under writes; kill -9; restart from it
//   replica   tiered replicas of a tiered server, diskless and from a file, then live writes
//
// A server that did not evict twice its budget, or whose resident set passed the cap + 64 MiB,
// fails the test. Threading: one thread. May not: leave files or processes behind.
#include <signal.h>

#include "redis_tiered.h"

namespace {

using namespace e2e;

// Every string as it was written; other types are compared by digest.
void read_back(RedisServer& server, const Run& run, uint64_t version) {
  uint64_t wrong = 0;
  for (uint64_t key = 0; key < run.keys; key += 5) {
    const auto reply = server.command({"GET", fmt::format("key:{}", key)});
    wrong += reply->type != REDIS_REPLY_STRING ||
             std::string(reply->str, static_cast<size_t>(reply->len)) !=
                 content(key, version, kKeyBytes);
  }
  require(wrong == 0, "{} strings are not what was written", wrong);
}

// The same writes to each server, all over the data set: new versions, deletions, new keys.
void write_some(const std::vector<RedisServer*>& servers, const Run& run, uint64_t rounds,
                uint64_t version) {
  for (uint64_t i = 0; i < rounds; ++i) {
    const uint64_t place = (i * 2654435761 + version) % run.keys;
    for (RedisServer* server : servers) {
      fill(*server, place, 40, version);
      (void)server->command({"DEL", fmt::format("key:{}", place + 3)});
      fill(*server, run.keys + i, 10, version);
    }
  }
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
    RedisServer tiered(
        run.tiered("tiered", "dump.rdb", "--io-threads 3 --io-threads-do-reads yes"));
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

void replica(const Run& run) {
  RedisServer master(run.tiered("master", "dump.rdb", "--repl-diskless-sync-delay 0")),
      diskless(run.tiered("diskless", "dump.rdb", "--repl-diskless-load swapdb")),
      disk(run.tiered("disk", "dump.rdb"));
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
  require(master.info("stats", "sync_full") == "2", "full syncs: {}",
          master.info("stats", "sync_full"));
  check_tiered(master, run, "master", 2);
  check_tiered(diskless, run, "diskless", 1);
  check_tiered(disk, run, "disk", 1);
}

int test(const std::string& scenario, const Run& run) {
  const double start = now_s();
  if (scenario == "save")
    save(run);
  else if (scenario == "reload")
    reload(run);
  else if (scenario == "append")
    append(run);
  else if (scenario == "replica")
    replica(run);
  else
    require(false, "no scenario '{}'", scenario);
  fmt::print("{} in {:.1f} s\n", g_failures == 0 ? "equal" : "failed", now_s() - start);
  return g_failures > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: redis_module MODULE SCENARIO CAP_MIB VALUES_MIB\n");
    return 2;
  }
  return run_test(argv, test);
}
