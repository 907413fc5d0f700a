// SPDX-License-Identifier: Apache-2.0
// The server's own latency monitor shows what cold data costs: `lunar-fault` when the main thread
// waited for a page, `lunar-stall` when it waited for many in one turn, `lunar-hold` when a client
// waited at the gate; only above latency-monitor-threshold, and nothing while that is 0. The LUN is
// one that takes its time.
//
//   redis_latency MODULE
//
// Threading: one thread. May not: leave files or processes behind.
#include "redis_gate.h"

namespace {

using namespace e2e;

constexpr unsigned kKeys = 12000, kValueBytes = 3000, kReads = 200;
const std::string kEnd = "$5\r\n<end>\r\n";

void fill(const Server& server) {
  Wire wire(server.port());
  for (unsigned k = 0; k < kKeys; k += 500) {
    std::string batch;
    for (unsigned i = k; i < k + 500; ++i)
      batch += resp({"SET", fmt::format("k{}", i),
                     std::string(kValueBytes, static_cast<char>('a' + i % 26))});
    wire.send_all(batch + resp({"PING", "<end>"}));
    (void)wire.receive_until(kEnd);
  }
}

// Reads that are cold, one after the other. Then the server's cron has had its turn.
void read(const Server& server, unsigned from) {
  Wire wire(server.port());
  for (unsigned i = 0; i < kReads; ++i) {
    wire.send_all(resp({"GET", fmt::format("k{}", (from + i * 97) % kKeys)}) +
                  resp({"PING", "<end>"}));
    (void)wire.receive_until(kEnd);
  }
  usleep(400000);
}

bool has(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

void set(const Server& server, const std::string& name, const std::string& value) {
  const std::string reply = server.ask({"CONFIG", "SET", name, value});
  require(reply == "+OK\r\n", "CONFIG SET {} {}: {}", name, value, reply);
}

int run(const std::string& module) {
  Scratch scratch;
  Server server(
      scratch.path, "server", free_port(),
      {"--loadmodule", module, "dram", "16mb", "lun", "sim:160m,latency_us=4000", "forks", "no"});
  fill(server);
  read(server, 0);
  std::string latest = server.ask({"LATENCY", "LATEST"});
  require(!has(latest, "lunar-"), "the monitor is off, and has {}", latest);
  set(server, "lunar.gate", "no");
  set(server, "latency-monitor-threshold", "3");
  read(server, 20);
  latest = server.ask({"LATENCY", "LATEST"});
  require(has(latest, "lunar-fault") && !has(latest, "lunar-hold"), "without the gate there is {}",
          latest);
  const std::string history = server.ask({"LATENCY", "HISTORY", "lunar-fault"});
  require(history.compare(0, 2, "*0") != 0, "no history of lunar-fault");
  // One command, many pages: each is short.
  (void)server.ask({"LATENCY", "RESET"});
  set(server, "latency-monitor-threshold", "40");
  Words many{"MGET"};
  for (unsigned i = 0; i < 40; ++i) many.push_back(fmt::format("k{}", (70 + i * 131) % kKeys));
  (void)server.ask(many);
  usleep(400000);
  latest = server.ask({"LATENCY", "LATEST"});
  require(has(latest, "lunar-stall"),
          "40 cold keys of one command: there is {}; {} faults of the main thread, {} ms", latest,
          server.info("lunar_main_cold_faults"), server.info("lunar_main_cold_fault_ms"));
  set(server, "latency-monitor-threshold", "3");
  set(server, "lunar.gate", "yes");
  read(server, 40);
  latest = server.ask({"LATENCY", "LATEST"});
  require(has(latest, "lunar-hold"), "with the gate there is {}; held {}", latest,
          server.info("lunar_gate_held"));
  (void)server.ask({"LATENCY", "RESET"});
  set(server, "latency-monitor-threshold", "60000");
  read(server, 60);
  latest = server.ask({"LATENCY", "LATEST"});
  require(!has(latest, "lunar-"), "nothing took a minute, and there is {}", latest);
  return verdict(server.log());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return guarded([&] { return run(std::filesystem::absolute(argv[1])); });
}
