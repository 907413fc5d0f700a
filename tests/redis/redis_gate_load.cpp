// SPDX-License-Identifier: Apache-2.0
// What the input gate is for, in figures: data at four times the DRAM, 16 clients that read 1 KiB
// values at random, and one that reads the same key all the time; with the gate and without, taking
// turns; medians of the turns.
//
//   redis_gate_load MODULE CAP_MIB SECONDS TURNS
//
// Every value is incompressible and checked. Fails unless the gate gives 1.3x the operations and
// the hot client 0.5x the p99. The load comes from one thread (its CPU is shown): on two CPUs it
// takes half of the machine. Threading: one thread. May not: leave files or processes behind.
#include "redis_gate.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <filesystem>
#include <random>

namespace {

using namespace e2e;

constexpr size_t kValueBytes = 1024;
constexpr unsigned kClients = 16;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

void fill_value(uint64_t key, char* out) {
  uint64_t x = key * 0x9E3779B97F4A7C15ull + 1;
  for (size_t i = 0; i < kValueBytes; i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    memcpy(out + i, &x, 8);
  }
}

struct Figures {
  double ops = 0, p50 = 0, p99 = 0, p999 = 0, hot_ops = 0, hot_p50 = 0, hot_p99 = 0, hot_p999 = 0,
         server_cpu = 0, load_cpu = 0;
};

double part(std::vector<uint64_t>& all, double fraction) {
  if (all.empty()) return 0;
  auto at = all.begin() + static_cast<long>(static_cast<double>(all.size() - 1) * fraction);
  std::nth_element(all.begin(), at, all.end());
  return static_cast<double>(*at) / 1000;  // microseconds
}

double cpu_of(pid_t pid) {
  std::string text = text_of(fmt::format("/proc/{}/stat", pid));
  unsigned long user = 0, system = 0;
  sscanf(text.c_str() + text.rfind(')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
         &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}
double own_cpu() {
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

struct Client {
  Wire wire;
  uint64_t key = 0, sent = 0;
  std::string in;
  bool hot = false;
};

void ask(Client& c, std::mt19937_64& random, uint64_t keys) {
  c.key = c.hot ? keys : random() % keys;
  const std::string text = resp({"GET", fmt::format("key:{}", c.key)});
  c.in.clear();
  c.sent = now_ns();
  if (send(c.wire.fd(), text.data(), text.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(text.size()))
    give_up("send");
}

Figures load(const Server& server, uint64_t keys, double seconds) {
  static std::mt19937_64 random(42);
  int events = epoll_create1(EPOLL_CLOEXEC);
  std::vector<Client> clients;
  for (unsigned i = 0; i <= kClients; ++i) {
    clients.push_back({Wire(server.port())});
    clients.back().hot = i == kClients;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = i;
    epoll_ctl(events, EPOLL_CTL_ADD, clients.back().wire.fd(), &event);
  }
  std::vector<uint64_t> cold, hot;
  const double cpu_before = cpu_of(server.pid()), own_before = own_cpu();
  const uint64_t start = now_ns(), end = start + static_cast<uint64_t>(seconds * 1e9);
  for (auto& c : clients) ask(c, random, keys);
  const size_t reply_bytes = 7 + kValueBytes + 2;  // $1024\r\n ... \r\n
  char expected[kValueBytes], buffer[4096];
  while (now_ns() < end) {
    epoll_event ready[32];
    int n = epoll_wait(events, ready, 32, 30000);
    if (n <= 0) give_up("no reply for 30 s");
    for (int i = 0; i < n; ++i) {
      Client& c = clients[ready[i].data.u32];
      ssize_t got = recv(c.wire.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got <= 0) give_up("the server is gone");
      c.in.append(buffer, static_cast<size_t>(got));
      if (c.in.size() < reply_bytes && c.in.compare(0, 3, "$-1") != 0) continue;
      (c.hot ? hot : cold).push_back(now_ns() - c.sent);
      fill_value(c.key, expected);
      if (c.in.size() != reply_bytes || memcmp(c.in.data() + 7, expected, kValueBytes) != 0)
        give_up(fmt::format("key:{} has a wrong value", c.key));
      ask(c, random, keys);
    }
  }
  const double took = static_cast<double>(now_ns() - start) * 1e-9;
  close(events);
  Figures f;
  f.ops = static_cast<double>(cold.size()) / took;
  f.hot_ops = static_cast<double>(hot.size()) / took;
  f.p50 = part(cold, 0.5), f.p99 = part(cold, 0.99), f.p999 = part(cold, 0.999);
  f.hot_p50 = part(hot, 0.5), f.hot_p99 = part(hot, 0.99), f.hot_p999 = part(hot, 0.999);
  f.server_cpu = (cpu_of(server.pid()) - cpu_before) / took;
  f.load_cpu = (own_cpu() - own_before) / took;
  return f;
}

void fill(const Server& server, uint64_t keys) {
  Wire wire(server.port());
  std::string value(kValueBytes, 0);
  for (uint64_t k = 0; k <= keys;) {
    std::string batch;
    for (unsigned i = 0; i < 500 && k <= keys; ++i, ++k) {
      fill_value(k, value.data());
      batch += resp({"SET", fmt::format("key:{}", k), value});
    }
    wire.send_all(batch + resp({"PING", "<end>"}));
    (void)wire.receive_until("$5\r\n<end>\r\n");
  }
}

Figures median(std::vector<Figures> all) {
  Figures m;
  for (double Figures::* field : {&Figures::ops, &Figures::p50, &Figures::p99, &Figures::p999,
                                  &Figures::hot_ops, &Figures::hot_p50, &Figures::hot_p99,
                                  &Figures::hot_p999, &Figures::server_cpu, &Figures::load_cpu}) {
    std::sort(all.begin(), all.end(),
              [&](const Figures& a, const Figures& b) { return a.*field < b.*field; });
    m.*field = all[all.size() / 2].*field;
  }
  return m;
}

void show(const char* name, const Figures& f) {
  fmt::print(
      "{:10} {:8.0f} op/s  p50 {:6.0f}  p99 {:6.0f}  p99.9 {:6.0f} us | hot {:7.0f} op/s  p50 "
      "{:5.0f}  p99 {:5.0f}  "
      "p99.9 {:5.0f} us | CPUs: server {:.2f}, load {:.2f}\n",
      name, f.ops, f.p50, f.p99, f.p999, f.hot_ops, f.hot_p50, f.hot_p99, f.hot_p999, f.server_cpu,
      f.load_cpu);
}

int run(const std::string& module, uint64_t cap_mib, double seconds, unsigned turns) {
  Scratch scratch;
  // a value takes 1280 bytes of the heap, its key and entry 64
  const uint64_t keys = cap_mib * kMiB * 4 / (kValueBytes + 320);
  std::vector<Figures> with, without;
  auto start = [&](const char* gate, int port) {
    return std::make_unique<Server>(
        scratch.path, std::string("gate-") + gate, port,
        Words{"--loadmodule", module, "dram", fmt::format("{}mb", cap_mib), "size",
              fmt::format("{}mb", cap_mib * 16), "lun", scratch.path, "gate", gate});
  };
  auto open = start("no", free_port());
  auto gated = start("yes", free_port());
  fill(*open, keys);
  fill(*gated, keys);
  fmt::print(
      "{} values of {} bytes, {} MiB of DRAM; {} clients read at random, one the same key; {} "
      "turns of {} s\n",
      keys, kValueBytes, cap_mib, kClients, turns, seconds);
  (void)load(*open, keys, 1), (void)load(*gated, keys, 1);
  for (unsigned turn = 0; turn < turns; ++turn) {
    without.push_back(load(*open, keys, seconds));
    show("  open", without.back());
    with.push_back(load(*gated, keys, seconds));
    show("  gate", with.back());
  }
  const Figures a = median(with), b = median(without);
  show("open", b);
  show("gate", a);
  fmt::print("gate / open: {:.2f}x op/s, p99 {:.2f}x, hot client's p99 {:.2f}x\n", a.ops / b.ops,
             a.p99 / b.p99, a.hot_p99 / b.hot_p99);
  fmt::print("held {}, rounds {}, fetched {}, timeouts {}, cold faults {}\n",
             gated->info("lunar_gate_held"), gated->info("lunar_gate_rounds"),
             gated->info("lunar_overlapped_reads"), gated->info("lunar_gate_timeouts"),
             gated->info("lunar_cold_faults"));
  require(a.ops > 1.3 * b.ops, "the gate gives {:.2f}x operations", a.ops / b.ops);
  require(a.hot_p99 < 0.5 * b.hot_p99, "the hot client's p99 is {:.2f}x", a.hot_p99 / b.hot_p99);
  return g_failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  return guarded([&] {
    return run(std::filesystem::absolute(argv[1]), strtoull(argv[2], nullptr, 10),
               strtod(argv[3], nullptr), static_cast<unsigned>(strtoul(argv[4], nullptr, 10)));
  });
}
