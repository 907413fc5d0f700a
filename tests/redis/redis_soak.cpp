// SPDX-License-Identifier: Apache-2.0
// 24 clients on a tiered server that saves, rewrites its append-only file, is given more and less
// DRAM, lives on LUNs that fail, and is killed again and again. appendfsync is always: what was
// acknowledged must be there after each restart, and every reply must be right
// (redis_soak_client.h). With them, keys that expire, rounds of values of other sizes that leave
// holes, and a user who may change nothing (redis_soak_guests.h).
//
//   redis_soak MODULE SECONDS CAP_MIB VALUES_MIB SAVE_EVERY_S LIFE_S PAUSE_MS [LIFE]
//
// A life of the server: start from the append-only file, BGSAVE every SAVE_EVERY_S, CONFIG SET
// lunar.dram five times a second between half (16 MiB at least) and twice the budget, one
// BGREWRITEAOF (redis itself does more), kill -9 after LIFE_S, but not before a save and a rewrite
// have come to their ends; two times of three while a child saves or rewrites. The child lives on
// until the next server is up. Clients rest for up to PAUSE_MS between batches. Lives take turns
// (LIFE: all are of that kind):
//
//   file     a file on the disk. A tiered replica comes late, is killed -9 at any moment, comes
//            again and follows; then clients rest, and both have the same digest
//   errors   reads and writes that fail, bits that flip on their way: tried again. Nothing may be
//            seen of it, and the LUN stays as large as it is
//   torn     writes that land in part or elsewhere: pages are lost. The server may end at any time,
//            with a line that says so, or answer with an error; it may not give a wrong reply, or
//            write one to its files
//
// At the end a plain server loads the append-only file, and the last dump, and every key is read.
// LUNAR_SEED= replays choices, not timing. Threading: one a client, and main for the servers. May
// not: leave files or processes behind.
#include <signal.h>
#include <sys/syscall.h>

#include <deque>
#include <thread>

#include "redis_soak_client.h"
#include "redis_soak_guests.h"
#include "tests/support/seed.h"

namespace {

using namespace e2e;

constexpr unsigned kClients = 24;
constexpr double kChildrenSecondsMax = 180;  // more than LIFE_S, on a loaded machine
constexpr uint64_t kLeastDram = 16 * kMiB;
// A process gets half of a sim: LUN, a child of it what it may come to need: as much as the `size`
// of Run::tiered, and what slots need.
constexpr uint64_t kSimPerCap = 50;

struct Life {
  const char* name;
  const char* faults;  // of a sim: LUN; nullptr: a file
  bool lossy;
};
// A page that four reads in a row fail is lost: one in 6e10 with these.
constexpr Life kLives[] = {
    {"file", nullptr, false},
    {"errors", "latency_us=40,read_error=1000,write_error=50,corrupt=1000", false},
    {"torn", "latency_us=40,torn=3000,misdirect=3000", true},
};

constexpr unsigned kLivesMin = std::size(kLives);

struct Plan {
  double seconds, save_every, life;
  unsigned pause_ms;
  const char* only;  // nullptr: all kinds of lives
};

struct Totals {
  unsigned lives = 0, kills = 0, kills_in_save = 0, ends_by_loss = 0, budgets = 0, replicas = 0;
  uint64_t gate_expired = 0, gate_refused = 0, saves = 0, rewrites = 0, read_errors = 0,
           write_errors = 0, evicted_pages = 0;
};

// Children of a process, held by descriptor: their numbers may be given to others when they have
// ended.
std::vector<int> children_of(pid_t pid) {
  std::vector<int> result;
  std::istringstream pids(text_of(fmt::format("/proc/{}/task/{}/children", pid, pid)));
  for (pid_t child; pids >> child;)
    if (const long fd = syscall(SYS_pidfd_open, child, 0); fd >= 0)
      result.push_back(static_cast<int>(fd));
  return result;
}

class Soak {
 public:
  Soak(const Run& run, const Plan& plan, uint64_t seed)
      : run_(run),
        plan_(plan),
        random_(seed),
        strings_{{board_, {"due", run.keys / 5, due_ms_max(plan), plan.pause_ms / 10}, seed},
                 {board_, {"size", run.keys / 5, 0, plan.pause_ms / 10}, seed}},
        limited_user_(board_, run.keys, plan.pause_ms, seed) {
    const uint64_t each = run.keys / kClients;
    for (unsigned i = 0; i < kClients; ++i)
      clients_.emplace_back(board_, i, i * each, each, seed, plan.pause_ms);
  }
  ~Soak() {
    board_.stop.store(true);
    for (std::thread& thread : threads_) thread.join();
    end_orphans();
  }

  void go() {
    for (SoakClient& client : clients_) threads_.emplace_back([&client] { client.run(); });
    for (SoakStrings& client : strings_) threads_.emplace_back([&client] { client.run(); });
    threads_.emplace_back([this] { limited_user_.run(); });
    for (double start = 0; !board_.stop.load() && (totals_.lives < kLivesMin || start == 0 ||
                                                   now_s() - start < plan_.seconds);
         ++totals_.lives) {
      live(next_life(), fmt::format("life{}", totals_.lives));
      if (start == 0 && filled()) start = now_s();
    }
    board_.stop.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    if (board_.failures.load() == 0) last_look();
    report();
  }

 private:
  ServerSetup setup(const Life& life, const std::string& name) const {
    const std::string lun = life.faults == nullptr
                                ? ""
                                : fmt::format("sim:{},seed={},{}", kSimPerCap * run_.cap,
                                              totals_.lives + 1, life.faults);
    const std::string further = fmt::format("{} {}", kAppend, SoakLimitedUser::kUser);
    Run run = run_;
    if (life.faults == nullptr)
      run.size_per_cap *= 2;  // what a replica has not received yet takes LUN space, too
    ServerSetup result = run.tiered("soak", "dump.rdb", further, lun);
    result.name = name;
    return result;
  }

  const Life& next_life() const {
    const auto* only = std::find_if(std::begin(kLives), std::end(kLives), [this](const Life& life) {
      return plan_.only != nullptr && strcmp(plan_.only, life.name) == 0;
    });
    return only != std::end(kLives) ? *only : kLives[totals_.lives % std::size(kLives)];
  }

  void publish(const RedisServer* server, bool lossy) {
    board_.lossy.store(lossy || (server == nullptr && board_.lossy.load()));
    const std::lock_guard hold(board_.lock);
    board_.port = server == nullptr ? 0 : server->port();
    board_.directory = std::filesystem::canonical(run_.scratch->file("soak"));
  }

  bool filled() const {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const SoakClient& client) { return client.filled(); });
  }

  void end_orphans() {
    for (const int fd : orphans_) {
      (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
      close(fd);
    }
    orphans_.clear();
  }

  void live(const Life& life, const std::string& name) {
    bool ended = false;
    try {
      const double start = now_s();
      RedisServer server(setup(life, name));
      server.set_patience(kReplySecondsMax);
      fmt::print("{}: {}, loaded in {:.1f} s\n", name, life.name, now_s() - start);
      end_orphans();
      room_ = lun_room(server, run_.cap);
      publish(&server, life.lossy);
      attend(server, life);
      if (board_.failures.load() != 0) fmt::print("{}\n", space_line(server.port()));
      orphans_ = children_of(server.pid());
      totals_.kills_in_save += !orphans_.empty();
      ++totals_.kills;
      publish(nullptr, life.lossy);
      kill(server.pid(), SIGKILL);
    } catch (const std::runtime_error& error) {
      publish(nullptr, life.lossy);
      if (!life.lossy) board_.fail(fmt::format("{} ({}): {}", name, life.name, error.what()));
      ended = true;
    }
    check_log(life, name, ended);
  }

  // A server that loses pages has said so before it ended; others have nothing to say.
  void check_log(const Life& life, const std::string& name, bool ended) {
    const std::string log = text_of(run_.scratch->file("soak/" + name + ".log")) +
                            text_of(run_.scratch->file("soak/" + name + ".err"));
    const bool lost = log.find("cannot be read back") != std::string::npos;
    totals_.ends_by_loss += ended && lost;
    if (board_.failures.load() != 0)
      fmt::print("{}: its log on space:\n{}", name, space_words(log));
    if (life.lossy) {
      if (ended && !lost)
        board_.fail(fmt::format("{} ({}) ended, and its log names no page:\n{}", name, life.name,
                                tail(log)));
      return;
    }
    // By signal 10, SIGUSR1, the server itself ends a child that is of no use any more: its last
    // replica has gone.
    for (const char* text : {"cannot be read back", "FATAL", "crashed by signal",
                             "terminated by signal", "BUG REPORT"})
      if (const size_t at = first_without(log, text, " 10\n"); at != std::string::npos)
        board_.fail(fmt::format("{} ({}): '{}' in its log:\n{}", name, life.name, text,
                                log.substr(at < 300 ? 0 : at - 300, 2000)));
  }
  static size_t first_without(const std::string& log, const std::string& text,
                              const std::string& behind) {
    size_t at = log.find(text);
    while (at != std::string::npos && log.compare(at + text.size(), behind.size(), behind) == 0)
      at = log.find(text, at + 1);
    return at;
  }
  // What it has said of its space.
  static std::string space_words(const std::string& log) {
    std::istringstream lines(log);
    std::string result;
    for (std::string line; std::getline(lines, line);)
      if (line.find("LUN") != std::string::npos || line.find("maxmemory") != std::string::npos)
        result += line + "\n";
    return tail(result);
  }
  static std::string tail(const std::string& text) {
    return text.substr(text.size() < 2000 ? 0 : text.size() - 2000);
  }

  // An error reply that is none of `excuse` throws, as a lost connection does. True: done.
  static bool ask(RedisServer& server, const Words& words, const char* excuse) {
    try {
      (void)server.command(words);
      return true;
    } catch (const std::runtime_error& error) {
      if (strstr(error.what(), "redis-server answers") == nullptr ||
          strstr(error.what(), excuse) == nullptr)
        throw;
      return false;
    }
  }

  void attend(RedisServer& server, const Life& life) {
    const double start = now_s();
    double next_save = start;
    bool saved = false, asked = false, rewritten = false;
    while (
        (now_s() < start + plan_.life || (!rewritten && now_s() < start + kChildrenSecondsMax)) &&
        !board_.stop.load()) {
      usleep(200'000);
      change_budget(server);
      if (!saved) saved = server.info("persistence", "rdb_last_bgsave_time_sec") != "-1";
      if (saved && !asked) asked = ask(server, {"BGREWRITEAOF"}, "already in progress");
      if (asked && !rewritten)
        rewritten = server.info("persistence", "aof_last_rewrite_time_sec") != "-1";
      if (now_s() >= next_save && (asked || !saved) && filled()) {
        next_save = std::max(next_save + plan_.save_every, now_s());
        (void)ask(server, {"BGSAVE", "SCHEDULE"}, "already in progress");
      }
      if (!life.lossy) check_children(server);
    }
    if (life.faults == nullptr) follow_with_replica(server);
    look_at_figures(server, life);
    if (const uint64_t dice = random_() % 3; dice > 0) {
      (void)(dice == 1 ? ask(server, {"BGSAVE", "SCHEDULE"}, "already in progress")
                       : ask(server, {"BGREWRITEAOF"}, "already in progress"));
      usleep(static_cast<useconds_t>(random_() % 300'000));
    }
  }

  void rest(double seconds) {
    for (const double start = now_s(); now_s() < start + seconds && !board_.stop.load();)
      usleep(10'000);
  }

  // The first is killed while it copies its master, or follows it; the second must come to be like
  // its master.
  void follow_with_replica(RedisServer& master) {
    const ServerSetup setup = run_.tiered("replica", "replica.rdb", "forks no");
    {
      RedisServer first(setup);
      (void)first.command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
      rest(plan_.life / 4 * static_cast<double>(random_() % 100) / 100);
      kill(first.pid(), SIGKILL);
    }
    RedisServer second(setup);
    second.set_patience(kReplySecondsMax);
    follow(second, master);
    rest(plan_.life / 8);
    const Quiet quiet(board_);
    wait_until("the end of the keys that expire", [&] {
      return master.info("keyspace", "db0").find("expires=0,") != std::string::npos;
    });
    wait_until("the end of the master's stream", [&] {
      return second.info("replication", "slave_repl_offset") ==
             master.info("replication", "master_repl_offset");
    });
    const std::string wanted = digest(master), got = digest(second);
    if (got != wanted)
      board_.fail(fmt::format("a replica's digest is {}, its master's {}:\n{}", got, wanted,
                              second.log_tail()));
    ++totals_.replicas;
  }

  void check_children(RedisServer& server) {
    for (const char* field :
         {"rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"})
      if (const std::string state = server.info("persistence", field); state != "ok")
        board_.fail(fmt::format("{} is '{}':\n{}", field, state, server.log_tail()));
  }

  void change_budget(RedisServer& server) {
    const uint64_t least = std::max(run_.cap / 2, kLeastDram),
                   wanted = (least + random_() % (2 * run_.cap - least)) / 4096 * 4096;
    (void)server.command({"CONFIG", "SET", "lunar.dram", std::to_string(wanted)});
    const uint64_t got = figure(server, "dram_budget_bytes");
    if (got != wanted) board_.fail(fmt::format("lunar.dram is {}, {} was set", got, wanted));
    ++totals_.budgets;
  }

  // As far as the server can have it. The figure is a sum of several, and for a moment too small as
  // a child begins or ends.
  static uint64_t lun_room(RedisServer& server, uint64_t wanted) {
    uint64_t room = 0;
    for (int i = 0; i < 20 && room < wanted; ++i, usleep(50'000))
      room = std::max(room, 2 * figure(server, "forks_refused_at_bytes"));
    return room;
  }

  void look_at_figures(RedisServer& server, const Life& life) {
    const uint64_t evicted = figure(server, "evicted_pages"), reads = figure(server, "read_errors"),
                   writes = figure(server, "write_errors"),
                   poisoned = figure(server, "poisoned_pages"),
                   peak = figure(server, "resident_peak_bytes");
    for (auto [field, total] :
         {std::pair{"rdb_saves", &totals_.saves}, std::pair{"aof_rewrites", &totals_.rewrites}})
      *total += strtoull(server.info("persistence", field).c_str(), nullptr, 10);
    totals_.evicted_pages += evicted;
    totals_.gate_expired += figure(server, "gate_expired");
    totals_.gate_refused += figure(server, "gate_refused");
    totals_.read_errors += reads;
    totals_.write_errors += writes;
    const bool errors = life.faults != nullptr && !life.lossy;
    if (evicted * 4096 < run_.cap)
      board_.fail(fmt::format("{}: {} pages evicted, less than the budget", life.name, evicted));
    if (peak > 2 * run_.cap)
      board_.fail(fmt::format("{}: tiered pages peaked at {:.1f} MiB", life.name, mib(peak)));
    if (errors && (reads == 0 || writes == 0))
      board_.fail(
          fmt::format("{}: {} read errors, {} write errors: none came", life.name, reads, writes));
    // What failed writes take from the LUN is missing to data: in the end writes are refused.
    const uint64_t wanted = room_ - room_ / 64, room = lun_room(server, wanted);
    if (!life.lossy && room < wanted)
      board_.fail(fmt::format("{}: of {:.1f} MiB of LUN {:.1f} are left", life.name, mib(room_),
                              mib(room)));
    if (!life.lossy && (poisoned != 0 || (!errors && reads + writes != 0)))
      board_.fail(fmt::format("{}: {} pages poisoned, {} read errors, {} write errors", life.name,
                              poisoned, reads, writes));
  }

  // Without the module: the files alone tell.
  void last_look() {
    {
      ServerSetup plain = run_.plain("soak", "none.rdb", kAppend);
      plain.name = "last";
      RedisServer server(plain);
      end_orphans();
      publish(&server, false);
      for (SoakClient& client : clients_)
        if (!client.verify_all()) board_.fail("the last server hung up");
      for (SoakStrings& client : strings_)
        if (!client.verify_all()) board_.fail("the last server hung up");
      publish(nullptr, false);
    }
    if (!std::filesystem::exists(run_.scratch->file("soak/dump.rdb")))
      return board_.fail("no BGSAVE has left a dump");
    const std::string digest = digest_of_dump(run_, "soak", "dump");
    if (digest.size() != 40 || digest == std::string(40, '0'))
      board_.fail("the last dump loads as " + digest);
  }

  void report() {
    SoakCounts sum;
    for (const SoakClient& client : clients_) {
      const SoakCounts& one = client.counts();
      sum.writes += one.writes, sum.reads += one.reads, sum.connections += one.connections;
      sum.in_doubt += one.in_doubt, sum.happened += one.happened, sum.errors += one.errors;
    }
    const Totals& t = totals_;
    fmt::print(
        "{} lives: {} killed ({} with a child), {} ended by a lost page; {} saves and {} rewrites "
        "begun, {} budgets\n"
        "{} writes acknowledged, {} reads checked, {} connections, {} steps in doubt ({} had "
        "happened), {} error "
        "replies of a lossy LUN\n"
        "{} pages evicted, {} read errors, {} write errors\n"
        "{} keys with an end written, {} of {} reads saw that they had gone, {} expired by the "
        "gate; {} rounds of "
        "sizes; "
        "{} commands refused, {} at the gate; {} replicas compared\n",
        t.lives, t.kills, t.kills_in_save, t.ends_by_loss, t.saves, t.rewrites, t.budgets,
        sum.writes, sum.reads, sum.connections, sum.in_doubt, sum.happened, sum.errors,
        t.evicted_pages, t.read_errors, t.write_errors, strings_[0].writes(), strings_[0].expired(),
        strings_[0].reads(), t.gate_expired, strings_[1].rounds(), limited_user_.refused(),
        t.gate_refused, t.replicas);
    if (board_.failures.load() != 0) return;
    require(t.lives >= kLivesMin && t.kills >= 2, "too few lives to show anything");
    require(t.saves >= 2 && t.rewrites >= 1, "too few saves and rewrites");
    require(strings_[0].expired() > 0 && strings_[1].rounds() > 1 && limited_user_.refused() > 0,
            "no key expired, sizes did not change, or nothing was refused");
    require(plan_.only != nullptr || (t.replicas > 0 && t.gate_expired > 0 && t.gate_refused > 0),
            "no replica was compared, or the gate had no part in it");
    require(sum.writes > run_.keys && sum.reads > run_.keys && sum.in_doubt > 0, "too little work");
  }

  static constexpr const char* kAppend =
      "--appendonly yes --appendfsync always --auto-aof-rewrite-percentage 100 "
      "--auto-aof-rewrite-min-size 512mb "
      "--repl-diskless-sync-delay 0";
  static uint64_t due_ms_max(const Plan& plan) {
    return static_cast<uint64_t>(plan.life * 1000 / 4);
  }
  const Run& run_;
  const Plan plan_;
  std::mt19937_64 random_;
  Board board_;
  std::deque<SoakClient> clients_;
  SoakStrings strings_[2];  // that expire; of other sizes
  SoakLimitedUser limited_user_;
  std::vector<std::thread> threads_;
  std::vector<int> orphans_;
  Totals totals_;
  uint64_t room_ = 0;  // bytes of LUN, when the server came up

 public:
  bool good() const { return board_.failures.load() == 0 && g_failures == 0; }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8 && argc != 9) {
    fmt::print(stderr,
               "usage: redis_soak MODULE SECONDS CAP_MIB VALUES_MIB SAVE_EVERY_S LIFE_S PAUSE_MS "
               "[LIFE]\n");
    return 2;
  }
  return run_test(argv, [argv](const std::string& seconds, const Run& run) {
    const uint64_t seed = tier::run_seed();
    Soak soak(run,
              {strtod(seconds.c_str(), nullptr), strtod(argv[5], nullptr), strtod(argv[6], nullptr),
               static_cast<unsigned>(strtoul(argv[7], nullptr, 10)), argv[8]},
              seed);
    soak.go();
    fmt::print("{}\n", soak.good() ? "nothing lost" : "failed");
    return soak.good() ? 0 : 1;
  });
}
