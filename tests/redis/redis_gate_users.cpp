// SPDX-License-Identifier: Apache-2.0
// Which clients the input gate reads from the LUN for, and what hostile clients can make it do.
// Counts only, no times.
//
//   redis_gate_users MODULE
//
//   allowed     a user that may do all, and one that may read some keys: their cold reads are held
//               (the control: the gate works)
//   noperm      a user without the command, and one without the keys: NOPERM, and nothing is held,
//               asked for or read
//   noauth      a client that has not said who it is: NOAUTH, likewise
//   elsewhere   keys that a command names where the server does not look for keys
//   split       commands of which the server has the first half before the rest comes: held like
//               whole ones
//   crowd       1,500 clients of one user that want a cold key each, all at once: none is passed
//               cold
//   one byte    2,100 connections that each sent the start of a command: the others' cold reads are
//               held as before
//   turns       clients of one user that want thirty times what one may have under way: they wait
//               for their turn, none is passed cold, another user is held as before, and INFO tells
//   unfinished  half a command behind a whole one: the server's protocol error comes, and a slow
//               sender is not idle
//
// Threading: one thread. May not: leave files or processes behind.
#include "redis_gate.h"

#include <sys/resource.h>

namespace {

using namespace e2e;

constexpr unsigned kKeys = 16000, kValueBytes = 3000, kReads = 2000, kBatch = 50;
constexpr unsigned kOneByteClients = 2100, kCrowd = 1500;
const std::string kEnd = "$5\r\n<end>\r\n";

std::string key_name(unsigned k) {
  return fmt::format("{}:{}", k % 2 == 0 ? "public" : "secret", k);
}

struct Figures {
  uint64_t held = 0, asked_for = 0, read_bytes = 0, overflows = 0, turns = 0;
};

struct Scene {
  Server& server;
  Wire admin;  // stays allowed to do all
  unsigned next = 0;

  std::string say(const Words& words, const std::string& end = "\r\n") {
    admin.send_all(resp(words));
    return admin.receive_until(end);
  }
  void set(const Words& words) {
    if (const std::string reply = say(words); reply != "+OK\r\n")
      give_up(fmt::format("{}: {}", words[0], reply));
  }
  uint64_t figure(const std::string& text, const std::string& name) {
    const size_t at = text.find("\nlunar_" + name + ":");
    if (at == std::string::npos) give_up("INFO has no lunar_" + name);
    return strtoull(text.c_str() + at + name.size() + 8, nullptr, 10);
  }
  Figures figures() {
    admin.send_all(resp({"INFO", "everything"}) + resp({"ECHO", "<end>"}));
    const std::string text = admin.receive_until(kEnd);
    return {figure(text, "gate_held"), figure(text, "overlapped_reads"),
            figure(text, "lun_read_bytes"), figure(text, "gate_overflows"),
            text.find("\nlunar_gate_turns:") == std::string::npos ? 0 : figure(text, "gate_turns")};
  }
};

Figures operator-(const Figures& a, const Figures& b) {
  return {a.held - b.held, a.asked_for - b.asked_for, a.read_bytes - b.read_bytes,
          a.overflows - b.overflows, a.turns - b.turns};
}

void fill(Scene& scene) {
  for (unsigned k = 0; k < kKeys; k += 500) {
    std::string batch;
    for (unsigned i = k; i < k + 500; ++i)
      batch +=
          resp({"SET", key_name(i), std::string(kValueBytes, static_cast<char>('a' + i % 26))});
    scene.admin.send_all(batch + resp({"ECHO", "<end>"}));
    (void)scene.admin.receive_until(kEnd);
  }
}

// Reads of keys that have not been read for long. `rest`: which keys, 0 public, 1 secret. How many
// replies begin with `wanted`.
unsigned read(Scene& scene, Wire& wire, unsigned rest, const std::string& wanted) {
  unsigned right = 0;
  for (unsigned n = 0; n < kReads; n += kBatch) {
    std::string batch;
    for (unsigned i = 0; i < kBatch; ++i) {
      scene.next = (scene.next + 2 * 97) % kKeys;
      batch += resp({"GET", key_name(scene.next / 2 * 2 + rest)});
    }
    wire.send_all(batch);
    std::string replies;
    const long lines = wanted[0] == '$' ? 2 * kBatch : kBatch;
    while (!wire.ended() && std::count(replies.begin(), replies.end(), '\n') < lines)
      replies += wire.receive_until("\r\n");
    for (size_t at = 0; (at = replies.find(wanted, at)) != std::string::npos; ++at) ++right;
  }
  return right;
}

Wire enter(Scene& scene, const std::string& user) {
  Wire wire(scene.server.port());
  wire.send_all(resp({"AUTH", user, "pw"}));
  if (const std::string reply = wire.receive_until("\r\n"); reply != "+OK\r\n")
    give_up(fmt::format("AUTH {}: {}", user, reply));
  return wire;
}

void must_be_nothing(const char* what, const Figures& did) {
  require(did.held == 0 && did.asked_for == 0 && did.read_bytes < kMiB,
          "{}: held {}, {} pieces asked for, {} bytes read from the LUN", what, did.held,
          did.asked_for, did.read_bytes);
  fmt::print("{}: held {}, asked for {}, read {} bytes\n", what, did.held, did.asked_for,
             did.read_bytes);
}

void allowed(Scene& scene) {
  for (const char* user : {"all", "reader"}) {
    Wire wire = enter(scene, user);
    const Figures before = scene.figures();
    const unsigned right = read(scene, wire, 0, "$3000\r\n");
    const Figures did = scene.figures() - before;
    require(right == kReads, "{}: {} values of {}", user, right, kReads);
    require(did.held >= kReads / kBatch / 2, "{}: held {} times: the gate does not serve it", user,
            did.held);
    fmt::print("{}: held {}, asked for {}, read {} bytes\n", user, did.held, did.asked_for,
               did.read_bytes);
  }
}

void noperm(Scene& scene) {
  for (const char* user : {"nothing", "reader"}) {
    Wire wire = enter(scene, user);
    const Figures before = scene.figures();
    const unsigned right = read(scene, wire, 1, "-NOPERM");
    must_be_nothing(user, scene.figures() - before);
    require(right >= kReads, "{}: {} refusals of {}", user, right, kReads);
  }
}

void noauth(Scene& scene) {
  scene.set({"CONFIG", "SET", "requirepass", "pw"});
  Wire wire(scene.server.port());
  const Figures before = scene.figures();
  const unsigned right = read(scene, wire, 1, "-NOAUTH");
  must_be_nothing("not authenticated", scene.figures() - before);
  require(right >= kReads, "not authenticated: {} refusals of {}", right, kReads);
}

void split(Scene& scene) {
  Wire wire = enter(scene, "all");
  const Figures before = scene.figures();
  constexpr unsigned kSplit = 300;
  for (unsigned i = 0; i < kSplit; ++i) {
    scene.next = (scene.next + 2 * 97) % kKeys;
    const std::string command = resp({"GET", key_name(scene.next)}),
                      behind = i % 2 == 0 ? "" : resp({"GET", key_name(scene.next + 1)});
    const size_t cut = 1 + i % (command.size() - 1);
    wire.send_all(command.substr(0, cut));
    usleep(1000);
    wire.send_all(command.substr(cut) + behind);
    std::string replies;
    while (!wire.ended() && std::count(replies.begin(), replies.end(), '\n') < (i % 2 == 0 ? 2 : 4))
      replies += wire.receive_until("\r\n");
    const std::string value(kValueBytes, static_cast<char>('a' + scene.next % 26)),
        next(kValueBytes, static_cast<char>('a' + (scene.next + 1) % 26));
    if (replies != "$3000\r\n" + value + "\r\n" + (i % 2 == 0 ? "" : "$3000\r\n" + next + "\r\n"))
      give_up("a wrong value: " + replies.substr(0, 60));
  }
  const Figures did = scene.figures() - before;
  require(did.held >= kSplit / 2, "of {} commands in two pieces {} were held", kSplit, did.held);
  fmt::print("split: held {}, asked for {}\n", did.held, did.asked_for);
}

// A group may have any name, "STREAMS" too: what follows it is no key to the server.
void elsewhere(Scene& scene) {
  Wire wire = enter(scene, "streamer");
  Figures before;
  for (unsigned i = 0; i < 300; ++i) {
    if (i == 1) before = scene.figures();  // public:0 itself may be cold once
    scene.next = (scene.next + 2 * 97) % kKeys;
    wire.send_all(resp({"XREADGROUP", "GROUP", "STREAMS", key_name(scene.next / 2 * 2 + 1),
                        "STREAMS", "public:0", ">"}));
    const std::string reply = wire.receive_until("\r\n");
    if (reply[0] != '-') give_up("XREADGROUP: " + reply);
  }
  must_be_nothing("elsewhere", scene.figures() - before);
}

void take_descriptors() {
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < kOneByteClients + 100)
    skip("descriptors", "no more than " + std::to_string(files.rlim_cur));
}

// The server reads what all of them have sent in one turn of its loop.
void crowd(Scene& scene) {
  std::vector<Wire> many;
  for (unsigned i = 0; i < kCrowd; ++i) many.push_back(enter(scene, "all"));
  const Figures before = scene.figures();
  kill(scene.server.pid(), SIGSTOP);
  for (unsigned i = 0; i < kCrowd; ++i) {
    scene.next = (scene.next + 97) % kKeys;
    // every third is too long for the smallest buffer
    many[i].send_all(resp({"GET", key_name(scene.next)}) +
                     (i % 3 == 0 ? resp({"ECHO", std::string(600, 'e')}) : ""));
  }
  kill(scene.server.pid(), SIGCONT);
  for (unsigned i = 0; i < kCrowd; ++i) {
    size_t bytes = 0;
    const size_t all = 7 + kValueBytes + 2 + (i % 3 == 0 ? 6 + 600 + 2 : 0);
    while (!many[i].ended() && bytes < all) bytes += many[i].receive_until("\r\n").size();
    if (bytes != all) give_up("GET: a wrong reply");
  }
  const Figures did = scene.figures() - before;
  require(did.overflows == 0 && did.held >= kCrowd / 2,
          "of {} clients at once {} were held, {} passed cold", kCrowd, did.held, did.overflows);
  fmt::print("crowd: held {}, turns {}, passed cold {}\n", did.held, did.turns, did.overflows);
}

void one_byte(Scene& scene) {
  std::vector<Wire> many;
  for (unsigned i = 0; i < kOneByteClients; ++i) {
    many.push_back(enter(scene, "all"));
    if (!many.back().open()) give_up("no more connections");
    many.back().send_all(i % 2 == 0 ? "*" : "ECHO a\r\n*");
  }
  Wire wire = enter(scene, "all");
  const Figures before = scene.figures();
  const unsigned right = read(scene, wire, 0, "$3000\r\n");
  const Figures did = scene.figures() - before;
  require(right == kReads, "one byte: {} values of {}", right, kReads);
  require(did.held >= kReads / kBatch / 2 && did.overflows == 0,
          "with {} clients that sent one byte: held {}, {} passed cold", kOneByteClients, did.held,
          did.overflows);
  fmt::print("with one byte: held {}, passed cold {}\n", did.held, did.overflows);
  for (Wire& one : many)
    one.send_all("1\r\n$4\r\nECHO\r\n");  // wrong arity: an error each, none is lost
  for (Wire& one : many) {
    const std::string reply = one.receive_until("command\r\n");
    if (one.ended() || reply.find("-ERR") == std::string::npos)
      return require(false, "one of the clients with one byte got '{}'", reply);
  }
}

void turns(Scene& scene) {
  constexpr unsigned kMany = 400, kEach = 50;
  std::vector<Wire> many;
  for (unsigned i = 0; i < kMany; ++i) many.push_back(enter(scene, "all"));
  Wire other = enter(scene, "reader");
  const Figures before = scene.figures();
  for (Wire& one : many) {
    Words words{"MGET"};
    for (unsigned i = 0; i < kEach; ++i)
      words.push_back(key_name(scene.next = (scene.next + 97) % kKeys));
    one.send_all(resp(words));
  }
  const unsigned right = read(scene, other, 0, "$3000\r\n");
  for (Wire& one : many) {
    size_t bytes = 0;
    while (!one.ended() && bytes < 5 + kEach * (7 + kValueBytes + 2))
      bytes += one.receive_until("\r\n").size();
    if (one.ended()) give_up("MGET: closed");
  }
  const Figures did = scene.figures() - before;
  require(did.turns >= kMany / 4 && did.overflows == 0,
          "{} clients of one user: {} times one waited for its turn, {} were passed cold", kMany,
          did.turns, did.overflows);
  require(right == kReads && did.held >= kMany + kReads / kBatch / 2,
          "with them {} values of {}, held {}", right, kReads, did.held);
  fmt::print("turns: {}, held {}, asked for {}, read {} bytes, passed cold {}\n", did.turns,
             did.held, did.asked_for, did.read_bytes, did.overflows);
}

void unfinished(Scene& scene) {
  g_socket_patience_s = 20;
  // a client that has not authenticated may send no large arguments: said as soon as one is
  // announced
  Wire unauthenticated(scene.server.port());
  unauthenticated.send_all("PING\r\n*1\r\n$20000\r\n");
  const std::string reply = unauthenticated.receive_until("bulk length\r\n");
  require(reply.find("-ERR Protocol error") != std::string::npos,
          "the protocol error does not come, but '{}'", reply);
  scene.set({"CONFIG", "SET", "timeout", "1"});
  Wire slow = enter(scene, "all");
  const std::string command = resp({"ECHO", "0123456789abcdef"}), whole = resp({"ECHO", "<end>"});
  slow.send_all(whole + command.substr(0, 12));
  (void)slow.receive_until(kEnd);
  for (size_t at = 12; at < command.size(); ++at) {
    if (send(slow.fd(), command.data() + at, 1, MSG_NOSIGNAL) != 1) break;
    usleep(250000);
  }
  const std::string echo = slow.receive_until("0123456789abcdef\r\n");
  require(!slow.ended() && echo == "$16\r\n0123456789abcdef\r\n",
          "a client that sends a byte each quarter of a second was taken for idle: '{}'", echo);
}

int run(const std::string& module) {
  Scratch scratch;
  Server server(scratch.path, "server", free_port(),
                {"--loadmodule", module, "dram", "16mb", "lun", "sim:1g,latency_us=200", "size",
                 "1gb", "forks", "no"});
  Scene scene{server, Wire(server.port())};
  scene.set({"ACL", "SETUSER", "all", "on", ">pw", "~*", "+@all"});
  scene.set({"ACL", "SETUSER", "reader", "on", ">pw", "~public:*", "+get"});
  scene.set({"ACL", "SETUSER", "nothing", "on", ">pw", "~*", "-@all"});
  scene.set({"ACL", "SETUSER", "streamer", "on", ">pw", "~public:*", "+xreadgroup"});
  take_descriptors();
  fill(scene);
  allowed(scene);
  noperm(scene);
  split(scene);
  elsewhere(scene);
  noauth(scene);
  crowd(scene);
  one_byte(scene);
  turns(scene);
  unfinished(scene);
  return verdict(server.log());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return guarded([&] { return run(std::filesystem::absolute(argv[1])); });
}
