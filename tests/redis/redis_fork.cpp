// SPDX-License-Identifier: Apache-2.0
// An unmodified redis-server above its DRAM forks while it is written to: BGSAVE and the rewriting
// of the append-only file. What the child wrote must load back, under Lunar again, as the very data
// set of the moment of the fork.
//
//   redis_fork LUNAR CAP_MIB VALUES_MIB
//
//   fill -> digest 0 -> BGSAVE, writes meanwhile -> append-only file on (a fork), writes,
//   BGREWRITEAOF, writes
//        -> digest 1 -> SHUTDOWN
//   a server from the dump = digest 0; one from the append-only file = digest 1
//
// Threading: one thread. May not: leave files or processes behind.
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "redis_values.h"
#include "tests/e2e/e2e.h"
#include "tools/support/redis_server.h"

namespace {

using namespace e2e;
using lunar::tools::RedisServer;
using lunar::tools::ServerSetup;

constexpr int kPatienceSeconds = 900;  // DEBUG DIGEST of 1 GiB on a loaded machine
// a save with its writer, on a loaded machine
constexpr double kForkSecondsMax = 150, kForkSecondsPerMiB = 0.7;

struct Run {
  std::string lunar;
  uint64_t cap = 0, keys = 0;
  const Scratch* scratch = nullptr;

  ServerSetup setup(const std::string& name, const std::string& dump, bool append_only) const {
    ServerSetup result;
    result.redis_server = redis_server();
    // The LUN has room for the data set and what a child of it is promised at fork.
    result.wrapper = {lunar,
                      "run",
                      fmt::format("--dram={}", cap),
                      fmt::format("--size={}", 24 * cap),
                      "--lun=" + scratch->path,
                      "--stats",
                      "--"};
    // What the server is told in addition to what the demo tells it, by a shell that execs it.
    if (append_only)
      result.wrapper.insert(result.wrapper.end(),
                            {"/bin/sh", "-c", "exec \"$@\" --appendonly yes", "sh"});
    result.directory = scratch->path;
    result.name = name;
    result.dump = dump;
    result.saves = false;
    return result;
  }
};

// Writes all over the data set until the child that redis forked is done: new versions, deletions
// and new keys.
uint64_t write_until_done(RedisServer& server, const Run& run, const std::string& field,
                          uint64_t version) {
  const double start = now_s(),
               seconds_max =
                   kForkSecondsMax + kForkSecondsPerMiB * 4 * static_cast<double>(run.cap >> 20);
  uint64_t written = 0;
  while (server.info("persistence", field) != "0") {
    if (now_s() - start > seconds_max) throw std::runtime_error(field + " does not end");
    if (written >= run.keys / 10) {  // enough
      usleep(50'000);
      continue;
    }
    const uint64_t place = written * 2654435761 % run.keys;
    fill(server, place, 40, version);
    (void)server.command({"DEL", fmt::format("key:{}", place + 3)});
    fill(server, run.keys + written, 10, version);
    written += 40;
  }
  return written;
}

void must_be_ok(RedisServer& server, const std::string& field) {
  const std::string state = server.info("persistence", field);
  require(state == "ok", "{} is '{}':\n{}", field, state, state == "ok" ? "" : server.log_tail());
}

Table table_of(const Run& run, const std::string& name, pid_t pid) {
  std::string errors = text_of(run.scratch->file(name + ".err"));
  auto tables = take_tables(&errors);
  require(errors.empty(), "server '{}' wrote:\n{}", name, errors);
  return tables[std::to_string(pid)];
}

void close_server(RedisServer& server, const Run& run, const std::string& name,
                  uint64_t evicted_factor) {
  server.shut_down();
  const Table table = table_of(run, name, server.pid());
  check_table(table, run.cap, evicted_factor);
  fmt::print("{:8} cap {:.0f} MiB  peak RSS {:.1f}  evicted {:.1f} MiB\n", name, mib(run.cap),
             mib(number(table, "peak_rss_bytes")), mib(number(table, "evictions_bytes")));
}

void first_server(const Run& run, std::string* digest_0, std::string* digest_1) {
  RedisServer server(run.setup("first", "dump.rdb", false));
  server.set_patience(kPatienceSeconds);
  double start = now_s();
  fill(server, 0, run.keys, 1);
  fmt::print("filled {} keys in {:.1f} s\n", run.keys, now_s() - start);
  *digest_0 = digest(server);
  start = now_s();
  (void)server.command({"BGSAVE"});
  uint64_t written = write_until_done(server, run, "rdb_bgsave_in_progress", 2);
  fmt::print("BGSAVE: {:.1f} s, {} values written meanwhile\n", now_s() - start, written);
  must_be_ok(server, "rdb_last_bgsave_status");
  start = now_s();
  (void)server.command({"CONFIG", "SET", "appendonly", "yes"});
  written = write_until_done(server, run, "aof_rewrite_in_progress", 3);
  (void)server.command({"BGREWRITEAOF"});
  written += write_until_done(server, run, "aof_rewrite_in_progress", 4);
  fmt::print("two rewrites: {:.1f} s, {} values written meanwhile\n", now_s() - start, written);
  must_be_ok(server, "aof_last_bgrewrite_status");
  *digest_1 = digest(server);
  require(*digest_0 != *digest_1, "the writes changed nothing");
  close_server(server, run, "first", 2);
}

void compare_server(const Run& run, const std::string& name, bool append_only,
                    const std::string& expected) {
  RedisServer server(run.setup(name, append_only ? "none.rdb" : "dump.rdb", append_only));
  server.set_patience(kPatienceSeconds);
  const std::string now = digest(server);
  require(now == expected, "server '{}' has digest {}, not {}", name, now, expected);
  close_server(server, run, name, 2);
}

int test(const Run& run) {
  std::string digest_0, digest_1;
  first_server(run, &digest_0, &digest_1);
  compare_server(run, "dump", false, digest_0);
  compare_server(run, "append", true, digest_1);
  fmt::print("{}\n", g_failures == 0 ? "both loaded back equal" : "failed");
  return g_failures > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: redis_fork LUNAR CAP_MIB VALUES_MIB\n");
    return 2;
  }
  return guarded([&] {
    const Scratch scratch;
    return test({argv[1], strtoull(argv[2], nullptr, 10) * kMiB,
                 strtoull(argv[3], nullptr, 10) * kMiB / kKeyBytes, &scratch});
  });
}
