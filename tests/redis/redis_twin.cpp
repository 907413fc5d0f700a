// SPDX-License-Identifier: Apache-2.0
// The twin test of the Redis module: random commands over all types, the same to a tiered server at
// 1/8 of the DRAM its data wants (or less) and to a plain one. Equal replies, equal DEBUG DIGEST at
// checkpoints, after BGSAVE and a restart, after AOF rewrites and a replay, and on a tiered
// replica.
//
//   redis_twin MODULE FROZEN_CLOCK CAP_MIB COMMANDS [SEED [GATE]]
//     GATE yes or no; SEED or LUNAR_SEED= replays
//
// MODULE - compares two plain servers: what differs then is chance in this test.
//
// Eight clients send pipelines at once, each on keys of its own (MULTI, WATCH, scripts, functions,
// RESP2 and RESP3 among them); scenes of several connections come between (blocking commands,
// WATCH, DUMP and RESTORE, SWAPDB, SCAN). The clock of both stands still (frozen_clock.c) and is
// moved by the test, so that deadlines pass at the same command; expiry is lazy.
//
// Compared as sets: SMEMBERS, SINTER, SUNION, SDIFF, SPOP, SRANDMEMBER, HGETALL, HKEYS, HVALS,
// HRANDFIELD, ZRANDMEMBER, KEYS, the SCAN family, RESP3's sets and maps, SORT BY texts that are not
// there (ties keep the order of a sorted set's table). By length and DIGEST-VALUE: DUMP of hashes
// and sets. Random picks ask for all elements.
// Left out: RANDOMKEY and random picks of some elements (chance), BYLEX on sets of several scores
// (follows random levels); OBJECT IDLETIME and FREQ (set by the server's timer); MEMORY, INFO,
// CLIENT, SLOWLOG, LATENCY, COMMAND, CONFIG GET (they name the server, not the data); MONITOR,
// pub/sub (redis_gate has SUBSCRIBE); MIGRATE, CLUSTER, WAIT; FLUSHALL (nothing would be left); cut
// and inline input, endings (redis_gate).
//
// Threading: one thread. May not: leave files or processes behind.
#include <malloc.h>

#include "redis_twin_pair.h"

namespace {

using namespace e2e;

constexpr unsigned kCheckpoints = 10;
constexpr int kPatienceSeconds = 900;  // DEBUG DIGEST on a loaded machine

struct Run {
  Twins& twins;
  Commands& commands;
  uint64_t cap_mib, played = 0;  // random commands so far
  double begun = now_s(), last = begun;

  void say(const std::string& what) {
    fmt::print("{:7} commands {:6.1f} s (+{:5.1f})  {}\n", played, now_s() - begun, now_s() - last,
               what);
    last = now_s();
  }
};

void fill(Run& run) {
  for (unsigned k = 0; k < kKeysEach; k += 20) {
    std::vector<Batch> batches;
    for (unsigned c = 0; c < kClients; ++c) {
      Batch batch{{{"SELECT", "0"}}};
      for (const char* type = kTypes; *type != 0; ++type)
        for (unsigned i = k; i < k + 20; ++i)
          for (auto& step : run.commands.fill(fmt::format("c{}:{}:{}", c, *type, i), *type))
            batch.push_back(step);
      batches.push_back(std::move(batch));
    }
    (void)run.twins.exchange(batches);
  }
}

void rounds(Run& run, unsigned count) {
  for (; count > 0; --count) {
    const uint64_t before = run.twins.sent();
    std::vector<Batch> batches;
    for (unsigned c = 0; c < kClients; ++c) batches.push_back(run.commands.batch(c));
    (void)run.twins.exchange(batches);
    if (run.commands.one_in(4)) random_scene(run.twins, run.commands);
    run.played += run.twins.sent() - before;
  }
}

// Encoding and deadline of every key of database 0, all there is to tell of every stream; what is
// no longer there is made anew.
void census(Run& run) {
  for (const char* type = kTypes; *type != 0; ++type) {
    std::vector<Batch> batches, anew;
    for (unsigned c = 0; c < kClients; ++c) {
      Batch batch{{{"SELECT", "0"}}};
      for (unsigned k = 0; k < kKeysEach; ++k) {
        const std::string key = fmt::format("c{}:{}:{}", c, *type, k);
        batch.push_back({{"OBJECT", "ENCODING", key}});
        batch.push_back({{"PTTL", key}});
        if (*type == 'x') batch.push_back({{"XINFO", "STREAM", key, "FULL", "COUNT", "0"}});
      }
      batches.push_back(std::move(batch));
    }
    const auto replies = run.twins.exchange(batches);
    size_t at = 0;
    for (auto& batch : batches) {
      anew.push_back({});
      for (auto& step : batch)
        if (replies[at++].null && step.words[0] == "OBJECT")
          for (auto& made : run.commands.fill(step.words[2], *type)) anew.back().push_back(made);
    }
    (void)run.twins.exchange(anew);
  }
}

std::string checkpoint(Run& run, const std::string& what) {
  const std::string digest = run.twins.digest();
  const uint64_t data = run.twins.plain().info("used_memory");
  run.say(fmt::format("{}: equal, {:.0f} MiB of data", what, mib(data)));
  require(data >= 8 * run.cap_mib * kMiB, "{:.0f} MiB of data is less than 8 times the budget",
          mib(data));
  return digest;
}

void must_be(const std::string& what, const std::string& digest, const std::string& wanted) {
  if (digest != wanted)
    give_up(fmt::format("{}: DEBUG DIGEST {}, it was {}", what, shown(digest), shown(wanted)));
}

void wait_for_children(Run& run, const std::string& running, const std::string& status) {
  run.twins.wait_until_both(running, 0);
  for (Server* server : {&run.twins.tiered(), &run.twins.plain()})
    if (server->ask({"INFO", "persistence"}).find(status + ":ok") == std::string::npos)
      give_up(status + " is not ok: " + server->log());
}

// What has expired and was not looked at would be dropped by a load, or not: it goes first.
std::string digest_of_the_living(Run& run) {
  scan_all(run.twins);
  return run.twins.digest();
}

void save_and_restart(Run& run) {
  const std::string at_fork = digest_of_the_living(run);
  const int64_t time_of_fork = run.twins.ms();
  run.twins.tell({"CONFIG", "SET", "rdbcompression", "yes"});
  run.twins.tell({"BGSAVE"});
  rounds(run, 20);
  wait_for_children(run, "rdb_bgsave_in_progress", "rdb_last_bgsave_status");
  run.say("saved");
  run.twins.stop();
  run.twins.set_ms(time_of_fork);  // a load drops what has expired since
  run.twins.start({});
  must_be("after BGSAVE and a restart", checkpoint(run, "restarted from BGSAVE's dump"), at_fork);
  census(run);
}

void append_and_restart(Run& run, const std::string& preamble) {
  auto rewritten = [&] {
    wait_for_children(run, "aof_rewrite_in_progress", "aof_last_bgrewrite_status");
  };
  run.twins.tell({"CONFIG", "SET", "rdbcompression", "yes"});
  run.twins.tell({"CONFIG", "SET", "aof-use-rdb-preamble", preamble});
  run.twins.tell({"CONFIG", "SET", "appendonly", "yes"});
  rounds(run, 20);
  rewritten();
  run.twins.tell({"BGREWRITEAOF"});
  rounds(run, 20);
  rewritten();
  run.twins.tell({"CONFIG", "SET", "rdbcompression", "no"});
  rounds(run, 40);
  const std::string wanted = digest_of_the_living(run);
  run.say("appended");
  run.twins.stop();
  run.twins.start({"--appendonly", "yes"});
  const std::string replayed =
      checkpoint(run, fmt::format("replayed from the AOF (preamble {})", preamble));
  must_be("after AOF rewrites and a replay", replayed, wanted);
  run.twins.tell({"CONFIG", "SET", "appendonly", "no"});
  census(run);
}

std::string functions_of(const Server& server) {
  size_t at = 0;
  return canonical(parse_reply(server.ask({"FUNCTION", "LIST", "WITHCODE"}), &at), Order::kDeep);
}

void replicate(Run& run, const std::string& diskless_load) {
  const auto replica = run.twins.another("replica", {"--repl-diskless-load", diskless_load});
  run.twins.tell({"CONFIG", "SET", "rdbcompression", "yes"});
  (void)replica->ask({"REPLICAOF", "127.0.0.1", std::to_string(run.twins.tiered().port())});
  rounds(run, 20);
  auto linked = [&] {
    return replica->ask({"INFO", "replication"}).find("master_link_status:up") != std::string::npos;
  };
  for (const double start = now_s(); !linked(); usleep(20'000))
    if (now_s() - start > kPatienceSeconds)
      give_up("the replica does not come up: " + replica->log());
  run.twins.tell({"CONFIG", "SET", "rdbcompression", "no"});
  rounds(run, 40);
  const std::string wanted = checkpoint(run, "with a replica");
  // WAIT would look at what its own connection has written
  const Server& master = run.twins.tiered();
  for (const double start = now_s();
       replica->info("slave_repl_offset") != master.info("master_repl_offset"); usleep(20'000))
    if (now_s() - start > kPatienceSeconds)
      give_up("the replica does not catch up: " + replica->log());
  must_be("on the replica", digest_of(*replica), wanted);
  if (functions_of(*replica) != functions_of(run.twins.plain()))
    give_up("the replica's functions differ");
  if (run.twins.tiered().info("sync_full") == 0) give_up("there was no full sync");
  run.say(fmt::format("replica (diskless load {}): equal", diskless_load));
  run.twins.check_result(*replica, "replica");
}

void play(Run& run, uint64_t commands) {
  run.twins.start({});
  fill(run);
  (void)checkpoint(run, "filled");
  const uint64_t each = commands / kCheckpoints;
  for (unsigned i = 1; i <= kCheckpoints && g_failures == 0; ++i) {
    while (run.played < i * each) rounds(run, 1);
    if (i % 2 == 0) census(run);
    (void)checkpoint(run, fmt::format("checkpoint {} of {}", i, kCheckpoints));
    if (i == 2) save_and_restart(run);
    if (i == 3) append_and_restart(run, "yes");
    if (i == 5) replicate(run, "disabled");
    if (i == 7) append_and_restart(run, "no");
    if (i == 8) replicate(run, "swapdb");
    if (i == 9) save_and_restart(run);
  }
  run.twins.stop();
}

int test(const TwinSetup& setup, uint64_t commands_wanted, uint64_t seed) {
  const Scratch scratch;
  Commands commands(seed);
  Twins twins(scratch, setup, commands);
  Run run{twins, commands, setup.cap_mib};
  try {
    play(run, commands_wanted);
  } catch (const std::exception& failure) {
    require(false, "{}", failure.what());
    const std::string log = text_of(scratch.file("tiered.log"));
    fmt::print("the end of the tiered server's log:\n{}\n",
               log.substr(log.size() < 4000 ? 0 : log.size() - 4000));
  }
  if (g_failures != 0)
    fmt::print("FAILED: LUNAR_SEED={} gate {}\n", seed, setup.gate ? "yes" : "no");
  else
    fmt::print("PASS: {} random commands of {} in {:.1f} s\n", run.played, twins.sent(),
               now_s() - run.begun);
  return g_failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || argc > 7) {
    fmt::print(stderr, "usage: redis_twin MODULE FROZEN_CLOCK CAP_MIB COMMANDS [SEED [GATE]]\n");
    return 2;
  }
  // batches and replies of megabytes come from pages that are there
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  g_socket_patience_s = kPatienceSeconds;
  const char* given = argc > 5 ? argv[5] : getenv("LUNAR_SEED");
  const uint64_t seed =
      given != nullptr ? strtoull(given, nullptr, 10) : static_cast<uint64_t>(now_s() * 1e6);
  TwinSetup setup;
  if (strcmp(argv[1], "-") != 0) setup.module = std::filesystem::absolute(argv[1]);
  setup.clock_library = std::filesystem::absolute(argv[2]);
  setup.cap_mib = strtoull(argv[3], nullptr, 10);
  setup.gate = argc < 7 || strcmp(argv[6], "no") != 0;
  return guarded([&] {
    fmt::print("LUNAR_SEED={}\n", seed);
    return test(setup, strtoull(argv[4], nullptr, 10), seed);
  });
}
