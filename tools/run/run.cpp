// SPDX-License-Identifier: Apache-2.0
// lunar run: starts a program whose heap extends onto a LUN.
//
//   flags -> LUNAR_* variables, liblunar-preload.so at the head of LD_PRELOAD, a memfd for the
//   tree's account, exec
//
// It refuses, in one line and before the exec, settings that would fail inside the program. Exit
// codes: run/program.h.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/units.h"
#include "sys/file.h"
#include "tools/run/program.h"
#include "tools/run/run_checks.h"
#include "tools/run/run_flags.h"
#include "tools/subcommands.h"
#include "tools/support/host.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr uint64_t kAccountBytes = 4 * kMiB;
constexpr int kAccountDescriptor = 700;  // programs expect small numbers for their own

int refuse(int code, const std::string& line) {
  fprintf(stderr, "lunar run: %s\n", printable(line).c_str());
  return code;
}

// The flag, variable or file that an option's value came from, by precedence.
std::string origin_of(const RunLine& line, const Options& before_flags, const char* name) {
  const OptionInfo& info = option_info(static_cast<size_t>(option_find(name)));
  for (size_t i = line.flags.size(); i > 0; --i) {
    if (strcmp(option_info(line.flags[i - 1].option).name, name) == 0)
      return line.flags[i - 1].spelled;
  }
  std::string variable = variable_name(info);
  const char* value = getenv(variable.c_str());
  if (value && *value) return variable;
  Options defaults;
  options_defaults(&defaults);
  bool by_file = strcmp(name, "dram") == 0   ? before_flags.dram != defaults.dram
                 : strcmp(name, "size") == 0 ? before_flags.size != defaults.size
                                             : strcmp(before_flags.lun, defaults.lun) != 0;
  return text_of(by_file ? "config file, %s" : "default --%s", name);
}

bool apply_flags(const RunLine& line, Options* options, std::string* why) {
  for (const RunFlag& flag : line.flags) {
    const OptionInfo& info = option_info(flag.option);
    ErrorText text;
    if (options_set(options, info.name, flag.value.c_str(), flag.spelled.c_str(), &text) < 0)
      return *why = text.text, false;
  }
  return true;
}

// Sets the program's variables. Paths become absolute, because programs change their directory.
void export_options(const RunLine& line, const Options& options) {
  for (const RunFlag& flag : line.flags) {
    setenv(variable_name(option_info(flag.option)).c_str(), flag.value.c_str(), 1);
  }
  setenv("LUNAR_ROOT", text_of("%d", static_cast<int>(getpid())).c_str(), 1);  // exec keeps the pid
  // Computed once here, so that all processes of the tree have the same budget.
  setenv("LUNAR_DRAM", text_of("%llu", static_cast<unsigned long long>(options.dram)).c_str(), 1);
  if (std::string lun = absolute_lun(options.lun); lun != options.lun || getenv("LUNAR_LUN"))
    setenv("LUNAR_LUN", lun.c_str(), 1);
  for (const char* name : {"LUNAR_STATS_FILE", "LUNAR_LOG_FILE", "LUNAR_CONFIG"}) {
    if (const char* path = getenv(name); path && *path)
      setenv(name, absolute_path(path).c_str(), 1);
  }
}

bool export_preload(std::string* why) {
  std::string tried;
  std::string library = find_preload_library(&tried);
  if (library.empty())
    return *why = text_of(
               "liblunar-preload.so is not there (looked at %s); install Lunar, or build it: ninja "
               "-C build",
               tried.c_str()),
           false;
  if (library.find_first_of(" :") != std::string::npos) {
    return *why = text_of(
               "%s: LD_PRELOAD cannot name a path with a blank or colon in it; move Lunar "
               "elsewhere",
               library.c_str()),
           false;
  }
  const char* others = getenv("LD_PRELOAD");
  std::string value = library;
  if (others && *others) {
    std::string list = others;
    bool first_already = list.compare(0, library.size(), library) == 0 &&
                         (list.size() == library.size() || strchr(" :", list[library.size()]));
    value = first_already ? list : library + ":" + list;
  }
  setenv("LD_PRELOAD", value.c_str(), 1);
  return true;
}

// A limit on file sizes also applies to memory files, so the soft limit is lifted meanwhile. 0 or
// -errno.
int size_account(int fd) {
  rlimit limit{}, lifted{};
  getrlimit(RLIMIT_FSIZE, &limit);
  lifted = limit;
  lifted.rlim_cur = lifted.rlim_max;
  setrlimit(RLIMIT_FSIZE, &lifted);
  const int rc = sys::set_file_size(fd, kAccountBytes);
  setrlimit(RLIMIT_FSIZE, &limit);
  return rc;
}

// The account's descriptor is inherited by the whole tree, so it may not be close-on-exec.
bool export_account(std::string* why) {
  int low = memfd_create("lunar-account", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  if (low < 0)
    return *why = text_of("a memory file for the account cannot be made: %s", errno_text(errno)),
           false;
  // Its size is sealed: no process of the tree can truncate it and make another's mapping fault.
  if (const int rc = size_account(low); rc < 0)
    return *why = text_of("the account's memory file cannot be sized: %s%s", errno_text(-rc),
                          rc == -EFBIG ? "; raise the limit on file sizes (ulimit -f)" : ""),
           false;
  if (fcntl(low, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return *why = text_of("the account's memory file cannot be sealed: %s", errno_text(errno)),
           false;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  int wanted = kAccountDescriptor;
  if (limit.rlim_cur <= static_cast<rlim_t>(wanted))
    wanted = limit.rlim_cur > 16 ? static_cast<int>(limit.rlim_cur) - 8 : 3;
  int high = fcntl(low, F_DUPFD, wanted);
  if (high < 0) high = fcntl(low, F_DUPFD, 3);
  if (high < 0)
    return *why = text_of("no descriptor is left for the account: %s; raise `ulimit -n`",
                          errno_text(errno)),
           false;
  close(low);
  // The inode identifies it: a program that was started without the descriptor finds it in another
  // process of the tree.
  struct stat status{};
  if (fstat(high, &status) != 0)
    return *why = text_of("the account's descriptor: %s", errno_text(errno)), false;
  setenv("LUNAR_ACCOUNT",
         text_of("%d:%llu:%llu", high, static_cast<unsigned long long>(status.st_dev),
                 static_cast<unsigned long long>(status.st_ino))
             .c_str(),
         1);
  return true;
}

// Programs of the tree that start with fewer rights (setpriv, runuser) inherit an open
// /dev/userfaultfd. Without it they need rights of their own.
void export_uffd_device() {
  const int low = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (low < 0) return;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int high = limit.rlim_cur > kAccountDescriptor + 1
                       ? fcntl(low, F_DUPFD, kAccountDescriptor + 1)
                       : fcntl(low, F_DUPFD, 3);
  struct stat status{};
  const bool known = fstat(low, &status) == 0;
  close(low);
  if (high >= 0 && known)
    setenv("LUNAR_UFFD_DEVICE",
           text_of("%d:%llu", high, static_cast<unsigned long long>(status.st_rdev)).c_str(), 1);
}

int execute(const Program& program, std::vector<char*> command) {
  command.push_back(nullptr);
  if (!program.shell) execv(program.path.c_str(), command.data());
  if (program.shell || errno == ENOEXEC) {
    std::vector<char*> shell = {const_cast<char*>("sh"), const_cast<char*>(program.path.c_str())};
    shell.insert(shell.end(), command.begin() + 1, command.end());
    execv("/bin/sh", shell.data());
  }
  int error = errno;
  return refuse(error == ENOENT ? kExitNotFound : kExitNotExecutable,
                text_of("%s cannot be started: %s", program.path.c_str(), errno_text(error)));
}

}  // namespace

int cmd_run(int argc, char** argv) {
  RunLine line;
  std::string why;
  if (parse_run_line(argc, argv, &line, &why) < 0) return refuse(kExitOwnFailure, why);
  if (line.help) {
    fputs(run_help().c_str(), stdout);
    return 0;
  }
  Options options;
  ErrorText text;
  if (options_load(&options, environ, &text) < 0) return refuse(kExitOwnFailure, text.text);
  const Options before_flags = options;
  if (!apply_flags(line, &options, &why)) return refuse(kExitOwnFailure, why);
  OriginOf origin = [&](const char* name) { return origin_of(line, before_flags, name); };
  if (!check_sizes(&options, origin, &why) || !check_lun(options, origin, &why) ||
      !check_kernel_calls(&why)) {
    return refuse(kExitOwnFailure, why);
  }
  Program program;
  if (int code = find_program(line.command, &program, &why); code != 0) return refuse(code, why);
  if (!open_lun(options, origin, &why)) return refuse(kExitOwnFailure, why);
  export_options(line, options);
  if (!export_preload(&why) || !export_account(&why)) return refuse(kExitOwnFailure, why);
  export_uffd_device();
  return execute(program, line.command);
}

}  // namespace lunar::tools
