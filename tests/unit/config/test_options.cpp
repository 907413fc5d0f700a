// SPDX-License-Identifier: Apache-2.0
// The options table: defaults, precedence, every bad value's line, nearest names, config files, the
// log and fatal(). Child processes catch what goes to standard error.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/units.h"
#include "config/options.h"
#include "config/variables.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "tests/catch.h"
#include "tests/support/stderr_of.h"

using namespace lunar;

namespace {

struct TempDir {
  std::string path;
  TempDir() {
    char name[] = "/tmp/lunar-options-XXXXXX";
    path = mkdtemp(name);
  }
  ~TempDir() { (void)!system(("rm -rf " + path).c_str()); }
  std::string write(const std::string& name, const std::string& text) const {
    (void)!system(("mkdir -p $(dirname " + path + "/" + name + ")").c_str());
    std::ofstream(path + "/" + name) << text;
    return path + "/" + name;
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("defaults are those of the table") {
  Options options;
  options_defaults(&options);
  CHECK(options.dram == 0);
  CHECK(std::string(options.lun) == "/var/tmp");
  CHECK(std::string(options.log) == "warning");
  CHECK(options.mmap);
  CHECK_FALSE(options.stats);
  CHECK(options.activate_at == 0);
  CHECK(option_count() > 10);
}

TEST_CASE("names fold prefix, case and dashes") {
  CHECK(option_find("dram") >= 0);
  CHECK(option_find("--dram") == option_find("dram"));
  CHECK(option_find("LUNAR_DRAM") == option_find("dram"));
  CHECK(option_find("--stats-file") == option_find("LUNAR_STATS_FILE"));
  CHECK(option_find("test_no_hash_check") == -1);  // no switch of the tests, in what ships
  CHECK(option_find("drm") == -1);
  CHECK(option_find("") == -1);
  CHECK(option_find(std::string(500, 'x').c_str()) == -1);
}

TEST_CASE("a name of an earlier version is its option's") {
  REQUIRE(option_find("activate_at") >= 0);
  CHECK(option_find("LUNAR_ARM_AT") == option_find("LUNAR_ACTIVATE_AT"));
  const char* environment[] = {"LUNAR_ARM_AT=3m", nullptr};
  Options options;
  options_defaults(&options);
  ErrorText why;
  REQUIRE(options_load_environment(&options, environment, &why) == 0);
  CHECK(options.activate_at == 3 * kMiB);
}

TEST_CASE("the nearest name is found, and none when nothing is near") {
  CHECK(std::string(option_nearest("--drma")) == "dram");
  CHECK(std::string(option_nearest("LUNAR_DRAMM")) == "dram");
  CHECK(std::string(option_nearest("--stat-file")) == "stats_file");
  CHECK(std::string(option_nearest("lum")) == "lun");
  CHECK(option_nearest("zzzzzz") == nullptr);
  CHECK(option_nearest("q") == nullptr);
  CHECK(option_nearest("foo") == nullptr);                // not `log`
  CHECK(option_nearest("statsfilled") == nullptr);        // three steps are another word
  CHECK(option_nearest("test_no_hash_chek") == nullptr);  // switches for tests are not offered
}

TEST_CASE("a bad value names its origin and what would do") {
  Options options;
  options_defaults(&options);
  ErrorText why;
  CHECK(options_set(&options, "dram", "lots", "--dram", &why) == -EINVAL);
  CHECK(std::string(why.text) ==
        "--dram: 'lots' is not a size; give a number with k, m, g or t, such as 256m");
  CHECK(options_set(&options, "dram", "", "--dram", &why) == -EINVAL);
  CHECK(options_set(&options, "size", "9999999t", "--size", &why) == -ERANGE);
  CHECK(options_set(&options, "handlers", "-1", "--handlers", &why) == -EINVAL);
  CHECK(options_set(&options, "gate_threads", "9", "--gate-threads", &why) == -EINVAL);
  CHECK(std::string(why.text) == "--gate-threads: 9 is out of range: 1 to 8");
  CHECK(options_set(&options, "gate_hold_ms", "0", "LUNAR_GATE_HOLD_MS", &why) == -EINVAL);
  CHECK(options.gate_hold_ms == 100);
  CHECK(options_set(&options, "gate_hold_ms", "10000", "LUNAR_GATE_HOLD_MS", &why) == 0);
  CHECK(options_set(&options, "stats", "maybe", "LUNAR_STATS", &why) == -EINVAL);
  CHECK(options_set(&options, "log", "loud", "--log", &why) == -EINVAL);
  CHECK(has(why.text, "error|warning|info"));
  CHECK(options_set(&options, "drma", "1g", "x.conf:3", &why) == -ENOENT);
  CHECK(std::string(why.text) == "x.conf:3: unknown option 'drma'; did you mean 'dram'?");
  CHECK(options.dram == 0);
  CHECK(std::string(options.log) == "warning");
}

TEST_CASE("good values are taken") {
  Options options;
  options_defaults(&options);
  ErrorText why;
  CHECK(options_set(&options, "--dram", "1.5g", "x", &why) == 0);
  CHECK(options.dram == 3 * kGiB / 2);
  CHECK(options_set(&options, "log", "INFO", "x", &why) == 0);
  CHECK(std::string(options.log) == "info");
  for (const char* yes : {"yes", "ON", "true", "1"}) {
    options.stats = false;
    CHECK(options_set(&options, "stats", yes, "x", &why) == 0);
    CHECK(options.stats);
  }
  char text[] = "/some/where";
  CHECK(options_set(&options, "lun", text, "x", &why) == 0);
  text[1] = 'X';  // a copy was kept
  CHECK(std::string(options.lun) == "/some/where");
}

TEST_CASE("the environment beats the config file beats the default") {
  TempDir dir;
  std::string home = "HOME=" + dir.path;
  dir.write(".config/lunar.conf", "# mine\n\n dram = 64m  # small\nstats=yes\nlun = /a#b");
  Options options;
  ErrorText why;
  const char* environment[] = {home.c_str(), "LUNAR_DRAM=128m", "LUNAR_SIZE=", "PATH=/bin",
                               nullptr};
  REQUIRE(options_load(&options, environment, &why) == 0);
  CHECK(options.dram == 128 * kMiB);
  CHECK(options.stats);
  CHECK(std::string(options.lun) == "/a#b");
  CHECK(options.size == 0);  // set but empty counts as not set
  CHECK(options.mmap);
}

TEST_CASE("a config file's mistakes name file and line") {
  TempDir dir;
  Options options;
  options_defaults(&options);
  ErrorText why;
  std::string path = dir.write("a.conf", "stats = yes\n\ndarm = 1g\n");
  CHECK(options_load_file(&options, path.c_str(), &why) == -EINVAL);
  CHECK(has(why.text, path + ":3: unknown option 'darm'; did you mean 'dram'?"));
  path = dir.write("b.conf", "stats\n");
  CHECK(options_load_file(&options, path.c_str(), &why) == -EINVAL);
  CHECK(has(why.text, path + ":1:"));
  path = dir.write("big.conf", std::string(200000, '#'));
  CHECK(options_load_file(&options, path.c_str(), &why) == -EFBIG);
  CHECK(options_load_file(&options, (dir.path + "/none").c_str(), &why) == -ENOENT);
  // Named by hand and missing: an error. Not named and missing: nothing.
  std::string named = "LUNAR_CONFIG=" + dir.path + "/none";
  const char* with_name[] = {named.c_str(), nullptr};
  CHECK(options_load(&options, with_name, &why) == -ENOENT);
  const char* empty[] = {nullptr};
  CHECK(options_load(&options, empty, &why) == 0);
}

TEST_CASE("an unknown variable is a warning with the nearest name, once a process tree") {
  int status = 0;
  auto load = [](std::initializer_list<const char*> variables) {
    const char* environment[8] = {};
    size_t n = 0;
    for (const char* variable : variables) environment[n++] = variable;
    Options options;
    options_defaults(&options);
    ErrorText why;
    if (options_load_environment(&options, environment, &why) != 0) _exit(9);
  };
  std::string text =
      lunar_test::stderr_of([&] { load({"LUNAR_DRMA=1g", "LUNAR_SEED=7", "LUNARIS=x"}); }, &status);
  CHECK(status == 0);
  CHECK(has(text, "unknown variable LUNAR_DRMA is ignored; did you mean LUNAR_DRAM?"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  text = lunar_test::stderr_of([&] { load({"LUNAR_FOO=1g"}); }, &status);
  CHECK(has(text,
            "unknown variable LUNAR_FOO is ignored; `lunar help options` lists those there are"));
  text = lunar_test::stderr_of([&] { load({"LUNAR_DRMA=1g", "LUNAR_ACCOUNT=700"}); }, &status);
  CHECK(text.empty());
  text = lunar_test::stderr_of([&] { load({"LUNAR_DRAM=much"}); }, &status);
  CHECK(WEXITSTATUS(status) == 9);
}

TEST_CASE(
    "variables of the libraries are no slips of options, and are offered for slips of their own") {
  const auto said = [](const char* variable) {
    return lunar_test::stderr_of([&] {
      const char* environment[] = {variable, nullptr};
      Options options;
      options_defaults(&options);
      ErrorText why;
      (void)options_load_environment(&options, environment, &why);
    });
  };
  CHECK(said("LUNAR_KV_DRAM=1g").empty());
  CHECK(said("LUNAR_RAID0_DEVICES=/dev/sdb").empty());
  CHECK(has(said("LUNAR_KV_DRAMM=1g"), "did you mean LUNAR_KV_DRAM?"));
  CHECK(has(said("LUNAR_KV_SZIE=1g"), "did you mean LUNAR_KV_SIZE?"));
  for (size_t i = 0; i < other_variable_count(); ++i)
    CHECK(option_find(other_variable(i).name) < 0);
}

TEST_CASE("the log is one line each, silent below warning, and limited where asked") {
  int status = 0;
  std::string text = lunar_test::stderr_of(
      [] {
        log_info("too quiet");
        log_warning("shown %d", 1);
        for (int i = 0; i < 9; ++i) LUNAR_LOG_LIMITED(log_error, 3, "again %d", i);
      },
      &status);
  CHECK_FALSE(has(text, "too quiet"));
  CHECK(has(text, "lunar: ["));
  CHECK(has(text, "] shown 1\n"));
  CHECK(has(text, "again 2 (further ones are not shown)\n"));
  CHECK_FALSE(has(text, "again 3"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
}

TEST_CASE("fatal prints one line, runs the hook, and aborts past the program's handler") {
  int status = 0;
  std::string text = lunar_test::stderr_of(
      [] {
        signal(SIGABRT, [](int) { _exit(3); });
        set_fatal_hook([] { (void)!write(2, "hook\n", 5); });
        fatal("page %d is lost", 7);
      },
      &status);
  CHECK(text == "lunar: FATAL: page 7 is lost\nhook\n");
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  text = lunar_test::stderr_of([] { LUNAR_CHECK(1 == 2, "x=%d", 5); }, &status);
  CHECK(has(text, "check failed: 1 == 2"));
  CHECK(WIFSIGNALED(status));
}
