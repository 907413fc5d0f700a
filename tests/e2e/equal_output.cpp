// SPDX-License-Identifier: Apache-2.0
// Equal output: one program twice, plain and under `lunar run --dram CAP`, with the same input;
// what they print must be the same, byte for byte.
//
//   equal_output LUNAR WORKLOADS NAME SIZE CAP_MIB
//
// With the word `untiered` for LUNAR the second run is plain too, and the test passes only if that
// is found out.
//
// An untiered run does not pass. The plain run must need four times the cap; the tiered one must
// say, in the table of --stats, that it evicted at least twice its budget and stayed under it, and
// its resident set (its own word, and the kernel's by wait4) may peak at no more than the cap + 64
// MiB. Of a tree of processes (gcc and its cc1) the one that evicted most is looked at.
//
// Threading: one thread. May not: leave files or processes behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "e2e.h"

namespace {

using namespace e2e;

constexpr uint64_t kEvictedFactorMin = 2;  // of the budget
constexpr uint64_t kNeededFactorMin = 4;
constexpr size_t kOutputBytesMin = 40;
const std::string kUntiered = "untiered";

struct Setup {
  std::string workloads, scratch;
  uint64_t size;
};

struct Command {
  Words words;
  std::string input = "/dev/null";
};

// Lines in ascending windows, shuffled inside each, so that neighbours stay near.
std::string write_lines(const Setup& setup) {
  const std::string path = setup.scratch + "/lines";
  FILE* file = fopen(path.c_str(), "we");
  for (uint64_t first = 0; first < setup.size; first += 1024) {
    for (uint64_t j = 0; j < 1024; ++j) {
      const uint64_t i = first + (j * 389 + 77) % 1024;
      const std::string word = fmt::format("{:x}", i * 2654435761);
      fmt::print(file, "{:09} ", i);
      for (int k = 0; k < 14; ++k) fputs(word.c_str(), file);
      fputc('\n', file);
    }
  }
  fclose(file);
  return path;
}

// A C file of one table and many functions.
std::string write_c_file(const Setup& setup) {
  const std::string path = setup.scratch + "/large.c";
  FILE* file = fopen(path.c_str(), "we");
  fmt::print(file,
             "struct record {{ const char *name; unsigned a, b; double c; }};\nstatic const struct "
             "record table[] = {{\n");
  for (uint64_t i = 0; i < setup.size * 8; ++i)
    fmt::print(file, "  {{\"record {} of the table, {:x}\", {}u, 0x{:x}u, {}.5}},\n", i,
               i * 2654435761, i, i * 2654435761 & 0xffffffff, i);
  fmt::print(file, "}};\n");
  for (uint64_t i = 0; i < setup.size; ++i) {
    fmt::print(file,
               "static unsigned f{0}(unsigned x, const unsigned *p) {{\n  unsigned s = x ^ {1}u;\n"
               "  for (unsigned i = 0; i < (x & {2}); ++i) s = s * 31 + p[(s + i) & 15] + table[(s "
               "^ {0}) % {3}].a;\n"
               "  switch (s & 3) {{ case 0: return s + {0}; case 1: return s * 7 ^ x; case 2: "
               "return p[s & 7]; default: "
               "return s - 1; }}\n}}\n",
               i, i * 2654435761 & 0xffffffff, i % 61 + 3, setup.size * 8);
  }
  fmt::print(file, "unsigned all(unsigned x, const unsigned *p) {{\n  unsigned s = x;\n");
  for (uint64_t i = 0; i < setup.size; ++i) fmt::print(file, "  s += f{}(s, p);\n", i);
  fmt::print(file, "  return s;\n}}\n");
  fclose(file);
  return path;
}

std::string write_sql(const Setup& setup) {
  const std::string path = setup.scratch + "/input.sql";
  FILE* file = fopen(path.c_str(), "we");
  fmt::print(file, "CREATE TABLE size(n);\nINSERT INTO size VALUES({});\n.read {}/index.sql\n",
             setup.size, setup.workloads);
  fclose(file);
  return path;
}

// The distribution's program; what is missing is a skip that names it.
std::string program(const std::string& name) {
  std::string path = "/usr/bin/" + name;
  if (access(path.c_str(), X_OK) != 0) skip(name, path + " is not there");
  return path;
}

Command build(const std::string& name, const Setup& setup) {
  const std::string size = std::to_string(setup.size), folder = setup.workloads + "/";
  if (name == "python-dict") return {{program("python3"), "-S", "-E", folder + "dict.py", size}};
  if (name == "python-matrix")
    return {{program("python3"), "-S", "-E", folder + "matrix.py", size}};
  if (name == "sqlite")
    return {{program("sqlite3"), "-batch", "-init", "/dev/null", ":memory:"}, write_sql(setup)};
  if (name == "sort") return {{program("sort"), "-S", "2G", "--parallel=2", write_lines(setup)}};
  if (name == "perl") return {{program("perl"), folder + "records.pl", size}};
  if (name == "gcc") return {{program("gcc"), "-O0", "-S", "-o", "-", write_c_file(setup)}};
  if (access(name.c_str(), X_OK) == 0) return {{name, size}};  // a program of our own
  // a word that tools/test does not know: it fails there
  throw Skip{"workload", name + " is not there"};
}

struct Ended {
  int status = 0;
  double seconds = 0;
  uint64_t rss_bytes = 0;  // the largest of its processes, by the kernel
};

void child_main(const Words& words, const std::string& input, const std::string& output,
                const std::string& errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int in = open(input.c_str(), O_RDONLY),
            out = open(output.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600),
            err = open(errors.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(99);
  for (int fd = 3; fd < 64; ++fd) close(fd);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  _exit(98);
}

Ended run(const Words& words, const std::string& input, const std::string& output,
          const std::string& errors) {
  const double start = now_s();
  const pid_t child = fork();
  if (child == 0) child_main(words, input, output, errors);
  Ended ended;
  rusage usage{};
  while (wait4(child, &ended.status, 0, &usage) < 0 && errno == EINTR) {}
  ended.seconds = now_s() - start;
  ended.rss_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return ended;
}

std::string how(const Ended& ended) {
  if (WIFSIGNALED(ended.status))
    return fmt::format("killed by signal {} after {:.0f} s", WTERMSIG(ended.status), ended.seconds);
  return fmt::format("exit code {}", WEXITSTATUS(ended.status));
}

// Of the tables in `text`, the one with the most evictions.
Table busiest(std::string* text) {
  Table most;
  for (const auto& [id, table] : take_tables(text))
    if (most.empty() || number(table, "evictions") > number(most, "evictions")) most = table;
  return most;
}

// The first byte that differs, or -1.
int64_t first_difference(const std::string& a, const std::string& b) {
  FILE *first = fopen(a.c_str(), "re"), *second = fopen(b.c_str(), "re");
  int64_t at = first != nullptr && second != nullptr ? -1 : 0;
  static char x[1 << 16], y[1 << 16];
  for (int64_t done = 0; at < 0;) {
    const size_t n = fread(x, 1, sizeof(x), first), m = fread(y, 1, sizeof(y), second);
    const size_t common = n < m ? n : m;
    for (size_t i = 0; at < 0 && i < common; ++i)
      if (x[i] != y[i]) at = done + static_cast<int64_t>(i);
    if (at < 0 && n != m) at = done + static_cast<int64_t>(common);
    if (n == 0 && m == 0) break;
    done += static_cast<int64_t>(common);
  }
  if (first != nullptr) fclose(first);
  if (second != nullptr) fclose(second);
  return at;
}

void check_memory(const Table& table, const Ended& plain, const Ended& tiered, uint64_t cap) {
  require(plain.rss_bytes >= kNeededFactorMin * cap,
          "the plain run peaked at {:.0f} MiB, less than {} x the cap of {:.0f}",
          mib(plain.rss_bytes), kNeededFactorMin, mib(cap));
  require(tiered.rss_bytes <= cap + kOverhead, "its resident set peaked at {:.1f} MiB by wait4",
          mib(tiered.rss_bytes));
  check_table(table, cap, kEvictedFactorMin);
}

int compare(const std::string& lunar, const std::string& name, const Setup& setup, uint64_t cap) {
  auto file = [&](const char* leaf) { return setup.scratch + "/" + leaf; };
  const Command command = build(name, setup);
  const Ended plain = run(command.words, command.input, file("plain.out"), file("plain.err"));
  if (plain.status != 0) {
    fmt::print("FAIL: the plain run: {}\n{}", how(plain), text_of(file("plain.err")));
    return 1;
  }
  Words words;
  if (lunar != kUntiered)
    words = {lunar,     "run", fmt::format("--dram={}", cap), "--lun=" + setup.scratch,
             "--stats", "--"};
  words.insert(words.end(), command.words.begin(), command.words.end());
  const Ended tiered = run(words, command.input, file("tiered.out"), file("tiered.err"));
  std::string errors = text_of(file("tiered.err"));
  if (WIFEXITED(tiered.status) && WEXITSTATUS(tiered.status) == 125 &&
      errors.find("userfaultfd") != std::string::npos)
    skip("userfaultfd", errors.substr(0, errors.find('\n')));
  const Table table = busiest(&errors);
  require(tiered.status == 0, "the tiered run: {}", how(tiered));
  const int64_t at = first_difference(file("plain.out"), file("tiered.out"));
  const uint64_t bytes = std::filesystem::file_size(file("plain.out"));
  require(at < 0, "the outputs differ from byte {} of {} on", at, bytes);
  require(bytes >= kOutputBytesMin, "an output of {} bytes proves nothing", bytes);
  const std::string plain_errors = text_of(file("plain.err"));
  require(errors == plain_errors, "standard error differs:\n--- plain\n{}--- tiered\n{}",
          plain_errors, errors);
  check_memory(table, plain, tiered, cap);
  auto leaf = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
  fmt::print(
      "{:14} cap {:4.0f} MiB  needed {:6.1f}  peak RSS {:6.1f} (wait4 {:6.1f})  evicted {:7.1f} "
      "MiB  output {} bytes "
      "{}  plain {:.1f} s, tiered {:.1f} s\n",
      leaf(name), mib(cap), mib(plain.rss_bytes), mib(number(table, "peak_rss_bytes")),
      mib(tiered.rss_bytes), mib(number(table, "evictions_bytes")), bytes,
      at < 0 ? "equal" : "DIFFERENT", plain.seconds, tiered.seconds);
  if (lunar == kUntiered) return g_failures > 0 ? 0 : 1;
  if (g_failures > 0)
    for (const auto& [key, value] : table) fmt::print("  {} {}\n", key, value);
  return g_failures > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fmt::print(stderr, "usage: equal_output LUNAR WORKLOADS NAME|PROGRAM SIZE CAP_MIB\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  // The same hashes in both runs; nothing of ours in the plain one.
  for (const char* variable :
       {"LD_PRELOAD", "LUNAR_DRAM", "LUNAR_SIZE", "LUNAR_LUN", "LUNAR_STATS"})
    unsetenv(variable);
  for (const char* variable : {"PYTHONHASHSEED", "PERL_HASH_SEED", "PERL_PERTURB_KEYS"})
    setenv(variable, "0", 1);
  setenv("LC_ALL", "C", 1);
  const Scratch scratch;
  setenv("TMPDIR", scratch.path.c_str(), 1);
  const Setup setup{argv[2], scratch.path, strtoull(argv[4], nullptr, 10)};
  try {
    return compare(argv[1], argv[3], setup, strtoull(argv[5], nullptr, 10) * kMiB);
  } catch (const Skip& reason) {
    fmt::print("skip: {}: {}\n", reason.capability, reason.reason);
    return 77;
  }
}
