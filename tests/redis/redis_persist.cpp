// SPDX-License-Identifier: Apache-2.0
// What a forked child of a tiered server writes or sends, while every key changes, is the data of
// the moment of the fork; and a fork leaves nothing behind.
//
//   redis_persist MODULE SCENARIO CAP_MIB VALUES_MIB [FORKS]
//
//   save      BGSAVE; the dump loads in a plain server as the data of the fork
//   rewrite   BGREWRITEAOF, base in RDB and in AOF format; the base alone loads as the data of the
//             fork, base and increments as the data there is
//   sync      full sync of a tiered replica, from a file and diskless; it has the master's data
//             once their offsets are equal
//   forks     FORKS saves under writes; slots, memory, descriptors, threads and mappings are where
//             they were
//   dram      save, rewrite and sync with the master in a swapless memory cgroup of the cap + 128
//             MiB, page cache and kernel included: the kernel ends a server that passes it. What
//             there is of anonymous and kernel memory is bounded apart
//
// How. One connection writes, in one pipeline: DEBUG DIGEST, the command that forks, and the writes
// that change every key. The fork is within its command, so the digest is that of the fork. Every
// key must have changed before the child is done: redis' own rdb-key-save-delay makes the child
// slow enough.
// Threading: main, and one that looks at the cgroup. May not: leave files, processes or cgroups
// behind.
#include <atomic>
#include <memory>
#include <thread>

#include "redis_tiered.h"
#include "tools/support/cgroup.h"

namespace {

using namespace e2e;
using lunar::tools::CgroupPlace;
using lunar::tools::MemoryCgroup;

constexpr uint64_t kGroupAboveCap = 128 * kMiB;  // what the cgroup may have above the cap
constexpr int kTriesMax = 3;
constexpr unsigned kForksBefore = 3;  // arenas, pools and tables are made at the first ones

std::unique_ptr<MemoryCgroup> g_group;  // that of the next servers; scenario dram

ServerSetup in_group(ServerSetup setup) {
  if (g_group) setup.cgroup_procs = g_group->procs_path();
  return setup;
}

// A server whose keys are all of one version, but those that a pass has not reached yet.
class Writer {
 public:
  Writer(const Run& run, const ServerSetup& setup) : run_(run), server_(setup) {
    server_.set_patience(kPatienceSeconds);
    fill(server_, 0, run_.keys, version_);
    change_all();  // how long it takes
  }
  RedisServer& server() { return server_; }
  uint64_t version() const { return version_; }

  void change_all() {
    const double start = now_s();
    ++version_;
    for (uint64_t key = 0; key < run_.keys; key += kPipeline) {
      send_batch(key);
      receive_batch(key);
    }
    pass_seconds_ = now_s() - start;
  }

  // The digest at the fork that `command` makes. All keys have changed while its child (INFO
  // `running`) was at work.
  std::string fork_and_change(const std::string& command, const std::string& running,
                              const std::string& status) {
    double seconds = 2 * pass_seconds_;
    for (int attempt = 0; attempt < kTriesMax; ++attempt, seconds *= 2) {
      set_delay(seconds);
      server_.send({"DEBUG", "DIGEST"});
      server_.send({command});
      ++version_;
      send_batch(0);
      const auto reply = server_.receive();
      (void)server_.receive();
      const double start = now_s();
      receive_batch(0);
      for (uint64_t key = kPipeline; key < run_.keys; key += kPipeline) {
        send_batch(key);
        receive_batch(key);
      }
      pass_seconds_ = now_s() - start;
      const bool still = server_.info("persistence", running) == "1";
      wait_for_child(server_, running, status);
      fmt::print("{}: {} keys changed in {:.1f} s, child done after {:.1f} s\n", command, run_.keys,
                 pass_seconds_, now_s() - start);
      if (still) return std::string(reply->str, static_cast<size_t>(reply->len));
    }
    throw std::runtime_error(command + ": its child is always done before every key has changed");
  }

  // Children take at least so long.
  void set_delay(double seconds) {
    const auto us = static_cast<uint64_t>(seconds * 1e6 / static_cast<double>(run_.keys));
    (void)server_.command({"CONFIG", "SET", "rdb-key-save-delay", std::to_string(us)});
  }
  double pass_seconds() const { return pass_seconds_; }

 private:
  uint64_t batch(uint64_t key) const { return std::min(kPipeline, run_.keys - key); }
  void send_batch(uint64_t key) {
    for (uint64_t i = 0; i < batch(key); ++i) {
      server_.send({"DEL", fmt::format("key:{}", key + i)});
      server_.send(make_value(key + i, version_));
    }
  }
  void receive_batch(uint64_t key) {
    for (uint64_t i = 0; i < 2 * batch(key); ++i) (void)server_.receive();
  }

  const Run& run_;
  RedisServer server_;
  uint64_t version_ = 1;
  double pass_seconds_ = 0;
};

// What a plain server says of the data set at a version.
class Twin {
 public:
  explicit Twin(const Run& run) : run_(run), server_(run.plain("twin", "dump.rdb")) {
    server_.set_patience(kPatienceSeconds);
  }
  std::string digest_of(uint64_t version) {
    (void)server_.command({"FLUSHALL"});
    fill(server_, 0, run_.keys, version);
    return digest(server_);
  }

 private:
  const Run& run_;
  RedisServer server_;
};

void save(const Run& run) {
  Writer writer(run, in_group(run.tiered("tiered", "dump.rdb")));
  Twin twin(run);
  const std::string at_fork =
      writer.fork_and_change("BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status");
  must_be("at the fork", at_fork, twin.digest_of(writer.version() - 1));
  must_be("the dump", digest_of_dump(run, "tiered", "loaded"), at_fork);
  const std::string now = twin.digest_of(writer.version());
  require(now != at_fork, "the writes changed nothing");
  must_be("after the save", digest(writer.server()), now);
  check_tiered(writer.server(), run, "tiered", 3);
}

// The digest of a plain server that loads the append-only file of server `from`: all of it, or its
// base alone.
std::string digest_of_append(const Run& run, const std::string& from, const std::string& name,
                             bool base_only) {
  const ServerSetup setup = run.plain(name, "none.rdb", "--appendonly yes");
  const std::string source = run.scratch->file(from) + "/appendonlydir",
                    target = setup.directory + "/appendonlydir";
  std::filesystem::remove_all(target);
  std::filesystem::copy(source, target);
  if (base_only) {
    std::istringstream lines(text_of(source + "/appendonly.aof.manifest"));
    std::string kept;
    for (std::string line; std::getline(lines, line);)
      if (line.find("type b") != std::string::npos) kept += line + "\n";
    require(!kept.empty(), "{}: no base in the manifest", name);
    FILE* file = fopen((target + "/appendonly.aof.manifest").c_str(), "we");
    if (file == nullptr || fputs(kept.c_str(), file) < 0 || fclose(file) != 0)
      throw std::runtime_error("manifest: " + std::string(strerror(errno)));
  }
  RedisServer server(setup);
  server.set_patience(kPatienceSeconds);
  return digest(server);
}

void rewrite(const Run& run) {
  Writer writer(run, in_group(run.tiered("tiered", "dump.rdb",
                                         "--appendonly yes --auto-aof-rewrite-percentage 0")));
  std::string before;
  for (const char* preamble : {"yes", "no"}) {
    (void)writer.server().command({"CONFIG", "SET", "aof-use-rdb-preamble", preamble});
    const std::string at_fork = writer.fork_and_change("BGREWRITEAOF", "aof_rewrite_in_progress",
                                                       "aof_last_bgrewrite_status");
    const std::string now = digest(writer.server());
    // what is buffered is written with the next write
    (void)writer.server().command({"CONFIG", "SET", "appendfsync", "always"});
    (void)writer.server().command({"DEL", "no such key"});
    require(now != at_fork, "the writes changed nothing");
    if (!before.empty()) must_be("at the second fork", at_fork, before);
    must_be(fmt::format("the base (rdb preamble: {})", preamble),
            digest_of_append(run, "tiered", "base", true), at_fork);
    must_be(fmt::format("base and increments (rdb preamble: {})", preamble),
            digest_of_append(run, "tiered", "all", false), now);
    (void)writer.server().command({"CONFIG", "SET", "appendfsync", "everysec"});
    before = now;
  }
  check_tiered(writer.server(), run, "tiered", 3);
}

void sync_once(const Run& run, Writer& writer, bool diskless) {
  const std::string how = diskless ? "diskless" : "disk";
  RedisServer& master = writer.server();
  (void)master.command({"CONFIG", "SET", "repl-diskless-sync", diskless ? "yes" : "no"});
  RedisServer replica(run.tiered(how, "dump.rdb", diskless ? "--repl-diskless-load swapdb" : ""));
  replica.set_patience(kPatienceSeconds);
  writer.set_delay(4 * writer.pass_seconds());  // one try only
  const std::string at_fork = digest(master);
  (void)replica.command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
  wait_until("the fork of a full sync",
             [&] { return master.info("persistence", "rdb_bgsave_in_progress") == "1"; });
  writer.change_all();
  require(master.info("persistence", "rdb_bgsave_in_progress") == "1",
          "{}: the child was done before every key had changed", how);
  wait_for_child(master, "rdb_bgsave_in_progress", "rdb_last_bgsave_status");
  wait_until("equal offsets", [&] {
    const std::string offset = master.info("replication", "master_repl_offset");
    return replica.info("replication", "master_link_status") == "up" &&
           replica.info("replication", "slave_repl_offset") == offset;
  });
  const std::string now = digest(master);
  require(now != at_fork, "{}: the writes changed nothing", how);
  must_be("the replica, " + how, digest(replica), now);
  if (!diskless) must_be("what was sent", digest_of_dump(run, "tiered", "sent"), at_fork);
  check_tiered(replica, run, how, 2);
}

void sync(Run run) {
  run.size_per_cap *= 2;  // what a slow replica has not received yet takes LUN space, too
  Writer writer(
      run, in_group(run.tiered("tiered", "dump.rdb",
                               "--repl-diskless-sync-delay 0 --repl-ping-replica-period 3600")));
  // all keys, twice, wait in it
  (void)writer.server().command({"CONFIG", "SET", "client-output-buffer-limit", "replica 0 0 0"});
  (void)writer.server().command({"CONFIG", "SET", "repl-timeout", "900"});
  sync_once(run, writer, false);
  sync_once(run, writer, true);
  const std::string syncs = writer.server().info("stats", "sync_full");
  require(syncs == "2", "full syncs: {}", syncs);
  check_tiered(writer.server(), run, "tiered", 3);
}

// ---- what a fork leaves -------------------------------------------------------------------------

struct Resources {
  uint64_t slots = 0, dram = 0, committed = 0, rss = 0, descriptors = 0, threads = 0, mappings = 0;
};

uint64_t entries(const std::string& directory) {
  uint64_t n = 0;
  std::error_code error;
  for (auto at = std::filesystem::directory_iterator(directory, error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error))
    ++n;
  return n;
}

// The pager has a descriptor table of its own: all threads' tables count, each once or as often as
// before. The kernel's own workers for io_uring (iou-wrk-...) come and go with the load.
Resources resources(RedisServer& server) {
  const std::string process = fmt::format("/proc/{}", server.pid());
  Resources result;
  result.slots = figure(server, "lun_used_bytes") / 4096;
  result.dram = figure(server, "dram_used_bytes");
  result.committed = figure(server, "committed_bytes");
  const std::string status = text_of(process + "/status"), maps = text_of(process + "/maps");
  if (const size_t at = status.find("VmRSS:"); at != std::string::npos)
    result.rss = strtoull(status.c_str() + at + 6, nullptr, 10) * 1024;
  for (const auto& task : std::filesystem::directory_iterator(process + "/task")) {
    if (text_of(task.path().string() + "/comm").rfind("iou-wrk", 0) == 0) continue;
    ++result.threads;
    result.descriptors += entries(task.path().string() + "/fd");
  }
  result.mappings = static_cast<uint64_t>(std::count(maps.begin(), maps.end(), '\n'));
  return result;
}

void print(const std::string& when, const Resources& r) {
  fmt::print(
      "{:12} {} slots, DRAM {:.1f} MiB, committed {:.1f} MiB, RSS {:.1f} MiB, {} descriptors, {} "
      "threads, {} "
      "mappings\n",
      when, r.slots, mib(r.dram), mib(r.committed), mib(r.rss), r.descriptors, r.threads,
      r.mappings);
}

void forks(const Run& run, unsigned wanted) {
  RedisServer server(run.tiered("tiered", "dump.rdb", "--activedefrag no"));
  server.set_patience(kPatienceSeconds);
  const Resources empty = resources(server);
  print("empty", empty);
  fill(server, 0, run.keys, 1);
  // Every batch writes the same strings anew, in as many bytes: the heap stays as large as it is.
  const uint64_t some = std::min<uint64_t>(run.keys / 5, 100);
  auto save_once = [&](uint64_t round) {
    (void)server.command({"BGSAVE"});
    for (uint64_t i = 0; i < some; ++i) {
      const uint64_t key = (round * some + i) % (run.keys / 5) * 5;
      server.send(make_value(key, round));
    }
    for (uint64_t i = 0; i < some; ++i) (void)server.receive();
    for (;;) {  // no pause: the next fork comes at once
      if (server.info("persistence", "rdb_bgsave_in_progress") == "0") break;
      usleep(2000);
    }
    const std::string state = server.info("persistence", "rdb_last_bgsave_status");
    if (state != "ok") throw std::runtime_error("a save is '" + state + "':\n" + server.log_tail());
  };
  auto settled =
      [&] {  // what the last child held comes back within a few rounds of the housekeeping thread
        (void)digest(server);
        usleep(1'500'000);
        return resources(server);
      };
  for (unsigned i = 0; i < kForksBefore; ++i) save_once(i + 2);
  const Resources before = settled();
  print("before", before);
  const double start = now_s();
  for (unsigned i = 0; i < wanted; ++i) save_once(i + 2 + kForksBefore);
  const double took = now_s() - start;
  const Resources after = settled();
  print("after", after);
  fmt::print("{} forks in {:.1f} s\n", wanted, took);
  require(figure(server, "forks") == wanted + kForksBefore, "{} forks were counted",
          figure(server, "forks"));
  // Which pages are resident, and with a slot, changes: by up to the budget. A leak of a hundredth
  // of it a fork would show.
  require(after.slots <= before.slots + run.cap / 4096 / 4, "slots: {}, were {}", after.slots,
          before.slots);
  require(after.dram <= run.cap && after.rss <= before.rss + 8 * kMiB, "RSS {:.1f} MiB, was {:.1f}",
          mib(after.rss), mib(before.rss));
  require(after.committed <= before.committed + 4 * kMiB, "committed {:.1f} MiB, was {:.1f}",
          mib(after.committed), mib(before.committed));
  require(after.descriptors == before.descriptors, "descriptors: {}, were {}", after.descriptors,
          before.descriptors);
  require(after.threads == before.threads, "threads: {}, were {}", after.threads, before.threads);
  require(after.mappings <= before.mappings + 8, "mappings: {}, were {}", after.mappings,
          before.mappings);
  check_tiered(server, run, "tiered", 1);
  // Without data no slot is in use: none was lost on the way.
  (void)server.command({"FLUSHALL"});
  (void)server.command({"MEMORY", "PURGE"});
  usleep(1'500'000);
  const Resources last = resources(server);
  print("flushed", last);
  const uint64_t pages = last.committed / 4096;
  require(last.slots <= pages, "{} slots are in use for {} pages", last.slots, pages);
}

// ---- DRAM ---------------------------------------------------------------------------------------

// The sum of `fields` of the group's memory.stat (version 1 or 2).
uint64_t stat_of(const MemoryCgroup& group, std::initializer_list<const char*> fields) {
  const std::string text = text_of(group.directory() + "/memory.stat");
  uint64_t sum = 0;
  for (const char* field : fields) sum += lunar::tools::parse_counter(text, field);
  return sum;
}

class Watch {
 public:
  explicit Watch(const MemoryCgroup& group)
      : thread_([this, &group] {
          while (!stop_.load()) {
            // version 1
            const uint64_t kernel = strtoull(
                text_of(group.directory() + "/memory.kmem.usage_in_bytes").c_str(), nullptr, 10);
            anonymous_ = std::max(anonymous_, stat_of(group, {"total_rss", "anon"}));
            kernel_ = std::max(kernel_, kernel != 0 ? kernel : stat_of(group, {"kernel"}));
            usleep(20'000);
          }
        }) {}
  ~Watch() { end(); }
  void end() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  uint64_t anonymous() const { return anonymous_; }
  uint64_t kernel() const { return kernel_; }

 private:
  std::atomic<bool> stop_{false};
  uint64_t anonymous_ = 0, kernel_ = 0;
  std::thread thread_;
};

template <class Scenario>
void within_group(const Run& run, const std::string& name, const CgroupPlace& place,
                  Scenario scenario) {
  try {
    g_group = std::make_unique<MemoryCgroup>(place, fmt::format("lunar-test-{}", getpid()),
                                             run.cap + kGroupAboveCap, false);
  } catch (const std::runtime_error& error) { skip("memory-cgroup", error.what()); }
  Watch watch(*g_group);
  scenario(run);
  watch.end();
  const uint64_t peak = g_group->peak_bytes();
  fmt::print(
      "{}: the group of {:.0f} MiB peaked at {:.1f} MiB with page cache; anonymous memory at "
      "{:.1f} MiB, the kernel's "
      "at {:.1f} MiB\n",
      name, mib(run.cap + kGroupAboveCap), mib(peak), mib(watch.anonymous()), mib(watch.kernel()));
  require(g_group->oom_kills() == 0, "{}: the kernel ended a process of the group", name);
  require(peak > run.cap / 2 && peak <= run.cap + kGroupAboveCap,
          "{}: the group peaked at {:.1f} MiB", name, mib(peak));
  require(watch.anonymous() + watch.kernel() <= run.cap + kGroupAboveCap,
          "{}: {:.1f} MiB cannot be reclaimed", name, mib(watch.anonymous() + watch.kernel()));
  g_group.reset();
  std::filesystem::remove_all(run.scratch->file("tiered"));  // the next server starts without data
}

void dram(const Run& run) {
  const CgroupPlace place = lunar::tools::find_cgroup_place();
  if (place.version == 0) skip("memory-cgroup", place.why_not);
  within_group(run, "save", place, save);
  within_group(run, "rewrite", place, rewrite);
  within_group(run, "sync", place, sync);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    fmt::print(stderr, "usage: redis_persist MODULE SCENARIO CAP_MIB VALUES_MIB [FORKS]\n");
    return 2;
  }
  return run_test(argv, [argc, argv](const std::string& scenario, const Run& run) {
    const double start = now_s();
    if (scenario == "save")
      save(run);
    else if (scenario == "rewrite")
      rewrite(run);
    else if (scenario == "sync")
      sync(run);
    else if (scenario == "forks")
      forks(run, argc == 6 ? static_cast<unsigned>(strtoul(argv[5], nullptr, 10)) : 100);
    else if (scenario == "dram")
      dram(run);
    else
      require(false, "no scenario '{}'", scenario);
    fmt::print("{} in {:.1f} s\n", g_failures == 0 ? "good" : "failed", now_s() - start);
    return g_failures > 0 ? 1 : 0;
  });
}
