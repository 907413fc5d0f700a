// SPDX-License-Identifier: Apache-2.0
// See redis_twin_pair.h.
#include "redis_twin_pair.h"

#include <sys/mman.h>

namespace e2e {
namespace {

const std::string kEnd = "$5\r\n<end>\r\n";
constexpr int64_t kStart_us = 1'700'000'000'000'000;

std::vector<Tree> parse_all(const std::string& bytes, size_t count) {
  std::vector<Tree> replies;
  size_t at = 0;
  while (replies.size() < count) replies.push_back(parse_reply(bytes, &at));
  if (bytes.compare(at, std::string::npos, kEnd) != 0)
    give_up(fmt::format("{} bytes follow {} replies", bytes.size() - at, count));
  return replies;
}

void wait_until_loaded(const Server& server) {
  wait_until("the end of a server's loading", [&] { return server.ask({"PING"}) == "+PONG\r\n"; });
}

}  // namespace

Clock::Clock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* page = fd < 0 || ftruncate(fd, 4096) != 0
                   ? MAP_FAILED
                   : mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (page == MAP_FAILED) give_up(fmt::format("{}: {}", path, strerror(errno)));
  us_ = static_cast<volatile int64_t*>(page);
  *us_ = kStart_us;
}

Clock::~Clock() { munmap(const_cast<int64_t*>(us_), 4096); }

Twins::Twins(const Scratch& scratch, const TwinSetup& setup, Commands& commands)
    : path_(scratch.path), setup_(setup), commands_(commands), clock_(scratch.file("clock")) {
  commands_.set_time_ms(clock_.ms());
}

// jemalloc's thread would spin while the clock stands still. DUMP's payloads are compared:
// compression leaves chance in them (LZF's table is not cleared). It is on while a child saves.
Words Twins::arguments_of(const std::string& name, bool tiered) const {
  Words words{"--dbfilename",
              name + ".rdb",
              "--appenddirname",
              name + ".aof",
              "--rdbcompression",
              "no",
              "--repl-diskless-sync-delay",
              "0",
              "--appendfsync",
              "no",
              "--auto-aof-rewrite-percentage",
              "0",
              "--jemalloc-bg-thread",
              "no"};
  if (!tiered || setup_.module.empty()) return words;
  const Words module{"--loadmodule", setup_.module,
                     "dram",         fmt::format("{}mb", setup_.cap_mib),
                     "size",         fmt::format("{}mb", setup_.cap_mib * 40),
                     "lun",          path_,
                     "gate",         setup_.gate ? "yes" : "no"};
  words.insert(words.end(), module.begin(), module.end());
  return words;
}

std::unique_ptr<Server> Twins::another(const std::string& name, const Words& further) {
  Words words = arguments_of(name, name != "plain");
  words.insert(words.end(), further.begin(), further.end());
  const Words environment{"LD_PRELOAD=" + setup_.clock_library, "FROZEN_CLOCK=" + path_ + "/clock",
                          "LC_ALL=C"};
  auto server = std::make_unique<Server>(path_, name, free_port(), words, Words{}, environment);
  // What has expired goes when it is looked at: at the same command in both.
  if (server->ask({"DEBUG", "SET-ACTIVE-EXPIRE", "0"}) != "+OK\r\n") give_up("DEBUG is refused");
  wait_until_loaded(*server);
  return server;
}

void Twins::start(const Words& further) {
  const char* names[] = {"tiered", "plain"};
  for (int i = 0; i < 2; ++i) {
    servers_[i] = another(names[i], further);
    for (unsigned c = 0; c < kConnections; ++c) wires_[i].emplace_back(servers_[i]->port());
    // Every second one speaks RESP3. Its greeting names versions and ids: not compared.
    for (unsigned c = 1; c < kConnections; c += 2) {
      wires_[i][c].send_all(resp({"HELLO", "3"}) + resp({"PING", "<end>"}));
      (void)wires_[i][c].receive_until(kEnd);
    }
  }
  load_scripts(*this, commands_);
}

void Twins::stop() {
  check_result(tiered(), "tiered");
  if (const uint64_t held = tiered().info("lunar_gate_held"); !setup_.module.empty())
    require(setup_.gate ? held >= 100 : held == 0, "the gate held {} commands", held);
  for (int i = 0; i < 2; ++i) {
    wires_[i].clear();
    (void)servers_[i]->ask({"SHUTDOWN", "NOSAVE", "NOW"});
    servers_[i].reset();
  }
}

void Twins::check_result(const Server& server, const std::string& name) {
  if (setup_.module.empty()) return;
  const uint64_t budget = setup_.cap_mib * kMiB,
                 evicted = server.info("lunar_evicted_pages") * 4096;
  const uint64_t read = server.info("lunar_lun_read_bytes");
  fmt::print(
      "  {:8} evicted {:.0f} MiB, read {:.0f} MiB from the LUN, {} commands held ({} late), "
      "resident peak {:.1f} MiB\n",
      name, mib(evicted), mib(read), server.info("lunar_gate_held"),
      server.info("lunar_gate_timeouts"), mib(server.info("lunar_resident_peak_bytes")));
  require(server.info("lunar_dram_budget_bytes") == budget, "{}: its budget is not {} MiB", name,
          setup_.cap_mib);
  require(evicted >= 2 * budget && read >= 2 * budget, "{}: it hardly tiered", name);
  require(server.info("lunar_resident_peak_bytes") <= budget,
          "{}: tiered pages peaked above the budget", name);
  for (const char* key : {"lunar_read_errors", "lunar_write_errors", "lunar_poisoned_pages"})
    require(server.info(key) == 0, "{}: {} is {}", name, key, server.info(key));
}

void Twins::send(unsigned connection, const Batch& batch) {
  std::string bytes;
  for (auto& step : batch) bytes += resp(step.words);
  bytes += resp({"PING", "<end>"});
  for (auto& wires : wires_) wires[connection].send_all(bytes);
  sent_ += batch.size();
}

std::vector<Tree> Twins::receive(unsigned connection, const Batch& batch) {
  std::string bytes[2];
  for (int i = 0; i < 2; ++i) {
    bytes[i] = wires_[i][connection].receive_until(kEnd);
    if (wires_[i][connection].ended())
      give_up(fmt::format("the {} server hung up on connection {}, its batch ends with {}",
                          i == 0 ? "tiered" : "plain", connection,
                          batch.empty() ? "nothing" : shown(batch.back().words)));
  }
  std::vector<Tree> replies[2] = {parse_all(bytes[0], batch.size()), {}};
  if (bytes[0] == bytes[1]) return std::move(replies[0]);
  replies[1] = parse_all(bytes[1], batch.size());
  std::vector<size_t> queued;  // steps since MULTI
  for (size_t s = 0; s < batch.size(); ++s) {
    const std::string& verb = batch[s].words[0];
    auto differ = [&](const Tree& a, const Tree& b, const Step& step) {
      const std::string x = canonical(a, step.order), y = canonical(b, step.order);
      if (x == y) return;
      size_t at = 0;
      while (at < x.size() && at < y.size() && x[at] == y[at]) ++at;
      const size_t from = at < 40 ? 0 : at - 40;
      give_up(
          fmt::format("step {} of {} on connection {}, about {} commands into the run{}: {}\n  "
                      "tiered: {}\n  plain:  {}\n"
                      "  at byte {}: '{}' and '{}'",
                      s, batch.size(), connection, sent_, &step == &batch[s] ? "" : " (in EXEC)",
                      shown(step.words), shown(x), shown(y), at, shown(x.substr(from, 120)),
                      shown(y.substr(from, 120))));
    };
    const Tree &a = replies[0][s], &b = replies[1][s];
    if (verb == "MULTI" || verb == "DISCARD") queued.clear();
    if (a.text == "QUEUED") queued.push_back(s);
    if (verb != "EXEC" || a.null || b.null || a.items.size() != queued.size() ||
        b.items.size() != queued.size()) {
      differ(a, b, batch[s]);
      continue;
    }
    for (size_t q = 0; q < queued.size(); ++q) differ(a.items[q], b.items[q], batch[queued[q]]);
    queued.clear();
  }
  return std::move(replies[0]);
}

std::vector<Tree> Twins::exchange(const std::vector<Batch>& batches) {
  for (unsigned c = 0; c < batches.size(); ++c)
    if (!batches[c].empty()) send(c, batches[c]);
  std::vector<Tree> all;
  for (unsigned c = 0; c < batches.size(); ++c) {
    if (batches[c].empty()) continue;
    for (auto& reply : receive(c, batches[c])) all.push_back(std::move(reply));
  }
  return all;
}

Tree Twins::ask(unsigned connection, const Step& step) {
  send(connection, {step});
  return receive(connection, {step})[0];
}

void Twins::tell(const Words& words) {
  for (auto& server : servers_) {
    const std::string reply = server->ask(words);
    if (reply.empty() || reply[0] == '-') give_up(fmt::format("{}: {}", shown(words), reply));
  }
}

std::string digest_of(const Server& server) { return server.ask({"DEBUG", "DIGEST"}); }

std::string Twins::digest() {
  Wire wires[] = {Wire(servers_[0]->port()), Wire(servers_[1]->port())};
  std::string digests[2];
  for (auto& wire : wires) wire.send_all(resp({"DEBUG", "DIGEST"}));
  for (int i = 0; i < 2; ++i) digests[i] = wires[i].receive_until("\r\n");
  if (digests[0] != digests[1])
    give_up(fmt::format("DEBUG DIGEST: {} tiered, {} plain", shown(digests[0]), shown(digests[1])));
  if (digests[0].size() != 43) give_up("DEBUG DIGEST answers " + shown(digests[0]));
  return digests[0];
}

void Twins::wait_until_both(const std::string& field, uint64_t value) {
  for (auto& server : servers_)
    wait_until(fmt::format("{} of {}", field, value), [&] { return server->info(field) == value; });
}

void Twins::set_ms(int64_t now) {
  clock_.set_ms(now);
  commands_.set_time_ms(now);
}

}  // namespace e2e
