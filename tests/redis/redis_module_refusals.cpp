// SPDX-License-Identifier: Apache-2.0
// What the Redis module does with bad input and at its limits: one line that says what to fix, and
// the server starts or refuses as Redis does.
//
//   redis_module_refusals MODULE LUNAR OTHER_MALLOC OLD_KERNEL
//
// OTHER_MALLOC: a library that puts another malloc under the server. OLD_KERNEL: one that makes its
// kernel look old. The module is also loaded here, into a server that is too old (a context that
// hands out nothing but a log). Threading: one thread. May not: leave files or processes behind.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <stdexcept>

#include "redis_values.h"
#include "tests/e2e/e2e.h"
#include "tools/support/redis_server.h"

namespace {

using namespace e2e;
using lunar::tools::RedisServer;
using lunar::tools::Reply;
using lunar::tools::ServerSetup;

struct Run {
  std::string module, lunar, other_malloc, old_kernel;
  const Scratch* scratch = nullptr;
  ServerSetup setup(const std::string& further, std::vector<std::string> wrapper = {}) const {
    ServerSetup result;
    result.redis_server = redis_server();
    result.directory = scratch->path;
    result.name = "server";
    result.saves = false;
    result.wrapper = std::move(wrapper);
    result.wrapper.insert(result.wrapper.end(), {"/bin/sh", "-c", "exec \"$@\" " + further, "sh"});
    return result;
  }
  std::string load(const std::string& arguments) const {
    return "--loadmodule " + module + " " + arguments;
  }
  std::string good(const std::string& more = "") const {
    return load(fmt::format("dram 16mb lun {} size 64mb ", scratch->path) + more);
  }
  std::string log() const { return text_of(scratch->file("server.log")); }
  void fresh() const {
    unlink(scratch->file("server.log").c_str());
    unlink(scratch->file("dump.rdb").c_str());
  }
};

// The server must not start, with `text` in one line of its log.
void must_refuse(const Run& run, const ServerSetup& setup, const std::string& text) {
  run.fresh();
  try {
    RedisServer server(setup);
    require(false, "it started; expected: {}", text);
  } catch (const std::runtime_error&) {
    const std::string log = run.log();
    size_t lines = 0;
    // At load; "# " is the level of warnings.
    for (size_t at = log.find("# <lunar>"); at != std::string::npos;
         at = log.find("# <lunar>", at + 1))
      ++lines;
    require(log.find(text) != std::string::npos, "its log does not say '{}':\n{}", text, log);
    require(lines <= 1, "{} lines where one is enough:\n{}", lines, log);
  }
}

// The text of an error reply; "" when it is none.
std::string error_of(RedisServer& server, const Words& words) {
  try {
    (void)server.command(words);
  } catch (const std::runtime_error& error) { return error.what(); }
  return {};
}

void must_err(RedisServer& server, const Words& words, const std::string& text) {
  const std::string error = error_of(server, words);
  require(error.find(text) != std::string::npos, "{} {}: '{}' instead of '{}'", words[0],
          words.size() > 1 ? words[1] : "", error, text);
}

std::string config(RedisServer& server, const std::string& name) {
  const Reply reply = server.command({"CONFIG", "GET", name});
  return reply->elements == 2 ? reply->element[1]->str : "";
}

void bad_arguments(const Run& run) {
  must_refuse(run, run.setup(run.load("dram 4xb")), "loadmodule dram: '4xb' is not a size");
  must_refuse(run, run.setup(run.load("dam 4gb")), "unknown option 'dam'; did you mean 'dram'?");
  must_refuse(run, run.setup(run.load("dram")), "'dram' has no value");
  must_refuse(run, run.setup(run.load("gate-threads 99")), "99 is out of range: 1 to 8");
  must_refuse(run, run.setup(run.load("forks perhaps")), "neither yes nor no");
  must_refuse(run, run.setup(run.load("mmap no")), "is not for this module");
  must_refuse(run, run.setup(run.load("dram 1mb lun " + run.scratch->path)),
              "is too small; give at least");
  must_refuse(run, run.setup(run.load("dram 64mb size 32mb lun " + run.scratch->path)),
              "smaller than the DRAM budget");
  must_refuse(run, run.setup(run.load("dram 16mb lun " + run.scratch->file("not-there/at-all"))),
              "not-there");
  must_refuse(
      run,
      run.setup(run.load("dram 16mb size 64mb lun " + run.scratch->path) + " --lunar.dram 12zb"),
      "lunar.dram");
  must_refuse(run, run.setup(run.good() + run.load("")), "the module is loaded already");
  must_refuse(run, run.setup(run.good(), {"/usr/bin/env", "LD_PRELOAD=" + run.old_kernel}),
              "Linux 6.8 or newer");
  const Words preload{"/usr/bin/env", "LD_PRELOAD=" + run.other_malloc};
  try {
    RedisServer without(run.setup("", preload));
  } catch (const std::runtime_error&) {
    fmt::print(
        "this server does not run with another malloc at all (it calls jemalloc by name): that "
        "refusal is not "
        "tested\n");
    return;
  }
  must_refuse(run, run.setup(run.good(), preload), "lunar run -- redis-server");
}

void settings(const Run& run) {
  run.fresh();
  RedisServer server(run.setup(run.good("forks no gate-hold-ms 50 ") +
                               "--enable-module-command local --lunar.dram 24mb"));
  require(config(server, "lunar.dram") == std::to_string(24 * kMiB), "lunar.dram is {}",
          config(server, "lunar.dram"));
  require(config(server, "lunar.gate-hold-ms") == "50", "lunar.gate-hold-ms is {}",
          config(server, "lunar.gate-hold-ms"));
  (void)server.command({"CONFIG", "SET", "lunar.dram", "32mb"});
  require(server.info("lunar", "lunar_dram_budget_bytes") == std::to_string(32 * kMiB),
          "the budget did not change");
  must_err(server, {"CONFIG", "SET", "lunar.dram", "1mb"}, "too small");
  must_err(server, {"CONFIG", "SET", "lunar.lun", "/tmp"}, "immutable");
  must_err(server, {"MODULE", "UNLOAD", "lunar"}, "ERR");
  require(run.log().find("restart the server without the module") != std::string::npos,
          "no reason why it is not unloaded");
  must_err(server, {"MODULE", "LOAD", run.module}, "ERR");
  const std::string ceiling = config(server, "maxmemory");
  require(ceiling == std::to_string(56 * kMiB), "maxmemory is {} at load", ceiling);
  (void)server.command({"CONFIG", "SET", "maxmemory", "1gb"});
  for (int i = 0; i < 100 && config(server, "maxmemory") != ceiling; ++i) usleep(20'000);
  require(config(server, "maxmemory") == ceiling, "maxmemory stays {}",
          config(server, "maxmemory"));
  (void)server.command({"CONFIG", "SET", "maxmemory", "10mb"});
  usleep(100'000);
  require(config(server, "maxmemory") == std::to_string(10 * kMiB),
          "a lower maxmemory was changed");
}

// A full LUN is an OOM reply to writes; reads go on, and a save that has no room is refused.
void full(const Run& run) {
  run.fresh();
  RedisServer server(run.setup(run.good()));
  uint64_t keys = 0;
  std::string error;
  for (; error.empty() && keys < 100'000; ++keys)
    error = error_of(server, {"SET", fmt::format("key:{}", keys), content(keys, 1, kKeyBytes)});
  require(error.find("OOM command not allowed") != std::string::npos, "after {} keys: '{}'", keys,
          error);
  require(keys * kKeyBytes > 20 * kMiB, "full after {} keys", keys);
  for (uint64_t key = 0; key + 1 < keys; key += 7) {
    const Reply reply = server.command({"GET", fmt::format("key:{}", key)});
    require(std::string(reply->str, static_cast<size_t>(reply->len)) == content(key, 1, kKeyBytes),
            "key {} is not right", key);
  }
  (void)server.command({"SAVE"});
  (void)server.command({"BGSAVE"});  // the ceiling leaves room for it
  for (int i = 0; i < 1500 && server.info("persistence", "rdb_bgsave_in_progress") != "0"; ++i)
    usleep(20'000);
  require(server.info("persistence", "rdb_last_bgsave_status") == "ok",
          "BGSAVE of a full server failed:\n{}", server.log_tail());
  (void)server.command({"CONFIG", "SET", "lunar.forks", "no"});
  usleep(200'000);
  error.clear();
  for (; error.empty() && keys < 100'000; ++keys)
    error = error_of(server, {"SET", fmt::format("key:{}", keys), content(keys, 1, kKeyBytes)});
  require(error.find("OOM command not allowed") != std::string::npos, "after {} keys: '{}'", keys,
          error);
  must_err(server, {"BGSAVE"}, "ERR");  // no room for a child
  require(run.log().find("fork refused") != std::string::npos,
          "it does not say why it cannot fork:\n{}", server.log_tail());
  (void)server.command({"SAVE"});
  (void)server.command({"DEL", "key:0"});
  require(server.command({"PING"})->type == REDIS_REPLY_STATUS, "it does not answer any more");
}

long long number(RedisServer& server, const Words& words) { return server.command(words)->integer; }

// A member of the map that LUNAR MEMORY gives.
long long memory_of(RedisServer& server, const std::string& key, const std::string& member) {
  const Reply reply = server.command({"LUNAR", "MEMORY", key});
  for (size_t i = 0; i + 1 < reply->elements; i += 2)
    if (member == reply->element[i]->str) return reply->element[i + 1]->integer;
  return -1;
}

void commands(const Run& run) {
  run.fresh();
  RedisServer server(
      run.setup(run.load(fmt::format("dram 16mb lun {} size 256mb", run.scratch->path))));
  (void)server.command({"SET", "large", std::string(1 << 20, 'x')});
  (void)server.command({"RPUSH", "list", "a", "b"});
  require(memory_of(server, "large", "tiered_bytes") >= 1 << 20, "{} bytes of it are tiered",
          memory_of(server, "large", "tiered_bytes"));
  require(number(server, {"LUNAR", "COLD", "large", "missing"}) == 1, "COLD counts wrong");
  require(memory_of(server, "large", "resident_page_bytes") < 1 << 16, "COLD left {} bytes",
          memory_of(server, "large", "resident_page_bytes"));
  require(number(server, {"LUNAR", "PREFETCH", "large", "list"}) == 2, "PREFETCH counts wrong");
  require(memory_of(server, "large", "resident_page_bytes") >= 1 << 20, "PREFETCH brought {} bytes",
          memory_of(server, "large", "resident_page_bytes"));
  require(number(server, {"LUNAR", "HOT", "large"}) == 1, "HOT counts wrong");
  require(number(server, {"LUNAR", "PIN", "large"}) == 1, "PIN counts wrong");
  (void)server.command({"LUNAR", "COLD", "large"});
  require(memory_of(server, "large", "resident_page_bytes") >= 1 << 20, "a pinned value went");
  require(strtoull(server.info("lunar", "lunar_pinned_bytes").c_str(), nullptr, 10) >= 1 << 20,
          "no pin in INFO");
  for (int i = 0; i < 16; ++i)
    (void)server.command({"SET", fmt::format("p:{}", i), std::string(1 << 20, 'p')});
  std::string error;
  for (int i = 0; i < 16 && error.empty(); ++i)
    error = error_of(server, {"LUNAR", "PIN", fmt::format("p:{}", i)});
  require(error.find("half of the DRAM budget") != std::string::npos, "pins without end: '{}'",
          error);
  require(number(server, {"LUNAR", "UNPIN"}) > 1, "UNPIN of all counts wrong");
  require(server.info("lunar", "lunar_pinned_bytes") == "0", "pins are left: {}",
          server.info("lunar", "lunar_pinned_bytes"));
  require(server.command({"LUNAR", "MEMORY", "missing"})->type == REDIS_REPLY_NIL,
          "a missing key has memory");
  must_err(server, {"LUNAR", "HOT"}, "wrong number of arguments");
  must_err(server, {"LUNAR", "WARM", "x"}, "nknown");
  require(server.command({"COMMAND", "DOCS", "lunar"})->elements == 2, "no COMMAND DOCS");
  require(server.command({"COMMAND", "GETKEYS", "LUNAR", "PIN", "a", "b"})->elements == 2,
          "no key specs");
  require(server.command({"LUNAR", "STATS"})->elements > 40, "LUNAR STATS says little");
  (void)server.command({"ACL", "SETUSER", "reader", "on", ">x", "~r:*", "+lunar|memory"});
  require(std::string(server.command({"ACL", "DRYRUN", "reader", "LUNAR", "MEMORY", "r:1"})->str) ==
              "OK",
          "LUNAR MEMORY is not allowed");
  require(
      std::string(server.command({"ACL", "DRYRUN", "reader", "LUNAR", "MEMORY", "x"})->str) != "OK",
      "any key is allowed");
  require(
      std::string(server.command({"ACL", "DRYRUN", "reader", "LUNAR", "PIN", "r:1"})->str) != "OK",
      "LUNAR PIN is allowed");
}

void under_lunar_run(const Run& run) {
  run.fresh();
  RedisServer server(run.setup(run.load(""), {run.lunar, "run", "--dram=16m", "--size=64m",
                                              "--lun=" + run.scratch->path, "--"}));
  require(run.log().find("runs under `lunar run`") != std::string::npos,
          "it does not say whose tier serves:\n{}", run.log());
  require(server.info("lunar", "lunar_tier") == "lunar-run", "its tier is {}",
          server.info("lunar", "lunar_tier"));
  require(server.info("lunar", "lunar_dram_budget_bytes") == std::to_string(16 * kMiB),
          "its budget is not that of `lunar run`");
  require(server.info("lunar", "lunar_gate") == "starting", "its gate is {}",
          server.info("lunar", "lunar_gate"));
  (void)server.command({"CONFIG", "SET", "lunar.gate", "no"});
  require(server.info("lunar", "lunar_gate") == "bypassed", "switched off, its gate is {}",
          server.info("lunar", "lunar_gate"));
  (void)server.command({"SET", "large", std::string(1 << 20, 'x')});
  require(memory_of(server, "large", "tiered_bytes") >= 1 << 20, "the value is not tiered");
}

// ---- a server that is too old -------------------------------------------------------------------

std::string g_line;
void old_log(void*, const char*, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  g_line = line;
}
void old_attribs(void*, const char*, int, int) {}
int old_busy(const char*) { return 0; }
int old_get_api(const char* name, void** out) {
  const std::string word = name;
  if (word == "RedisModule_Log")
    *out = reinterpret_cast<void*>(old_log);
  else if (word == "RedisModule_SetModuleAttribs")
    *out = reinterpret_cast<void*>(old_attribs);
  else if (word == "RedisModule_IsModuleNameBusy")
    *out = reinterpret_cast<void*>(old_busy);
  else
    return 1;
  return 0;
}

void too_old(const Run& run) {
  void* library = dlopen(run.module.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto load =
      library == nullptr
          ? nullptr
          : reinterpret_cast<int (*)(void*, void**, int)>(dlsym(library, "RedisModule_OnLoad"));
  require(load != nullptr, "{}", library == nullptr ? dlerror() : "no RedisModule_OnLoad");
  if (load == nullptr) return;
  void* context[1] = {reinterpret_cast<void*>(old_get_api)};
  require(load(context, nullptr, 0) == 1, "it loads into a server without anything");
  require(g_line.find("too old") != std::string::npos, "it says '{}'", g_line);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: redis_module_refusals MODULE LUNAR OTHER_MALLOC OLD_KERNEL\n");
    return 2;
  }
  return guarded([&] {
    const Scratch scratch;
    // the server changes its directory
    auto absolute = [](const char* path) { return std::filesystem::absolute(path).string(); };
    const Run run{absolute(argv[1]), absolute(argv[2]), absolute(argv[3]), absolute(argv[4]),
                  &scratch};
    bad_arguments(run);
    settings(run);
    full(run);
    commands(run);
    under_lunar_run(run);
    too_old(run);
    fmt::print("{}\n", g_failures == 0 ? "as it should be" : "failed");
    return g_failures > 0 ? 1 : 0;
  });
}
