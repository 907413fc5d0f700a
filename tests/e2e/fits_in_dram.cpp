// SPDX-License-Identifier: Apache-2.0
// What Lunar costs a program whose data fits into DRAM: a pointer chase over 128 MiB, and
// redis-benchmark's SET and GET, plain (huge pages off, as on tiered memory) against `lunar run
// --dram 1g`, taking turns.
//
//   fits_in_dram LUNAR PERCENT_MAX [ROUNDS]        prints medians and their ratio; fails above
//                                                  PERCENT_MAX
//
// The bound in the test suite is wide, as machines are shared; figures for the docs are of a quiet
// one. Threading: one thread. May not: leave files or processes behind.
#include <sys/prctl.h>

#include <algorithm>
#include <stdexcept>

#include "e2e.h"
#include "tools/support/redis_server.h"

namespace {

using namespace e2e;

constexpr const char* kRedisServer = "/usr/bin/redis-server";
constexpr const char* kRedisBenchmark = "/usr/bin/redis-benchmark";
constexpr uint64_t kChaseBytes = 128 * kMiB;
constexpr uint64_t kChaseSteps = 20'000'000;

// One cycle through all cache lines in a random order; nanoseconds a step.
int chase() {
  struct alignas(64) Line {
    uint64_t next;
  };
  const uint64_t count = kChaseBytes / sizeof(Line);
  auto* lines = static_cast<Line*>(aligned_alloc(64, kChaseBytes));
  if (lines == nullptr) return 1;
  for (uint64_t i = 0; i < count; ++i) lines[i].next = i;
  uint64_t x = 88172645463325252ull;
  for (uint64_t i = count - 1; i > 0; --i) {  // Sattolo: one cycle
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::swap(lines[i].next, lines[x % i].next);
  }
  uint64_t at = 0;
  for (uint64_t i = 0; i < count; ++i) at = lines[at].next;  // once round: warm
  const double start = now_s();
  for (uint64_t i = 0; i < kChaseSteps; ++i) at = lines[at].next;
  fmt::print("{} {}\n", (now_s() - start) * 1e9 / static_cast<double>(kChaseSteps), at);
  free(lines);
  return 0;
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) throw std::runtime_error(command + " cannot be started");
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  if (pclose(pipe) != 0) throw std::runtime_error(command + " failed");
  return text;
}

struct Backend {
  std::string wrapper;                  // "" or `LUNAR run ... --`
  std::vector<double> chase, set, get;  // ns a step; ns a request
};

void huge_pages(bool allowed) { (void)prctl(PR_SET_THP_DISABLE, allowed ? 0 : 1, 0, 0, 0); }

// redis-benchmark --csv: "SET","123456.00",...
double ns_per_request(const std::string& csv, const std::string& name) {
  const size_t at = csv.find("\"" + name + "\",\"");
  const double rate =
      at == std::string::npos ? 0 : strtod(csv.c_str() + at + name.size() + 4, nullptr);
  if (rate <= 0) throw std::runtime_error("redis-benchmark says nothing of " + name + ":\n" + csv);
  return 1e9 / rate;
}

void redis_run(Backend* backend, const Words& wrapper, const Scratch& scratch) {
  lunar::tools::ServerSetup setup;
  setup.redis_server = kRedisServer;
  setup.wrapper = wrapper;
  setup.directory = scratch.path;
  setup.name = "server";
  setup.saves = false;
  lunar::tools::RedisServer server(setup);
  const std::string csv = output_of(
      fmt::format("{} -p {} -t set,get -n 200000 -r 100000 -d 500 -c 16 -P 4 --csv 2>/dev/null",
                  kRedisBenchmark, server.port()));
  backend->set.push_back(ns_per_request(csv, "SET"));
  backend->get.push_back(ns_per_request(csv, "GET"));
  server.shut_down();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.size() % 2 ? values[values.size() / 2]
                           : (values[values.size() / 2 - 1] + values[values.size() / 2]) / 2;
}

void verdict(const char* what, const std::vector<double>& plain, const std::vector<double>& tiered,
             double percent_max) {
  const double a = median(plain), b = median(tiered), percent = (b / a - 1) * 100;
  fmt::print("{:14} plain {:8.1f} ns  lunar {:8.1f} ns  ratio {:.3f} ({:+.1f}%)\n", what, a, b,
             b / a, percent);
  require(percent <= percent_max, "{} is {:.1f}% slower, more than {:.0f}%", what, percent,
          percent_max);
}

int test(const char* self, const std::string& lunar_program, double percent_max, int rounds) {
  const Scratch scratch;
  const bool redis = access(kRedisServer, X_OK) == 0 && access(kRedisBenchmark, X_OK) == 0;
  Backend plain, tiered;
  const Words wrapper{lunar_program, "run", "--dram=1g", "--lun=" + scratch.path, "--"};
  for (const std::string& word : wrapper) tiered.wrapper += word + " ";
  for (int round = 0; round < rounds; ++round) {
    for (Backend* backend : {&plain, &tiered}) {
      huge_pages(backend == &tiered);
      backend->chase.push_back(
          strtod(output_of(fmt::format("{}{} chase", backend->wrapper, self)).c_str(), nullptr));
      if (redis) redis_run(backend, backend == &tiered ? wrapper : Words{}, scratch);
      huge_pages(true);
    }
  }
  verdict("pointer chase", plain.chase, tiered.chase, percent_max);
  if (redis) verdict("redis SET", plain.set, tiered.set, percent_max);
  if (redis) verdict("redis GET", plain.get, tiered.get, percent_max);
  return g_failures > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "chase") == 0) return chase();
  if (argc < 3) {
    fmt::print(stderr, "usage: fits_in_dram LUNAR PERCENT_MAX [ROUNDS]\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return test(argv[0], argv[1], strtod(argv[2], nullptr), argc > 3 ? atoi(argv[3]) : 5);
  } catch (const std::runtime_error& error) {
    fmt::print("FAIL: {}\n", error.what());
    return 1;
  }
}
