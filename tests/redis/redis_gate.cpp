// SPDX-License-Identifier: Apache-2.0
// The input gate against a plain server: the same bytes, cut at the same places, sent to both on
// many connections; the replies must be the same bytes. The data set is several times the budget,
// so that commands are held all the time.
//
//   redis_gate module|run|both MODULE LUNAR KILLER_MODULE CAP_MIB ROUNDS
//
//   module      the module's gate
//   run         that of the preload library: `lunar run -- redis-server`
//   both        the same with the module on top, which shows its figures
//
//   pipelines   random commands of all types on 8 connections at once, with MULTI, SELECT, inline
//               commands, large values, bytes cut anywhere
//   blocking    commands behind a BLPOP; SUBSCRIBE
//   endings     half-closed, closed and reset in mid-hold, CLIENT KILL, descriptors used again
//   successors       clients that a module's thread ends in mid-hold; the next client with their
//                    descriptor gets nothing of theirs
//   pressure    a client that sends thousands of large reads and does not listen for a while
//
// At the end DEBUG DIGEST is equal, no socket has leaked, and the gate must have held clients a
// thousand times: otherwise nothing was tested. LUNAR_SEED= replays. Threading: one thread. May
// not: leave files or processes behind.
#include "redis_gate.h"
#include "tests/support/seed.h"

#include <filesystem>
#include <random>

namespace {

using namespace e2e;

constexpr unsigned kClients = 8, kKeysEach = 2500;
const std::string kEnd = "$5\r\n<end>\r\n";

struct Twins {
  const Server& tiered;
  const Server& plain;
  std::mt19937_64 random;

  uint64_t pick(uint64_t n) { return random() % n; }
  std::string text(size_t bytes) {
    std::string out(bytes, 0);
    uint64_t x = random() | 1;
    for (char& c : out)
      c = static_cast<char>("0123456789abcdefghijklmnopqrstuv"[(x = x * 6364136223846793005ull +
                                                                    1442695040888963407ull) >>
                                                               59]);
    return out;
  }
};

// What a random command is made of.
struct Choices {
  Twins& t;
  unsigned client;
  uint64_t k = t.pick(kKeysEach);
  std::string member = fmt::format("m{}", t.pick(60)), number = std::to_string(t.pick(1000));

  std::string key(const char* type) const { return fmt::format("c{}:{}:{}", client, type, k); }
  std::string other_key(const char* type) const {
    return fmt::format("c{}:{}:{}", client, type, t.pick(kKeysEach));
  }
};

Words on_string(const Choices& c, uint64_t which) {
  Twins& t = c.t;
  switch (which) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return {"GET", c.key("s")};
    case 5:
    case 6:
      return {"SET", c.key("s"), t.text(t.pick(40) == 0 ? 100000 : 200 + t.pick(2000))};
    case 7:
      return {"APPEND", c.key("s"), t.text(20)};
    case 8:
      return {"MGET", c.key("s"), c.other_key("s"), c.other_key("s"), "none"};
    case 9:
      return {"DEL", c.key("s"), c.other_key("h")};
    case 10:
      return {"EXISTS", c.key("s"), c.key("h"), c.key("l")};
    case 11:
      return {"RENAME", c.key("s"), c.other_key("s")};
    case 12:
      return {"EXPIRE", c.key("s"), "100000"};
    case 13:
      return {"EVAL", "return redis.call('GET', KEYS[1])", "1", c.key("s")};
    case 14:
      return {"SETRANGE", c.key("s"), "5", "abc"};
    default:
      return {"GETRANGE", c.key("s"), "0", "50"};
  }
}

Words on_part(const Choices& c, uint64_t which) {
  Twins& t = c.t;
  switch (which) {
    case 0:
      return {"HSET", c.key("h"), c.member, t.text(300), fmt::format("m{}", t.pick(60)), "2"};
    case 1:
    case 2:
      return {"HGET", c.key("h"), c.member};
    case 3:
      return {"HLEN", c.key("h")};
    case 4:
      return {"HDEL", c.key("h"), c.member};
    case 5:
      return {"RPUSH", c.key("l"), t.text(400), t.text(100)};
    case 6:
      return {"LPOP", c.key("l")};
    case 7:
      return {"LRANGE", c.key("l"), "-3", "-1"};
    case 8:
      return {"SADD", c.key("t"), c.member, t.text(30), c.number};
    case 9:
      return {"SISMEMBER", c.key("t"), c.member};
    case 10:
      return {"SORT", c.key("t"), "ALPHA"};
    case 11:
      return {"ZADD", c.key("z"), c.number, c.member, "7", t.text(30)};
    case 12:
      return {"ZRANGE", c.key("z"), "0", "5", "WITHSCORES"};
    case 13:
      return {"ZSCORE", c.key("z"), c.member};
    case 14:
      return {"XADD", c.key("x"), "MAXLEN", "20", "*", "f", t.text(200)};
    case 15:
      return {"XLEN", c.key("x")};
    default:
      return {"TYPE", c.key("z")};
  }
}

// Whole values, and ranges of them.
Words on_whole(const Choices& c, uint64_t which) {
  Twins& t = c.t;
  switch (which) {
    case 0:
      return {"LRANGE", c.key("l"), std::to_string(t.pick(9)), t.pick(2) ? "-1" : "6"};
    case 1:
      return {"LINDEX", c.key("l"), std::to_string(static_cast<int64_t>(t.pick(40)) - 20)};
    case 2:
      return {"XRANGE", c.key("x"), t.pick(2) ? "-" : fmt::format("({}-1", t.pick(100000)), "+"};
    case 3:
      return {"XREVRANGE", c.key("x"),
              "+",         t.pick(2) ? "-" : fmt::format("{}", t.pick(100000)),
              "COUNT",     std::to_string(1 + t.pick(9))};
    case 4:
      return {"XREAD",          "COUNT", std::to_string(1 + t.pick(30)), "STREAMS", c.key("x"),
              c.other_key("x"), "0",     std::to_string(t.pick(100000))};
    case 5:
      return {"ZRANGE", c.key("z"), "0", "-1", "WITHSCORES"};
    case 6:
      return {"ZREVRANGE", c.key("z"), std::to_string(t.pick(4)), std::to_string(t.pick(9))};
    case 7:
      return {"ZRANGEBYSCORE", c.key("z"), "-inf", "+inf"};
    case 8:
      return {"LPOS", c.key("l"), "none", "MAXLEN", "0"};
    case 9:
      return {"SINTERCARD", "2", c.key("t"), c.other_key("t")};
    case 10:
      return {"RPUSH", c.key("l"), t.text(t.pick(30) == 0 ? 20000 : 3000)};
    case 11:
      return {"ZADD", c.key("z"), c.number, t.text(70), "8", t.text(60)};
    default:
      return {"COPY", c.key("h"), c.other_key("h"), "REPLACE"};
  }
}

Words random_command(Twins& t, unsigned client) {
  const Choices choices{t, client};
  const uint64_t which = t.pick(46);
  if (which < 16) return on_string(choices, which);
  return which < 33 ? on_part(choices, which - 16) : on_whole(choices, which - 33);
}

// XADD's id tells the time: the same for both.
std::string bytes_of(Twins& t, Words words) {
  static uint64_t id = 1;
  for (auto& w : words)
    if (w == "*") w = fmt::format("{}-1", ++id);
  bool plain_words = words.size() > 1;
  for (auto& w : words)
    plain_words &= !w.empty() && w.size() < 100 && w.find_first_of(" '\"\r\n") == std::string::npos;
  if (!plain_words || t.pick(8) != 0) return resp(words);
  std::string line;
  for (auto& w : words) line += (line.empty() ? "" : " ") + w;
  return line + (t.pick(2) ? "\r\n" : "\n");
}

std::string random_batch(Twins& t, unsigned client) {
  std::string out;
  const bool multi = t.pick(5) == 0;
  if (t.pick(3) == 0) out += resp({"SELECT", std::to_string(t.pick(2))});
  if (multi) out += resp({"MULTI"});
  for (uint64_t n = 1 + t.pick(t.pick(10) == 0 ? 200 : 12); n > 0; --n)
    out += bytes_of(t, random_command(t, client));
  if (multi) out += resp({t.pick(6) == 0 ? "DISCARD" : "EXEC"});
  return out + resp({"PING", "<end>"});
}

std::string excerpt(const std::string& a, const std::string& b) {
  size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  const size_t from = at < 60 ? 0 : at - 60;
  return fmt::format("at byte {} of {} and {}: '{}' and '{}'", at, a.size(), b.size(),
                     a.substr(from, 120), b.substr(from, 120));
}

// Sends each client's batch to both servers, in pieces cut at the same places and mixed over the
// clients; then compares.
void exchange(Twins& t, std::vector<Wire>& tiered, std::vector<Wire>& plain,
              const std::vector<std::string>& batches) {
  std::vector<size_t> at(batches.size(), 0);
  for (bool more = true; more;) {
    more = false;
    for (size_t c = 0; c < batches.size(); ++c) {
      const size_t left = batches[c].size() - at[c];
      if (left == 0) continue;
      more = true;
      size_t piece = t.pick(4) == 0 ? 1 + t.pick(200) : t.pick(6) == 0 ? 1 + t.pick(20000) : left;
      piece = std::min(piece, left);
      tiered[c].send_all(batches[c].substr(at[c], piece));
      plain[c].send_all(batches[c].substr(at[c], piece));
      at[c] += piece;
    }
    if (t.pick(3) == 0) usleep(static_cast<useconds_t>(t.pick(300)));
  }
  for (size_t c = 0; c < batches.size(); ++c) {
    const std::string a = tiered[c].receive_until(kEnd), b = plain[c].receive_until(kEnd);
    require(a == b, "client {}: replies differ {}", c, excerpt(a, b));
  }
}

std::vector<Wire> connect(const Server& server, unsigned n) {
  std::vector<Wire> wires;
  for (unsigned i = 0; i < n; ++i) wires.emplace_back(server.port());
  return wires;
}

void pipelines(Twins& t, unsigned rounds) {
  auto a = connect(t.tiered, kClients), b = connect(t.plain, kClients);
  for (unsigned r = 0; r < rounds && g_failures == 0; ++r) {
    std::vector<std::string> batches;
    for (unsigned c = 0; c < kClients; ++c) batches.push_back(random_batch(t, c));
    exchange(t, a, b, batches);
  }
}

std::string cold_reads(Twins& t, unsigned n) {
  std::string out;
  for (unsigned i = 0; i < n; ++i)
    out += resp({"GET", fmt::format("c{}:s:{}", t.pick(kClients), t.pick(kKeysEach))});
  return out;
}

void blocking(Twins& t, unsigned rounds) {
  for (unsigned r = 0; r < rounds && g_failures == 0; ++r) {
    const std::string list = fmt::format("block:{}", r), channel = fmt::format("channel:{}", r);
    const std::string behind =
        resp({"BLPOP", list, "0"}) + cold_reads(t, 5) + resp({"SUBSCRIBE", channel});
    const std::string after = resp({"UNSUBSCRIBE"}) + cold_reads(t, 3) + resp({"PING", "<end>"}),
                      value = t.text(50);
    std::string replies[2];
    const Server* servers[] = {&t.tiered, &t.plain};
    for (int i = 0; i < 2; ++i) {
      Wire wire(servers[i]->port());
      wire.send_all(cold_reads(t, 0) + behind);
      usleep(2000);
      (void)servers[i]->ask({"RPUSH", list, value});
      replies[i] = wire.receive_until(":1\r\n");  // subscribed
      (void)servers[i]->ask({"PUBLISH", channel, value});
      wire.send_all(after);
      replies[i] += wire.receive_until(kEnd);
    }
    require(replies[0] == replies[1], "blocking: replies differ {}",
            excerpt(replies[0], replies[1]));
  }
}

void endings(Twins& t, unsigned rounds) {
  for (unsigned r = 0; r < rounds && g_failures == 0; ++r) {
    const std::string reads = cold_reads(t, 30), half = cold_reads(t, 1).substr(0, 20);
    {  // half-closed: every reply still comes, then the end (short ones: a server drops what is
       // left of long ones)
      std::string reads;
      for (int i = 0; i < 20; ++i)
        reads += resp(
            {"GETRANGE", fmt::format("c{}:s:{}", t.pick(kClients), t.pick(kKeysEach)), "0", "300"});
      Wire a(t.tiered.port()), b(t.plain.port());
      a.send_all(reads), b.send_all(reads);
      if (r % 2 == 0) a.send_all(half), b.send_all(half);
      a.end_of_input(), b.end_of_input();
      const std::string x = a.receive_to_the_end(), y = b.receive_to_the_end();
      require(x == y && a.ended(), "half-closed: replies differ {}", excerpt(x, y));
    }
    std::vector<Wire> gone = connect(t.tiered, 6);
    for (unsigned i = 0; i < gone.size(); ++i) {
      gone[i].send_all(cold_reads(t, 20));
      if (i % 3 != 0) usleep(static_cast<useconds_t>(t.pick(150)));
      gone[i].close(i % 2 == 0);
    }
    {  // killed in mid-hold; its number is used again at once
      Wire victim(t.tiered.port());
      victim.send_all(resp({"CLIENT", "ID"}));
      std::string id = victim.receive_until("\r\n");
      id = id.substr(1, id.size() - 3);
      Wire killer(t.tiered.port());
      victim.send_all(cold_reads(t, 400));
      killer.send_all(resp({"CLIENT", "KILL", "ID", id}));
      require(killer.receive_until("\r\n") == ":1\r\n", "CLIENT KILL found no client");
      (void)victim.receive_to_the_end();
      require(victim.ended(), "a killed client was not ended");
      Wire next(t.tiered.port()), other(t.plain.port());
      next.send_all(reads + resp({"PING", "<end>"})),
          other.send_all(reads + resp({"PING", "<end>"}));
      const std::string x = next.receive_until(kEnd), y = other.receive_until(kEnd);
      require(x == y, "after a kill: replies differ {}", excerpt(x, y));
    }
  }
}

void pressure(Twins& t) {
  const std::string value = t.text(60000);
  for (const Server* s : {&t.tiered, &t.plain})
    for (int i = 0; i < 20; ++i)
      (void)s->ask({"SET", fmt::format("large:{}", i), value + std::to_string(i)});
  std::string reads;
  for (int i = 0; i < 1500; ++i)
    reads += resp({"GET", fmt::format("large:{}", i % 20)}) + (i % 10 == 0 ? cold_reads(t, 1) : "");
  reads += resp({"PING", "<end>"});
  std::string replies[2];
  const Server* servers[] = {&t.tiered, &t.plain};
  for (int i = 0; i < 2; ++i) {
    Wire wire(servers[i]->port());
    // Nothing is listened to until the server cannot send any more.
    size_t at = 0;
    for (int idle = 0; at < reads.size() && idle < 20;) {
      ssize_t n =
          send(wire.fd(), reads.data() + at, reads.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0)
        at += static_cast<size_t>(n);
      else
        usleep(5000), ++idle;
    }
    usleep(100000);
    wire.send_all(reads.substr(at));
    replies[i] = wire.receive_until(kEnd);
  }
  require(replies[0] == replies[1], "under pressure: replies differ {}",
          excerpt(replies[0], replies[1]));
}

// Every key once, so that the data set is several times the budget.
void fill(Twins& t) {
  auto a = connect(t.tiered, 1), b = connect(t.plain, 1);
  for (unsigned c = 0; c < kClients; ++c) {
    std::string batch;
    for (unsigned k = 0; k < kKeysEach; ++k) {
      batch += resp({"SET", fmt::format("c{}:s:{}", c, k), t.text(2000)});
      batch += resp({"HSET", fmt::format("c{}:h:{}", c, k), "m1", t.text(200), "m2", t.text(400)});
      if (k % 2 == 0)
        batch += resp({"RPUSH", fmt::format("c{}:l:{}", c, k), t.text(700), t.text(700)});
      if (k % 4 == 0)
        batch += resp({"SADD", fmt::format("c{}:t:{}", c, k), t.text(100), t.text(100)});
    }
    exchange(t, a, b, {batch + resp({"PING", "<end>"})});
  }
}

// A client with commands that are held is ended by another thread of the server; the next one has
// its descriptor.
void successors(Twins& t, unsigned rounds) {
  Wire control(t.tiered.port());
  for (unsigned i = 0; i < rounds && g_failures == 0; ++i) {
    Wire victim(t.tiered.port());
    victim.send_all(resp({"CLIENT", "ID"}));
    std::string id = victim.receive_until("\r\n");
    id = id.substr(1, id.size() - 3);
    std::string reads;
    for (unsigned k = 0; k < 20; ++k)
      reads += resp({"GET", fmt::format("c{}:s:{}", t.pick(kClients), t.pick(kKeysEach))});
    victim.send_all(reads);
    control.send_all(resp({"KILLER.LATER", id}));
    if (const std::string reply = control.receive_until("\r\n"); reply != "+OK\r\n")
      give_up("KILLER.LATER: " + reply);
    (void)victim.receive_to_the_end();
    Wire successor(t.tiered.port());
    const std::string word = fmt::format("successor {}", i);
    successor.send_all(resp({"PING", word}));
    const std::string reply = successor.receive_until(word + "\r\n"),
                      wanted = fmt::format("${}\r\n{}\r\n", word.size(), word);
    require(reply == wanted, "successor {} got {} bytes: {}", i, reply.size(), reply.substr(0, 60));
  }
}

struct Setup {
  std::string how, module, lunar, killer;
  uint64_t cap_mib = 0;
  unsigned rounds = 0;
  bool has_module() const { return how != "run"; }
  Words arguments(const std::string& directory) const {
    Words words{"--loadmodule", killer};
    if (how == "run") return words;
    words.insert(words.end(), {"--loadmodule", module});
    if (how == "module")
      words.insert(words.end(), {"dram", fmt::format("{}mb", cap_mib), "size",
                                 fmt::format("{}mb", cap_mib * 40), "lun", directory});
    return words;
  }
  Words wrapper(const std::string& directory) const {
    if (how == "module") return {};
    return {lunar,
            "run",
            "--stats",
            "--dram",
            fmt::format("{}m", cap_mib),
            "--size",
            fmt::format("{}m", cap_mib * 40),
            "--lun",
            directory,
            "--"};
  }
};

// What the tier did in all: by INFO, or by the table that a server leaves when it ends.
void check_work(Server& tiered, const Setup& setup) {
  uint64_t held = 0, evicted = 0;
  if (setup.has_module()) {
    held = tiered.info("lunar_gate_held");
    evicted = tiered.info("lunar_evicted_pages");
  } else {
    const std::string pid = std::to_string(tiered.pid());
    std::string log = tiered.shut_down();
    const Table table = take_tables(&log)[pid];
    held = number(table, "gate_held");
    evicted = number(table, "evictions");
  }
  require(held >= setup.rounds * 5 / 2, "clients were held {} times: the gate was hardly tested",
          held);
  require(evicted * 4096 > 4 * setup.cap_mib * kMiB, "only {} pages were evicted", evicted);
  fmt::print("held {}, evicted {} pages\n", held, evicted);
}

int run(const Setup& setup) {
  Scratch scratch;
  const unsigned rounds = setup.rounds;
  const uint64_t seed = tier::run_seed();
  Server tiered(scratch.path, "tiered", free_port(), setup.arguments(scratch.path),
                setup.wrapper(scratch.path));
  Server plain(scratch.path, "plain", free_port(), {});
  Twins t{tiered, plain, std::mt19937_64(seed)};
  auto phase = [&, last = now_s()](const char* name) mutable {
    fmt::print("{:10} {:5.1f} s", name, now_s() - last);
    if (setup.has_module())
      fmt::print(", held {}, rounds {}, fetched {}, timeouts {}, overflows {}",
                 tiered.info("lunar_gate_held"), tiered.info("lunar_gate_rounds"),
                 tiered.info("lunar_overlapped_reads"), tiered.info("lunar_gate_timeouts"),
                 tiered.info("lunar_gate_overflows"));
    fmt::print("\n");
    last = now_s();
  };
  fill(t);
  phase("fill");
  const size_t sockets = tiered.sockets();
  pipelines(t, rounds);
  phase("pipelines");
  blocking(t, rounds / 10);
  phase("blocking");
  endings(t, rounds / 10);
  phase("endings");
  successors(t, rounds / 2);
  phase("successors");
  pressure(t);
  phase("pressure");
  pipelines(t, rounds / 4);
  phase("pipelines");
  const std::string digest = tiered.ask({"DEBUG", "DIGEST"});
  require(digest == plain.ask({"DEBUG", "DIGEST"}), "the data differs: DEBUG DIGEST {}", digest);
  for (int i = 0; i < 50 && tiered.sockets() > sockets; ++i) usleep(100000);
  require(tiered.sockets() <= sockets, "sockets leaked: {} were {}", tiered.sockets(), sockets);
  check_work(tiered, setup);
  return verdict(tiered.log(), "the tiered server's log");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  return guarded([&] {
    return run({argv[1], std::filesystem::absolute(argv[2]), std::filesystem::absolute(argv[3]),
                std::filesystem::absolute(argv[4]), strtoull(argv[5], nullptr, 10),
                static_cast<unsigned>(strtoul(argv[6], nullptr, 10))});
  });
}
