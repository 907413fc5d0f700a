// SPDX-License-Identifier: Apache-2.0
// `lunar bench fits`: the cost of Lunar for a program whose data fits into DRAM.
//
//   plain      the program alone
//   below      `lunar run`; the tree stays below its budget, so all memory is ordinary memory
//   activated  `lunar run`; the pager is activated when the data is there (LUNAR_ACTIVATE_AT),
//              adopts huge pages and keeps all pages resident
//
// Each runs with huge pages where the program asks for them (`madvise`) and everywhere (`always`).
// For the elapsed time, the three take turns in a rotating order. For the CPU time, they run at the
// same time on one CPU, so that disturbances of the clock and the caches affect all equally (turns
// differ by 20% on a shared machine, this by 1%). A ratio is that of one round; the report has the
// median, the least and the greatest. A run fails if a system was not in its state (activated: no
// activation, or evictions; below: an activation).
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "base/units.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/benches.h"
#include "tools/bench/progress.h"
#include "tools/bench/setup_journal.h"
#include "tools/support/clock.h"
#include "tools/support/host.h"
#include "tools/support/procfs.h"
#include "tools/support/redis_server.h"
#include "tools/support/text_file.h"

extern char** environ;

namespace lunar::tools {

namespace {

const std::vector<std::string> kSystems{"plain", "below", "activated"};

struct FitsOptions : BenchOptions {
  std::vector<std::string> programs{"chase", "redis", "python", "sqlite"};
  std::vector<std::string> huge_pages{"madvise", "always"};
};

struct Cost {
  double elapsed_s = 0, cpu_s = 0;
};

// CPU time of a running process with all its threads, to the nanosecond
// (/proc/PID/task/TID/schedstat).
double cpu_seconds_of(pid_t pid) {
  double total = 0;
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  DIR* directory = opendir(tasks.c_str());
  for (const dirent* entry; directory != nullptr && (entry = readdir(directory)) != nullptr;) {
    if (entry->d_name[0] == '.') continue;
    total +=
        strtod(
            read_text(fmt::format("{}/{}/schedstat", tasks, entry->d_name)).value_or("0").c_str(),
            nullptr) /
        1e9;
  }
  if (directory != nullptr) closedir(directory);
  return total;
}

struct Ended {
  Cost cost;
  std::string output, errors;
};

// As long as it exists, new processes run on the first CPU that this process may use.
class OneCpu {
 public:
  OneCpu() {
    (void)sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before_)) continue;
      CPU_SET(cpu, &one);
      break;
    }
    (void)sched_setaffinity(0, sizeof(one), &one);
  }
  ~OneCpu() { (void)sched_setaffinity(0, sizeof(before_), &before_); }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;

 private:
  cpu_set_t before_;
};

struct Started {
  pid_t pid = 0;
  uint64_t at_ns = 0;
  std::string name, out, err;
};

Started start_program(std::vector<std::string> words, const std::string& directory,
                      const std::string& label = "") {
  Started started{0, 0, words[0], directory + "/out" + label, directory + "/err" + label};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, started.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0600);
  posix_spawn_file_actions_addopen(&files, 2, started.err.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0600);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  started.at_ns = now_ns();
  const int error =
      posix_spawnp(&started.pid, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    throw std::runtime_error(
        fmt::format("{} cannot be started: {}", started.name, strerror(error)));
  return started;
}

Ended end_of(const Started& started) {
  int status = 0;
  rusage used{};
  while (wait4(started.pid, &status, 0, &used) < 0 && errno == EINTR) {}
  Ended ended;
  ended.cost.elapsed_s = static_cast<double>(now_ns() - started.at_ns) / 1e9;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  ended.cost.cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  ended.output = read_text(started.out).value_or("");
  ended.errors = read_text(started.err).value_or("");
  check_interrupted();
  if (status != 0)
    throw std::runtime_error(
        fmt::format("{} failed (status {}): {}", started.name, status, ended.errors));
  return ended;
}

Ended run_to_end(const std::vector<std::string>& words, const std::string& directory) {
  return end_of(start_program(words, directory));
}

uint64_t figure(const std::string& stats, const std::string& key) {
  const std::string line = fmt::format("lunar: stats: {} ", key);
  const size_t at = stats.rfind(line);
  return at == std::string::npos ? 0 : strtoull(stats.c_str() + at + line.size(), nullptr, 10);
}

class FitsBench {
 public:
  explicit FitsBench(const FitsOptions& options) : options_(options) {}
  BenchReport run();

 private:
  std::vector<std::string> wrapper(const std::string& system, uint64_t activate_at_mib = 48) const;
  void check_state(const std::string& workload, const std::string& system,
                   const std::string& stats);
  // A program counts as one operation, whose mean is the elapsed time.
  void add(const std::string& workload, const std::string& system, double elapsed_s, double cpu_s) {
    BenchRow row;
    row.system = system;
    row.workload = workload;
    RunResult run;
    run.ops = 1;
    run.ops_per_s = 1 / elapsed_s;
    run.seconds = elapsed_s;
    run.mean_ns = elapsed_s * 1e9;
    run.cpu_s = cpu_s;
    run.cpu_us_per_op = cpu_s * 1e6;
    report_.add(row, {run});
  }
  void program_round(const std::string& program, const std::string& mode, unsigned number);
  void redis_round(const std::string& mode, unsigned number);
  std::vector<std::string> command(const std::string& program, const std::string& system);
  Cost cost_of(const std::string& program, const Ended& ended) const;
  std::string python();
  std::vector<std::string> redis_load(RedisServer& server, const std::string& test) const;

  FitsOptions options_;
  BenchReport report_;
  std::string lunar_, directory_, python_;
  unsigned divisor_ = 1;  // of the work, larger with --quick
};

std::vector<std::string> FitsBench::wrapper(const std::string& system,
                                            uint64_t activate_at_mib) const {
  if (system == "plain") return {};
  // The tree never comes near its budget, so this variable activates the pager.
  if (system == "activated")
    setenv("LUNAR_ACTIVATE_AT", fmt::format("{}m", activate_at_mib).c_str(), 1);
  else
    unsetenv("LUNAR_ACTIVATE_AT");
  return {lunar_, "run", "--dram=2g", "--size=4g", "--lun=" + options_.lun, "--stats", "--"};
}

void FitsBench::check_state(const std::string& workload, const std::string& system,
                            const std::string& stats) {
  if (system == "plain") return;
  const uint64_t activated = figure(stats, "armed"), evictions = figure(stats, "evictions");
  if (stats.find("lunar: stats: armed ") == std::string::npos ||
      activated != (system == "activated" ? 1 : 0) || evictions != 0)
    report_.failures.push_back(fmt::format("{} {}: the pager was {}activated, with {} evictions",
                                           workload, system, activated ? "" : "not ", evictions));
}

std::vector<std::string> FitsBench::redis_load(RedisServer& server, const std::string& test) const {
  return {find_in_path("redis-benchmark"),
          "-p",
          fmt::format("{}", server.port()),
          "-t",
          test,
          "-n",
          fmt::format("{}", 100'000 / divisor_),
          "-r",
          "100000",
          "-d",
          "500",
          "-c",
          "16",
          "-P",
          "4",
          "--csv"};
}

// The three servers exist at the same time, on one CPU. They are loaded in turns for the elapsed
// time, and together for the CPU time.
void FitsBench::redis_round(const std::string& mode, unsigned number) {
  std::vector<std::unique_ptr<RedisServer>> servers;
  for (const std::string& system : kSystems) {
    ServerSetup setup;
    setup.redis_server = find_in_path("redis-server");
    setup.wrapper = wrapper(system);
    setup.directory = directory_;
    setup.name = "server-" + system;
    setup.saves = false;
    OneCpu one;
    servers.push_back(std::make_unique<RedisServer>(setup));
  }
  const size_t count = kSystems.size();
  for (const auto& [workload, test] :
       {std::pair{"fill", "set"}, std::pair{"set", "set"}, std::pair{"get", "get"}}) {
    std::vector<double> elapsed(count, 0), cpu(count, 0);
    const auto together = [&] {
      std::vector<Started> loads;
      for (size_t i = 0; i < count; ++i) cpu[i] -= cpu_seconds_of(servers[i]->pid());
      for (size_t i = 0; i < count; ++i)
        loads.push_back(start_program(redis_load(*servers[(i + number) % count], test), directory_,
                                      fmt::format("{}", i)));
      for (const Started& load : loads) (void)end_of(load);
      for (size_t i = 0; i < count; ++i) cpu[i] += cpu_seconds_of(servers[i]->pid());
    };
    together();  // also before the turns, because the first load is the fill
    for (size_t i = 0; i < 2 * count; ++i) {
      const size_t which = (i + i / count + number) % count;
      elapsed[which] += run_to_end(redis_load(*servers[which], test), directory_).cost.elapsed_s;
    }
    together();
    for (size_t i = 0; i < count; ++i)
      add(fmt::format("redis_{}_{}", workload, mode), kSystems[i], elapsed[i], cpu[i]);
  }
  for (size_t i = 0; i < count; ++i) {
    servers[i]->shut_down();
    check_state("redis_" + mode, kSystems[i],
                read_text(fmt::format("{}/server-{}.err", directory_, kSystems[i])).value_or(""));
  }
}

// The interpreter itself. The first python3 in PATH may be a script that starts dozens of processes
// to find it (pyenv).
std::string FitsBench::python() {
  if (python_.empty())
    python_ =
        run_to_end({find_in_path("python3"), "-c", "import sys; print(sys.executable, end='')"},
                   directory_)
            .output;
  return python_;
}

std::vector<std::string> FitsBench::command(const std::string& program, const std::string& system) {
  const uint64_t chase_mib = 128 / divisor_;
  // Called before LUNAR_ACTIVATE_AT is set.
  const std::string interpreter = program == "python" ? python() : "";
  std::vector<std::string> words =
      program == "chase" ? wrapper(system, chase_mib + chase_mib / 2) : wrapper(system);
  if (program == "chase") {  // memory that it commits after its data activates the pager
    words.insert(words.end(),
                 {own_directory() + "/lunar-bench", "fits-child", fmt::format("{}", chase_mib),
                  fmt::format("{}", 20'000'000 / divisor_)});
  } else if (program == "python") {
    words.insert(words.end(), {interpreter, "-c",
                               fmt::format("d = {{i: str(i) * 3 for i in range({0})}}\n"
                                           "s = 0\n"
                                           "for k in range({0}): s += len(d[(k * 7919) % {0}])\n"
                                           "l = sorted(d.values()); print(s, l[0])\n",
                                           1'000'000 / divisor_)});
  } else {
    words.insert(
        words.end(),
        {find_in_path("sqlite3"), ":memory:",
         fmt::format(
             "CREATE TABLE t (a INTEGER, b TEXT);WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
             "i + 1 FROM n WHERE i < {}) INSERT INTO t SELECT (i * 7919) % 1000003, hex(i * i) || "
             "'abcdefghijklmnopqrstuvwxyz' FROM n;CREATE INDEX x ON t (b); SELECT count(*), sum(a) "
             "FROM t WHERE b > '4';SELECT sum(length(u.b)) FROM t, t AS u WHERE t.rowid % 7 = 0 "
             "AND u.rowid = t.a;",
             1'000'000 / divisor_)});
  }
  return words;
}

// The chase measures its own time, after its setup. The others are measured from start to end.
Cost FitsBench::cost_of(const std::string& program, const Ended& ended) const {
  if (program != "chase") return ended.cost;
  Cost cost;
  if (sscanf(ended.output.c_str(), "%lf %lf", &cost.elapsed_s, &cost.cpu_s) != 2)
    throw std::runtime_error("chase: " + ended.errors);
  return cost;
}

void FitsBench::program_round(const std::string& program, const std::string& mode,
                              unsigned number) {
  const size_t count = kSystems.size();
  const std::string workload = program + "_" + mode;
  std::vector<double> elapsed(count), cpu(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t which = (i + number) % count;
    const Ended ended = run_to_end(command(program, kSystems[which]), directory_);
    elapsed[which] = cost_of(program, ended).elapsed_s;
    check_state(workload, kSystems[which], ended.errors);
  }
  std::vector<Started> started(count);
  {
    OneCpu one;
    for (size_t i = 0; i < count; ++i) {
      const size_t which = (i + number) % count;
      started[which] =
          start_program(command(program, kSystems[which]), directory_, kSystems[which]);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const Ended ended = end_of(started[i]);
    cpu[i] = cost_of(program, ended).cpu_s;
    check_state(workload, kSystems[i], ended.errors);
  }
  for (size_t i = 0; i < count; ++i) add(workload, kSystems[i], elapsed[i], cpu[i]);
}

BenchReport FitsBench::run() {
  SetupJournal journal;
  for (const std::string& swept : journal.sweep()) fmt::print(stderr, "lunar: bench: {}\n", swept);
  const WorkDirectory work(journal, fmt::format("/var/tmp/lunar-bench-{}", getpid()));
  directory_ = work.path();
  lunar_ = own_directory() + "/lunar";
  if (options_.quick) divisor_ = 2;
  const std::map<std::string, std::vector<std::string>> needs{
      {"redis", {"redis-server", "redis-benchmark"}},
      {"python", {"python3"}},
      {"sqlite", {"sqlite3"}}};
  Progress progress;
  for (const std::string& mode : options_.huge_pages) {
    std::optional<MachineSetting> huge_pages;
    try {
      huge_pages.emplace(journal, "thp").set(mode);
    } catch (const std::runtime_error& error) {
      report_.skipped[mode] = error.what();
      continue;
    }
    for (const std::string& program : options_.programs) {
      std::string missing;
      if (const auto found = needs.find(program); found != needs.end())
        for (const std::string& name : found->second)
          if (find_in_path(name).empty()) missing = name;
      if (!missing.empty()) {
        report_.skipped[program] = missing + " is not installed";
        continue;
      }
      progress.say(
          fmt::format("{}, huge pages {}: {} rounds of three", program, mode, options_.rounds));
      for (unsigned number = 0; number < options_.rounds; ++number)
        program == "redis" ? redis_round(mode, number) : program_round(program, mode, number);
    }
  }
  for (const BenchRow& ours : report_.rows)
    if (const BenchRow* plain = report_.find("plain", ours.workload, 1);
        ours.system != "plain" && plain != nullptr)
      report_.compare("plain", ours.workload + "_" + ours.system + "_", ours, *plain);
  return std::move(report_);
}

}  // namespace

// Follows one cycle through all cache lines in a random order. The data is written before the pager
// is activated (by memory that is committed and never touched), as in a program that grows.
int fits_child_main(int argc, char** argv) {
  struct alignas(64) Line {
    uint64_t next;
  };
  if (argc < 3) return 2;
  const uint64_t bytes = strtoull(argv[1], nullptr, 10) * kMiB,
                 steps = strtoull(argv[2], nullptr, 10), count = bytes / sizeof(Line);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* lines = static_cast<Line*>(memory);
  (void)madvise(lines, bytes, MADV_HUGEPAGE);
  for (uint64_t i = 0; i < count; ++i) lines[i].next = i;
  void* ballast = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (ballast == MAP_FAILED) return 1;
  uint64_t x = 88172645463325252ull;
  for (uint64_t i = count - 1; i > 0; --i) {  // Sattolo: one cycle
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::swap(lines[i].next, lines[x % i].next);
  }
  uint64_t at = 0;
  for (uint64_t i = 0; i < count; ++i) at = lines[at].next;  // one round as warm-up
  const uint64_t start = now_ns(), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  for (uint64_t i = 0; i < steps; ++i) at = lines[at].next;
  const uint64_t end = now_ns(), cpu_end = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  fmt::print("{:.6f} {:.6f} {}\n", static_cast<double>(end - start) / 1e9,
             static_cast<double>(cpu_end - cpu) / 1e9, at);
  return 0;
}

int fits_bench_main(int argc, char** argv) {
  Flags flags(
      "the cost of Lunar for programs whose data fits into DRAM: plain, below Lunar's budget, and "
      "activated",
      "lunar bench fits", true);
  FitsOptions options;
  const auto parse = [&] {
    options.rounds = 7;
    options.seconds = 0;  // the programs decide
    const BenchFlags common(flags, options, "directory for the LUN", "half the work, 3 rounds");
    add_choice(flags, "--programs", options.programs, std::vector<std::string>(options.programs),
               "programs to run");
    add_choice(flags, "--huge-pages", options.huge_pages,
               std::vector<std::string>(options.huge_pages),
               "modes of the whole machine, restored at the end");
    flags.parse(argc, argv);
    common.settle(0, 3);
  };
  return run_bench(flags, options, parse, [&] { return FitsBench(options).run(); });
}

}  // namespace lunar::tools
