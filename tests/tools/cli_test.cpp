// SPDX-License-Identifier: Apache-2.0
// The `lunar` command from outside: every refusal is one line, exits as documented and touches
// nothing; what is started keeps its pid, arguments, exit code and signals. LUNAR_BIN names another
// binary to test.
// Threading: one thread; starts processes.
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "runtime/include/lunar/lunar.h"
#include "spawn.h"
#include "tests/support/refused_calls.h"

using namespace lunar::test;

namespace {

std::string lunar_binary() {
  const char* given = getenv("LUNAR_BIN");
  return given && *given ? given : LUNAR_DEFAULT_BIN;
}

Ended lunar_command(std::vector<std::string> words, const Spawn& how = {}) {
  words.insert(words.begin(), lunar_binary());
  return run(words, how);
}

bool userfaultfd_works() {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) return access("/dev/userfaultfd", R_OK | W_OK) == 0;
  close(fd);
  return true;
}

// A refusal of `lunar run`: exit code, one line that begins as all do, and every part of it that is
// named.
void check_refused(const Ended& ended, int code, const std::vector<std::string>& parts) {
  INFO(ended.err);
  CHECK(ended.code == code);
  CHECK(ended.out.empty());
  CHECK(ended.err_lines() == 1);
  CHECK(ended.err.compare(0, 11, "lunar run: ") == 0);
  for (const std::string& part : parts) {
    INFO(part);
    CHECK(ended.says(part));
  }
}

void run_refused(const std::vector<std::string>& flags, const std::vector<std::string>& parts,
                 const Spawn& how = {}) {
  std::vector<std::string> words = {"run"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"--", "/bin/echo", "started"});
  check_refused(lunar_command(words, how), 125, parts);
}

std::string trimmed(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

// ---- refusals -----------------------------------------------------------------------------------

TEST_CASE("run refuses sizes that do not parse, are too small or too large") {
  run_refused({"--dram", "lots"}, {"--dram", "'lots'", "256m"});
  run_refused({"--dram", ""}, {"--dram"});
  run_refused({"--dram=-5m"}, {"--dram", "'-5m'"});
  run_refused({"--dram", "64q"}, {"'64q'"});
  run_refused({"--dram", "99999999999999t"}, {"--dram", "too large"});
  run_refused({"--dram", "4m"}, {"--dram", "4 MiB", "minimum of 16 MiB"});
  run_refused({"--dram", "0"}, {"--dram", "minimum"});
  run_refused({"--dram", "900t"}, {"--dram", "900 TiB", "this machine"});
  run_refused({"--dram", "64m", "--size", "32m"}, {"--size", "32 MiB", "64 MiB"});
  run_refused({"--dram", "64m", "--size", "900t"}, {"--size", "/var/tmp", "900 TiB"});
  run_refused({"--dram", "64m", "--size", "some"}, {"--size", "'some'"});
}

TEST_CASE("run names the variable or file that a bad value came from") {
  run_refused({}, {"LUNAR_DRAM", "'x'"}, {{"LUNAR_DRAM=x"}, "", false});
  run_refused({}, {"LUNAR_DRAM", "4 MiB"}, {{"LUNAR_DRAM=4m"}, "", false});
  TempDir dir;
  std::string config = dir.write("lunar.conf", "\ndarm = 1g\n");
  run_refused({}, {config + ":2", "'darm'", "did you mean 'dram'"},
              {{"LUNAR_CONFIG=" + config}, "", false});
  run_refused({}, {dir.path + "/none"}, {{"LUNAR_CONFIG=" + dir.path + "/none"}, "", false});
  config = dir.write("small.conf", "dram = 4m\n");
  run_refused({}, {"config file, dram", "4 MiB"}, {{"LUNAR_CONFIG=" + config}, "", false});
}

TEST_CASE("run refuses unknown flags with the nearest name") {
  run_refused({"--drma", "64m"}, {"--drma", "did you mean --dram?"});
  run_refused({"--stat-file=x"}, {"did you mean --stats-file?"});
  run_refused({"--zzzzzzzzzz"}, {"--zzzzzzzzzz", "--help"});
  run_refused({"-x"}, {"-x"});
  run_refused({"--sqpoll"}, {"LUNAR_SQPOLL"});
  // only the runtime that tests link knows it
  run_refused({"--test-no-hash-check"}, {"--test-no-hash-check", "--help"});
  run_refused({"--dram"}, {"--dram needs a value"});
  run_refused({"--no-mmap=yes"}, {"--no-mmap takes no value"});
  run_refused({"--mmap=perhaps"}, {"--mmap", "'perhaps'"});
  run_refused({"--log", "loud"}, {"--log", "error|warning|info|debug"});
  run_refused({"--handlers", "two"}, {"--handlers", "'two'"});
  run_refused({"--handlers", "65"}, {"--handlers: 65 is out of range: 0 to 64"});
  check_refused(lunar_command({"run"}), 125, {"no command"});
  check_refused(lunar_command({"run", "--dram", "64m", "--"}), 125, {"no command"});
}

TEST_CASE("run refuses a LUN that cannot serve, and touches nothing") {
  run_refused({"--dram", "64m", "--lun", "/var/tmp/no/such/place"},
              {"--lun", "does not exist", "fallocate"});
  // one line, and no control characters
  run_refused({"--dram", "64m", "--lun", "/no/such\nplace\x1b[2J"},
              {"--lun", "/no/such\\x0aplace\\x1b[2J"});
  run_refused({"--dram", "64m", "--lun", "/dev/null"}, {"--lun", "/dev/null", "neither"});
  run_refused({"--dram", "64m", "--lun", "/proc"}, {"--lun", "/proc"});
  run_refused({"--dram", "64m", "--lun", ""}, {"--lun", "empty"});
  run_refused({"--dram", "64m", "--lun", "tape:x"}, {"--lun", "'tape'", "sim:SIZE"});
  run_refused({"--dram", "64m", "--lun", "sim:lots"}, {"--lun", "'lots'"});
  run_refused({"--dram", "64m", "--lun", "sim:32m"}, {"--lun", "32 MiB", "64 MiB"});
  run_refused({"--dram", "64m", "--lun", "sim:1g,foo=1"}, {"--lun", "'foo=1'", "latency_us"});
  run_refused({"--dram", "64m", "--lun", "/var/tmp", "--lun", "/no/such"}, {"--lun", "/no/such"});
  run_refused({"--dram", "64m", "--lun", "sim:1g", "--lun", "sim:16m"},
              {"--lun", "sim:1g sim:16m", "32 MiB", "64 MiB"});
  run_refused({"--dram", "64m", "--lun", "/var/tmp", "--lun", ""}, {"--lun", "empty"});
  run_refused({"--dram", "64m", "--lun", "/var/my tmp"},
              {"--lun", "'/var/my tmp'", "blank", "ln -s"});
  run_refused({"--dram", "64m", "--lun", "stripe:/var/tmp;/no/such"}, {"--lun", "/no/such"});
  for (const char* device :
       {"nvme:/dev/no-such", "/dev/no-such", "pmem:/no/such", "stripe:/dev/no-such;/var/tmp"}) {
    run_refused({"--dram", "64m", "--lun", device},
                {"--lun", "no", "such does not exist", "lunar doctor"});
    CHECK_FALSE(lunar_command({"run", "--lun", device, "--", "true"}).says("fallocate"));
  }
  for (const char* letter : {"/etc/passwd", "file:/etc/passwd"}) {
    run_refused({"--dram", "64m", "--lun", letter}, {"--lun"});
    CHECK_FALSE(
        lunar_command({"run", "--dram", "64m", "--lun", letter, "--", "true"}).says("truncate"));
  }
  TempDir dir;
  std::string file = dir.write("lun", "precious");
  run_refused({"--dram", "64m", "--size", "800t", "--lun", file}, {"--size", file});
  CHECK(text_of_file(file) == "precious");
  run_refused({"--lun", "nvme:"}, {"no device", "nvme:/dev/ngXnY"});
  run_refused({"--lun", "file:"}, {"no path", "file:PATH"});
}

TEST_CASE("run refuses a LUN on a memory file system") {
  struct stat status;
  if (stat("/dev/shm", &status) != 0) LUNAR_SKIP("memory", "no /dev/shm here");
  run_refused({"--dram", "64m", "--lun", "/dev/shm"}, {"--lun", "/dev/shm", "tmpfs", "memory"});
}

TEST_CASE("run refuses a LUN this user may not write") {
  if (geteuid() != 0) LUNAR_SKIP("root", "needs another user to become");
  TempDir dir;
  if (run({"/usr/bin/test", "-x", lunar_binary()}, {{}, "", true}).code != 0)
    LUNAR_SKIP("reachable", "nobody cannot reach the binary");
  run_refused({"--dram", "64m", "--lun", dir.path},
              {"--lun", dir.path, "not writable", "permission denied"}, {{}, "", true});
  std::string file = dir.write("lun", "", 0600);
  run_refused({"--dram", "64m", "--lun", file}, {"--lun", file, "permission denied"},
              {{}, "", true});
}

TEST_CASE("without the right to userfaultfd run and doctor name sysctl, device node and command") {
  if (geteuid() != 0) LUNAR_SKIP("root", "needs another user to become");
  if (text_of_file("/proc/sys/vm/unprivileged_userfaultfd") != "0\n")
    LUNAR_SKIP("memory", "every user has the right here");
  if (run({"/usr/bin/test", "-r", "/dev/userfaultfd"}, {{}, "", true}).code == 0)
    LUNAR_SKIP("memory", "/dev/userfaultfd is open to all");
  if (run({"/usr/bin/test", "-x", lunar_binary()}, {{}, "", true}).code != 0)
    LUNAR_SKIP("reachable", "nobody cannot reach the binary");
  run_refused({"--dram", "64m"},
              {"vm.unprivileged_userfaultfd is 0", "/dev/userfaultfd",
               "sudo sysctl -w vm.unprivileged_userfaultfd=1"},
              {{}, "", true});
  Ended doctor = lunar_command({"doctor"}, {{}, "", true});
  CHECK(doctor.code == 1);
  CHECK(doctor.out.find("sudo sysctl -w vm.unprivileged_userfaultfd=1") != std::string::npos);
  CHECK(lunar_command({"doctor", "--json"}, {{}, "", true}).out.find("\"can_run\":false") !=
        std::string::npos);
}

TEST_CASE(
    "on a kernel before 6.8 run and doctor name the version and the command that brings a newer "
    "kernel") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "run refuses before it looks at the kernel");
  const Spawn old{{"LD_PRELOAD=" OLD_KERNEL, "ASAN_OPTIONS=verify_asan_link_order=0"}, "", false};
  run_refused({"--dram", "64m"}, {"Linux 6.8 or newer", "sudo apt install linux-image-6.12-amd64"},
              old);
  const Ended doctor = lunar_command({"doctor"}, old);
  CHECK(doctor.code == 1);
  CHECK(doctor.out.find("Linux 6.8 or newer") != std::string::npos);
  CHECK(doctor.out.find("sudo apt install linux-image-6.12-amd64") != std::string::npos);
}

// ---- programs -----------------------------------------------------------------------------------

TEST_CASE("run tells not found (127) from not executable (126)") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "run refuses before it looks at the command");
  TempDir dir;
  check_refused(lunar_command({"run", "--dram", "64m", "--", "no-such-command"}), 127,
                {"no-such-command", "not found"});
  check_refused(lunar_command({"run", "--dram", "64m", "--", "./no-such-command"}), 127,
                {"no such file"});
  check_refused(lunar_command({"run", "--dram", "64m", "--", ""}), 127, {"empty"});
  check_refused(lunar_command({"run", "--dram", "64m", "--", dir.path}), 126,
                {dir.path, "directory"});
  check_refused(lunar_command({"run", "--dram", "64m", "--", dir.write("plain", "x")}), 126,
                {"plain", "chmod +x"});
  std::string binary("\1\2\0\3", 4);
  check_refused(lunar_command({"run", "--dram", "64m", "--", dir.write("data", binary, 0755)}), 126,
                {"data", "format"});
  check_refused(
      lunar_command({"run", "--dram", "64m", "--", dir.write("s1", "#!/no/such/shell\n", 0755)}),
      127, {"s1", "/no/such/shell"});
  check_refused(lunar_command({"run", "--dram", "64m", "--",
                               dir.write("s2", "#!/usr/bin/env no-such-tongue\n", 0755)}),
                127, {"s2", "no-such-tongue"});
  check_refused(lunar_command({"run", "--dram", "64m", "--", dir.write("s3", "#!\n", 0755)}), 126,
                {"s3", "#!"});
}

TEST_CASE("run refuses programs that the loader would not preload into") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "run refuses before it looks at the command");
  TempDir dir;
  const std::string program = STATIC_PROGRAM;
  check_refused(lunar_command({"run", "--dram", "64m", "--", program}), 125,
                {program, "statically linked"});
  std::string script = dir.write("script", "#!" + program + "\n", 0755);
  check_refused(lunar_command({"run", "--dram", "64m", "--", script}), 125,
                {script, "statically linked"});
}

TEST_CASE("run refuses setuid programs") {
  if (geteuid() != 0) LUNAR_SKIP("root", "needs to make a file of another user");
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "run refuses before it looks at the command");
  TempDir dir;
  std::string program = dir.path + "/suid";
  REQUIRE(run({"/bin/cp", "/bin/true", program}).code == 0);
  REQUIRE(chown(program.c_str(), 65534, 65534) == 0);
  REQUIRE(chmod(program.c_str(), 04755) == 0);
  check_refused(lunar_command({"run", "--dram", "64m", "--", program}), 125, {program, "setuid"});
}

TEST_CASE("the command keeps its pid, arguments, exit code and signals") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  Ended ended = lunar_command({"run", "--dram", "64m", "--", "/bin/sh", "-c",
                               "echo $$ \"$0\" \"$@\"; exit 7", "a b", "--dram", "*"});
  INFO(ended.err);
  CHECK(ended.code == 7);
  CHECK(ended.err.empty());  // silent by default
  CHECK(trimmed(ended.out) == std::to_string(ended.pid) + " a b --dram *");
  CHECK(lunar_command({"run", "--dram", "64m", "/bin/sh", "-c", "kill -TERM $$"}).code == -15);
  TempDir dir;
  // A text without #! is a shell script, as it is to every shell.
  CHECK(
      lunar_command({"run", "--dram", "64m", dir.write("plain", "echo $1\n", 0755), "there"}).out ==
      "there\n");
}

TEST_CASE("an allocator in front of the library is refused") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  const auto with = [](const std::string& preload, const std::string& program) {
    return lunar_command({"run", "--dram", "64m", "--", "/bin/sh", "-c",
                          "LD_PRELOAD=" + preload + " exec " + program});
  };
  for (const char* program : {"/bin/true", MALLOC_POINTER}) {
    Ended ended = with("libjemalloc.so.2:$LD_PRELOAD", program);
    INFO(ended.err);
    CHECK(ended.code == 125);
    CHECK(ended.says("put Lunar's first"));
    ended = with("$LD_PRELOAD:libjemalloc.so.2", program);
    CHECK(ended.code == 0);
    CHECK(ended.err.empty());
  }
}

TEST_CASE("the command gets its options as variables, the library in front, and the account") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  TempDir dir;
  std::string script =
      "echo $LUNAR_DRAM $LUNAR_LUN $LUNAR_MMAP $LUNAR_STATS_FILE; echo $LD_PRELOAD; echo "
      "$LUNAR_ACCOUNT; "
      "stat -L -c %s /proc/self/fd/${LUNAR_ACCOUNT%%:*}";
  Ended ended = lunar_command({"run", "--dram=64m", "--lun", "file:lun", "--no-mmap",
                               "--stats-file", "live", "--", "/bin/sh", "-c", script},
                              {{"LD_PRELOAD="}, dir.path, false});
  CHECK(ended.code == 125);  // file:lun is not there
  dir.write("lun", "");
  ended = lunar_command({"run", "--dram=64m", "--lun", "file:lun", "--no-mmap", "--stats-file",
                         "live", "--", "/bin/sh", "-c", script},
                        {{}, dir.path, false});
  INFO(ended.err);
  INFO(ended.out);
  REQUIRE(ended.code == 0);
  std::istringstream words(ended.out);
  std::string dram, lun, mmap_too, stats, preload;
  std::string account;  // FD:DEV:INODE
  long bytes = 0;
  words >> dram >> lun >> mmap_too >> stats >> preload >> account >> bytes;
  CHECK(dram == "67108864");
  CHECK(lun == "file:" + dir.path + "/lun");
  CHECK(mmap_too == "no");
  CHECK(stats == dir.path + "/live");
  CHECK(preload.find("/liblunar-preload.so") != std::string::npos);
  CHECK(std::stoi(account) >= 700);
  CHECK(std::count(account.begin(), account.end(), ':') == 2);
  CHECK(bytes == 4 << 20);
  // The file of live counters is what lunar.h says.
  struct {
    lunar_stats_file_header header;
    lunar_stats stats;
  } live{};
  std::ifstream(stats, std::ios::binary).read(reinterpret_cast<char*>(&live), sizeof live);
  CHECK(std::string(live.header.magic, sizeof live.header.magic) == "LUNARST1");
  CHECK(live.header.stats_bytes == sizeof live.stats);
  CHECK(live.header.pid > 0);
  CHECK(live.header.sequence % 2 == 0);
}

TEST_CASE(
    "a program whose library another build's account meets is refused in a line that says what to "
    "do") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  // as another build would have it: the first byte of its magic number differs
  const Ended ended =
      lunar_command({"run", "--dram", "64m", "--", "/bin/sh", "-c",
                     "printf X | dd of=/proc/self/fd/${LUNAR_ACCOUNT%%:*} bs=1 conv=notrunc "
                     "status=none; exec dd if=/dev/zero of=/dev/null bs=80M count=1 status=none"});
  INFO(ended.err);
  CHECK(ended.code != 0);
  CHECK(ended.says(
      "another build of Lunar made this tree's DRAM account; start the whole tree again"));
}

TEST_CASE("several LUNs reach the command as one list of absolute paths") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  TempDir dir;
  dir.write("a", "");
  dir.write("b", "");
  Ended ended = lunar_command({"run", "--dram=64m", "--lun", "a", "--lun=file:b", "--", "/bin/sh",
                               "-c", "echo \"$LUNAR_LUN\""},
                              {{}, dir.path, false});
  INFO(ended.err);
  CHECK(trimmed(ended.out) == dir.path + "/a file:" + dir.path + "/b");
}

TEST_CASE("run refuses a LUN in a working directory whose name has a blank") {
  TempDir dir;
  std::string inner = dir.path + "/in ner";
  REQUIRE(run({"/bin/mkdir", inner}).code == 0);
  dir.write("in ner/a", "");
  run_refused({"--dram", "64m", "--lun", "file:a"}, {"--lun", "blank"}, {{}, inner, false});
  run_refused({"--dram", "64m", "--lun", "a", "--lun", dir.path}, {"--lun", "blank"},
              {{}, inner, false});
  run_refused({"--dram", "64m", "--lun", inner + "/a", "--lun", dir.path},
              {"--lun", inner + "/a", "blank"});
  // alone it may
  run_refused({"--dram", "64m", "--size", "800t", "--lun", inner + "/a"}, {"--size", inner + "/a"});
}

TEST_CASE("only the process that was asked for prints its table; its small helpers do not") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  Ended ended = lunar_command({"run", "--dram", "64m", "--stats", "/bin/sh", "-c",
                               "ls / >/dev/null; echo $LUNAR_ROOT $$; exit 0"});
  INFO(ended.err);
  CHECK(trimmed(ended.out) == std::to_string(ended.pid) + " " + std::to_string(ended.pid));
  CHECK(ended.says("lunar: stats: pid " + std::to_string(ended.pid) + "\n"));
  CHECK(ended.err.find("stats: program") == ended.err.rfind("stats: program"));
}

TEST_CASE("an unknown variable is one warning, and the command runs") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "nothing can be started");
  Ended ended = lunar_command({"run", "--dram", "64m", "/bin/sh", "-c", "/bin/true; echo ran"},
                              {{"LUNAR_DRMA=1g"}, "", false});
  CHECK(ended.code == 0);
  CHECK(ended.out == "ran\n");
  CHECK(ended.err_lines() == 1);
  CHECK(ended.says("LUNAR_DRMA"));
  CHECK(ended.says("did you mean LUNAR_DRAM?"));
}

// ---- the rest of the command --------------------------------------------------------------------

TEST_CASE("help and version go to standard output and succeed") {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"-h"},
                                             {"--version"},
                                             {"help"},
                                             {"help", "run"},
                                             {"run", "--help"},
                                             {"doctor", "--help"},
                                             {"help", "options"}}) {
    Ended ended = lunar_command(words);
    INFO(words[0]);
    CHECK(ended.code == 0);
    CHECK(ended.err.empty());
    CHECK_FALSE(ended.out.empty());
  }
  std::string help = lunar_command({"run", "--help"}).out;
  for (const char* part : {"--dram SIZE", "--lun PATH|DIR|URI", "--no-mmap", "125", "126", "127"})
    CHECK(help.find(part) != std::string::npos);
  CHECK(help.find("test") == std::string::npos);  // switches for tests are not shown
  std::string options = lunar_command({"help", "options"}).out;
  for (size_t at;
       (at = options.find("\n                ")) != std::string::npos;)  // lines that were wrapped
    options.replace(at, options.find_first_not_of("\n ", at) - at, " ");
  for (const char* part : {"key stats_file, flag --stats-file", "LUNAR_KV_DRAM",
                           "LUNAR_RAID0_DEVICES", "man 3 ark_create"})
    CHECK(options.find(part) != std::string::npos);
  CHECK(options.find("LUNAR_SEED") == std::string::npos);  // nor are the tests' own
  std::string page = lunar_command({"help", "options", "--markdown"}).out;
  CHECK(page.find("| `--stats-file` | `LUNAR_STATS_FILE` |") != std::string::npos);
  CHECK(page.find("LUNAR_SQPOLL") != std::string::npos);
  CHECK(page.find("ACCOUNT") == std::string::npos);
}

TEST_CASE("unknown subcommands and flags name the nearest and exit 2") {
  struct Case {
    std::vector<std::string> words;
    std::string part;
  };
  for (const Case& one : std::vector<Case>{{{"rnu"}, "did you mean run?"},
                                           {{"docter"}, "did you mean doctor?"},
                                           {{"--versoin"}, "did you mean --version?"},
                                           {{"doctor", "--jsno"}, "did you mean --json?"},
                                           {{"help", "optoins"}, "did you mean options?"},
                                           {{"help", "nosuch"}, "lunar --help"},
                                           {{"bench", "falt"}, "did you mean fault?"},
                                           {{"bench", "nosuch"}, "lunar bench --help"},
                                           {{"frobnicate"}, "lunar --help"}}) {
    Ended ended = lunar_command(one.words);
    INFO(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(ended.err_lines() == 1);
    CHECK(ended.says(one.part));
  }
  CHECK(lunar_command({}).code == 2);
}

TEST_CASE("control characters of a wrong word do not reach the terminal") {
  const std::string word = "x\033[31m\a";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{word},
                                             {"-" + word},
                                             {"help", word},
                                             {"help", "options", word},
                                             {"lun", word},
                                             {"bench", word},
                                             {"doctor", word},
                                             {"run", "--" + word, "--", "true"}}) {
    const Ended ended = lunar_command(words);
    INFO(ended.err);
    CHECK(ended.code != 0);
    CHECK(ended.err_lines() == 1);
    CHECK(ended.says("x\\x1b[31m\\x07"));
    CHECK(ended.err.find('\033') == std::string::npos);
  }
}

TEST_CASE("doctor names all refused system calls, not only the first") {
  const pid_t child = fork();
  if (child == 0) {
    if (!refuse_calls({SYS_vmsplice, SYS_memfd_create, SYS_eventfd2})) _exit(3);
    const Ended doctor = lunar_command({"doctor", "--json"});
    _exit(doctor.code == 1 &&
                  doctor.out.find("vmsplice, memfd_create, eventfd2 (") != std::string::npos
              ? 0
              : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
}

// `words` below limits that the shell sets.
Ended below_limits(const std::string& limits, std::vector<std::string> words) {
  std::vector<std::string> shell = {"/bin/sh", "-c", "ulimit -c 0; " + limits + "; exec \"$@\"",
                                    "sh", lunar_binary()};
  shell.insert(shell.end(), words.begin(), words.end());
  return run(shell);
}

TEST_CASE("a limit on memory or descriptors is named, and nothing crashes") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "no right to it");
  const std::vector<std::string> program = {
      "run", "--dram", "32m", "--", "/usr/bin/python3", "-c", "x = bytearray(100 << 20)"};
  for (const char* data : {"4000", "8000", "10000", "11000", "25000", "33000"}) {
    const Ended ended = below_limits("ulimit -d " + std::string(data),
                                     {"run", "--dram", "32m", "--", "/bin/echo", "started"});
    INFO(data << ": " << ended.err);
    CHECK(ended.code == 125);
    CHECK(ended.out.empty());
    CHECK(ended.says("ulimit -d"));
    CHECK_FALSE(ended.says("ulimit -v"));
  }
  const Ended grown = below_limits("ulimit -d 140000", program);
  INFO(grown.err);
  CHECK(grown.code > 0);
  CHECK(grown.says("ulimit -d"));
  for (const char* files : {"11"}) {
    const Ended ended = below_limits("ulimit -n " + std::string(files), program);
    INFO(files << ": " << ended.err);
    // that of the program, where it begins with more
    CHECK((ended.says("ulimit -n") || ended.says("Too many open files")));
    CHECK_FALSE(ended.says("docker"));
    const Ended doctor = below_limits("ulimit -n " + std::string(files), {"doctor"});
    CHECK(doctor.code == 1);
    CHECK(doctor.out.find("needed: open files") != std::string::npos);
  }
  const Ended doctor = below_limits("ulimit -d 500000", {"doctor"});
  CHECK(doctor.out.find("ulimit -d unlimited") != std::string::npos);
}

TEST_CASE("a full LUN is one line that names --size") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "no right to it");
  const Ended ended = lunar_command({"run", "--dram", "32m", "--size", "64m", "--",
                                     "/usr/bin/python3", "-c", "x = bytearray(100 << 20)"});
  INFO(ended.err);
  CHECK(ended.code > 0);
  CHECK(ended.says("allocation refused"));
  CHECK(ended.err.find("--size") == ended.err.rfind("--size"));
}

TEST_CASE(
    "a LUN that is too small is one line that says how much of it there is for this process") {
  if (!userfaultfd_works()) LUNAR_SKIP("userfaultfd", "no right to it");
  TempDir dir;
  const std::string device = dir.path + "/l.img", named = device + "#cold";
  REQUIRE(run({"/usr/bin/truncate", "-s", "100m", device}).code == 0);
  REQUIRE(lunar_command({"lun", "create", named, "--size", "90m", "--format"}).code == 0);
  const auto refused = [](const std::string& lun, const char* megabytes) {
    return lunar_command({"run", "--dram", "16m", "--lun", lun, "--", "/usr/bin/python3", "-c",
                          "x = bytearray(" + std::string(megabytes) + " << 20)"});
  };
  const auto check = [](const Ended& ended, std::initializer_list<const char*> parts) {
    INFO(ended.err);
    CHECK(ended.code > 0);
    const size_t line = ended.err.find("allocation refused");
    REQUIRE(line != std::string::npos);
    CHECK(ended.err.find("allocation refused", line + 1) == std::string::npos);
    for (const char* part : parts) CHECK(ended.says(part));
    CHECK_FALSE(ended.says("--size"));  // is not what bounds it
  };
  check(refused(named, "40"),
        {"this process may use", "the first one half, each child an eighth", "lunar lun resize"});
  // The LUN itself gives less than 8 times the budget.
  check(refused("sim:64m", "200"), {"free space there, or give another --lun"});
}

TEST_CASE("benches refuse bad flags in one line") {
  struct Case {
    std::vector<std::string> words;
    std::string part;
  };
  for (const Case& one : std::vector<Case>{{{"fault", "--dram", "1"}, "at least 16m"},
                                           {{"fault", "--threads", "0"}, "--threads"},
                                           {{"fits", "--programs", "none"}, "none"},
                                           {{"fits", "--rounds"}, "--rounds"},
                                           {{"redis", "--frobnicate"}, "--frobnicate"},
                                           {{"superpipe", "word"}, "word"},
                                           {{"kv", "--rounds", "x"}, "--rounds"}}) {
    std::vector<std::string> words{"bench"};
    words.insert(words.end(), one.words.begin(), one.words.end());
    Ended ended = lunar_command(words);
    INFO(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(ended.err_lines() == 1);
    CHECK(ended.says("lunar bench " + one.words[0]));
    CHECK(ended.says(one.part));
  }
}

TEST_CASE("doctor names every subject, and exits as the host deserves") {
  Ended table = lunar_command({"doctor"});
  Ended json = lunar_command({"doctor", "--json"});
  CHECK(table.err.empty());
  CHECK(table.code == json.code);
  CHECK((table.code == 0) == (json.out.find("\"can_run\":true") != std::string::npos));
  for (const char* subject : {"kernel",
                              "userfaultfd",
                              "io_uring",
                              "process_madvise",
                              "privileges",
                              "memlock limit",
                              "pipe pages",
                              "open files",
                              "memory limits",
                              "memory cgroup",
                              "overcommit",
                              "huge pages",
                              "swap",
                              "NUMA",
                              "LUN",
                              "free block devices",
                              "registered window",
                              "polled I/O",
                              "NVMe passthrough",
                              "persistent memory",
                              "CAPI library",
                              "preload library"}) {
    INFO(subject);
    CHECK(table.out.find(subject) != std::string::npos);
    CHECK(json.out.find("\"name\":\"" + std::string(subject) + "\"") != std::string::npos);
  }
  // A LUN that cannot serve is a reason not to run, with a command that helps.
  Ended bad = lunar_command({"doctor"}, {{"LUNAR_LUN=/dev/shm"}, "", false});
  CHECK(bad.code == 1);
  CHECK(bad.out.find("export LUNAR_LUN=") != std::string::npos);
}
