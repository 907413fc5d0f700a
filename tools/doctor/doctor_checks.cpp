// SPDX-License-Identifier: Apache-2.0
// See doctor_checks.h.
#include "tools/doctor/doctor_checks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <mntent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "sys/kernel.h"
#include "sys/proc.h"
#include "sys/usable_memory.h"
#include "tools/run/run_checks.h"
#include "tools/support/host.h"
#include "tools/support/text.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

const char* health_name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kInfo:
      return "info";
    case Health::kWarn:
      return "warning";
    case Health::kFail:
      return "fail";
  }
  return "";
}

namespace {

bool has_capability(unsigned number) {
  std::string status = read_text("/proc/self/status").value_or("");
  size_t at = status.find("CapEff:");
  if (at == std::string::npos) return false;
  return (strtoull(status.c_str() + at + 7, nullptr, 16) >> number) & 1;
}

// "[always] madvise never" -> "always"
std::string chosen(const std::string& text) {
  size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos
             ? text
             : text.substr(open + 1, close - open - 1);
}

// ---- kernel -------------------------------------------------------------------------------------

Finding check_kernel() {
  utsname name{};
  uname(&name);
  const std::string value =
      text_of("%s %s, pages of %s", name.release, name.machine,
              size_text(static_cast<uint64_t>(sysconf(_SC_PAGESIZE))).c_str());
  ErrorText why;
  if (sys::kernel_check(&why) == 0) return Finding::ok("kernel", value);
  return Finding::fail(
      "kernel", value, why.text,
      probe_container().inside()
          ? "start the container with `--security-opt seccomp=unconfined`, or with a profile that "
            "allows them"
          : "run without the system call filter, or with one that allows them");
}

Finding check_userfaultfd() {
  const UffdState state = probe_userfaultfd();
  if (state.error)
    return Finding::fail("userfaultfd", "not available", userfaultfd_lack(state),
                         userfaultfd_remedy(state));
  return Finding::ok("userfaultfd", "available, with UFFDIO_MOVE and UFFDIO_POISON");
}

Finding check_userfaultfd_rights() {
  const UffdState state = probe_userfaultfd();
  const std::string value =
      state.sysctl >= 0 ? text_of("vm.unprivileged_userfaultfd = %d", state.sysctl) : "no sysctl";
  if (!state.device_there)
    return Finding::info("userfaultfd rights", value + ", no /dev/userfaultfd");
  const bool open_to_us = access("/dev/userfaultfd", R_OK | W_OK) == 0;
  return Finding::info("userfaultfd rights",
                       value + (open_to_us ? ", /dev/userfaultfd open to this user"
                                           : ", /dev/userfaultfd closed to this user"));
}

Finding check_io_uring() {
  const int rc = probe_io_uring();
  const std::string sysctl = read_line("/proc/sys/kernel/io_uring_disabled");
  const std::string shown = sysctl.empty() ? "" : ", kernel.io_uring_disabled = " + sysctl;
  if (rc == 0) return Finding::ok("io_uring", "available" + shown);
  return Finding::warn(
      "io_uring", text_of("refused (%s)%s", errno_name(rc), shown.c_str()),
      "each read and write is a system call that waits; one at a time per thread",
      sysctl == "1" || sysctl == "2" ? "`sudo sysctl -w kernel.io_uring_disabled=0`"
      : rc == -ENOMEM                ? memlock_remedy()
      : rc == -EPERM || probe_container().inside()
          ? "start the container with `--security-opt seccomp=unconfined`, or with a profile that "
            "allows io_uring_setup, io_uring_enter and io_uring_register"
          : "boot a kernel with CONFIG_IO_URING");
}

Finding check_discard_vector() {
  const int rc = probe_discard_vector();
  if (rc == 0)
    return Finding::ok("process_madvise", "DONTNEED on this process, one call per batch");
  if (rc == -EPERM)
    return Finding::warn("process_madvise", "refused (EPERM)", "one madvise call per run of pages",
                         "start the container with `--cap-add SYS_PTRACE` (engines' filters allow "
                         "process_madvise then)");
  return Finding::info(
      "process_madvise",
      "no DONTNEED on this process (kernels before 6.14): one madvise call per run of pages");
}

// ---- privileges and limits ----------------------------------------------------------------------

Finding check_privileges() {
  std::string value = text_of("user %s", user_name().c_str());
  struct Named {
    unsigned number;
    const char* name;
  };
  static constexpr Named kWanted[] = {{CAP_SYS_PTRACE, "CAP_SYS_PTRACE"},
                                      {CAP_IPC_LOCK, "CAP_IPC_LOCK"},
                                      {CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}};
  for (const Named& wanted : kWanted) {
    if (has_capability(wanted.number)) value += std::string(", ") + wanted.name;
  }
  return Finding::info("privileges", value);
}

// Most lacks of a container are fixed by a flag at its start. Each lack names its flag.
Finding check_container() {
  const ContainerState state = probe_container();
  if (!state.inside())
    return Finding::info("container", state.filtered ? "none; a system call filter is on" : "none");
  return Finding::info("container", state.engine + (state.filtered ? ", a system call filter is on"
                                                                   : ", no system call filter"));
}

Finding check_memlock() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return Finding::ok("memlock limit", "unlimited");
  const std::string value = size_text(limit.rlim_cur);
  if (has_capability(CAP_IPC_LOCK))
    return Finding::ok("memlock limit", value + ", not applied (CAP_IPC_LOCK)");
  constexpr uint64_t kEnough = 64 * kMiB;
  if (limit.rlim_cur >= kEnough) return Finding::ok("memlock limit", value);
  return Finding::warn("memlock limit", value,
                       "I/O buffers cannot all be registered, so that each I/O pins its pages",
                       memlock_remedy());
}

Finding check_pipe_pages() {
  const std::string text = read_line("/proc/sys/fs/pipe-user-pages-soft");
  const uint64_t pages = strtoull(text.c_str(), nullptr, 10);
  const bool exempt = has_capability(CAP_SYS_RESOURCE) || has_capability(CAP_SYS_ADMIN);
  const std::string value =
      pages == 0 ? "no limit"
                 : text_of("%llu pages per user", static_cast<unsigned long long>(pages));
  if (exempt || pages == 0 || pages >= 4096)
    return Finding::ok("pipe pages", value + (exempt && pages ? ", not applied (privileged)" : ""));
  return Finding::warn("pipe pages", value, "pages leave DRAM in smaller batches",
                       "`sudo sysctl -w fs.pipe-user-pages-soft=16384`");
}

Finding check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string value =
      limit.rlim_cur == RLIM_INFINITY
          ? "unlimited"
          : text_of("%llu descriptors", static_cast<unsigned long long>(limit.rlim_cur));
  if (limit.rlim_cur >= 1024) return Finding::ok("open files", value);
  // the program's three, Lunar's, and those that activation opens for a moment
  constexpr rlim_t kNeeded = 12;
  if (limit.rlim_cur < kNeeded)
    return Finding::fail("open files", value,
                         text_of("Lunar needs %llu, and the program its own",
                                 static_cast<unsigned long long>(kNeeded)),
                         "`ulimit -n 1024`");
  return Finding::warn("open files", value,
                       "Lunar's own descriptors have numbers close to the program's",
                       "`ulimit -n 1024`");
}

// Reservations and thread stacks count against both limits, private writable memory against the
// second.
Finding check_memory_limits() {
  std::string value, command;
  const auto add = [&](decltype(RLIMIT_AS) which, const char* name, const char* flag) {
    rlimit limit{};
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    value += text_of("%s%s %s (%s)", value.empty() ? "" : ", ", name,
                     size_text(limit.rlim_cur).c_str(), flag);
    command += text_of("%s%s unlimited", command.empty() ? "" : "; ", flag);
  };
  add(RLIMIT_AS, "address space", "ulimit -v");
  add(RLIMIT_DATA, "data", "ulimit -d");
  if (value.empty()) return Finding::ok("memory limits", "none of this process");
  return Finding::warn(
      "memory limits", value,
      "a heap that the LUN could hold is refused: tiered memory counts against the limit although "
      "it is not in DRAM",
      "`" + command + "`");
}

// ---- memory -------------------------------------------------------------------------------------

Finding check_memory(const sys::UsableMemory& memory) {
  const std::string value = text_of("%s, %s usable: default DRAM budget %s",
                                    size_text(sys::machine_memory_bytes("MemTotal")).c_str(),
                                    size_text(memory.bytes).c_str(),
                                    size_text(round_down(memory.bytes / 4, kMiB)).c_str());
  if (memory.bytes / 4 >= kDramMin) return Finding::ok("memory", value);
  return Finding::warn("memory", value, "a quarter of it is below the minimum budget",
                       "`lunar run --dram 16m -- COMMAND`");
}

Finding check_cgroup(const sys::UsableMemory& memory) {
  if (memory.cgroup_version == 0)
    return Finding::info("memory cgroup", "no memory controller is mounted");
  const std::string limit =
      memory.limit_bytes == UINT64_MAX
          ? "no limit"
          : text_of("limit %s (%s), used %s", size_text(memory.limit_bytes).c_str(),
                    memory.limit_file, size_text(memory.used_bytes).c_str());
  return Finding::ok("memory cgroup",
                     text_of("version %d, %s", memory.cgroup_version, limit.c_str()));
}

Finding check_overcommit() {
  const std::string mode = read_line("/proc/sys/vm/overcommit_memory");
  if (mode != "2") return Finding::ok("overcommit", "mode " + mode);
  return Finding::fail(
      "overcommit", "mode 2 (strict)",
      "Lunar does not start: memory on the LUN would count against the commit limit",
      "`sudo sysctl -w vm.overcommit_memory=0`");
}

Finding check_thp() {
  const std::string mode = chosen(read_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  return Finding::info(
      "huge pages",
      mode.empty() ? "not offered" : "transparent: " + mode + " (tiered memory uses system pages)");
}

Finding check_swap() {
  const std::string text = read_text("/proc/swaps").value_or("");
  uint64_t bytes = 0;
  unsigned areas = 0;
  for (size_t at = text.find('\n'); at != std::string::npos && at + 1 < text.size();
       at = text.find('\n', at + 1)) {
    unsigned long long kib = 0;
    if (sscanf(text.c_str() + at + 1, "%*s %*s %llu", &kib) == 1) bytes += kib * 1024, ++areas;
  }
  return Finding::info("swap", areas ? size_text(bytes) + " in " + counted(areas, "area") : "none");
}

Finding check_numa() {
  unsigned nodes = 0;
  if (DIR* directory = opendir("/sys/devices/system/node")) {
    while (const dirent* entry = readdir(directory)) {
      if (strncmp(entry->d_name, "node", 4) == 0 &&
          isdigit(static_cast<unsigned char>(entry->d_name[4])))
        ++nodes;
    }
    closedir(directory);
  }
  return Finding::info("NUMA", text_of("%s, %ld CPUs", counted(std::max(nodes, 1u), "node").c_str(),
                                       sysconf(_SC_NPROCESSORS_ONLN)));
}

// ---- storage ------------------------------------------------------------------------------------

// The writable directory on a mounted disk with the most free space, as a remedy for a bad LUN.
std::string better_directory() {
  std::string best;
  uint64_t most = 0;
  FILE* mounts = setmntent("/proc/self/mounts", "r");
  if (!mounts) return "";
  while (const mntent* entry = getmntent(mounts)) {
    for (const char* below : {"/var/tmp", ""}) {
      std::string path = strcmp(entry->mnt_dir, "/") == 0 ? (*below ? below : "/")
                                                          : std::string(entry->mnt_dir) + below;
      FileSystem fs;
      if (access(path.c_str(), W_OK | X_OK) != 0 || probe_file_system(path, &fs) < 0 ||
          fs.in_memory || fs.read_only)
        continue;
      if (fs.free_bytes > most && probe_scratch_file(path) == 0) best = path, most = fs.free_bytes;
    }
  }
  endmntent(mounts);
  return best;
}

Finding check_lun_place(const Options& options, const sys::UsableMemory& memory) {
  Options wanted = options;
  if (wanted.dram == 0) wanted.dram = std::max(round_down(memory.bytes / 4, kMiB), kDramMin);
  std::string why;
  const bool good =
      check_lun(wanted, [](const char* name) { return std::string("option ") + name; }, &why);
  std::string value = wanted.lun;
  FileSystem fs;
  std::string lun = wanted.lun;
  std::string path = lun.compare(0, 5, "file:") == 0 ? lun.substr(5) : lun;
  if (probe_file_system(path, &fs) == 0)
    value += text_of(": %s, %s free", fs.kind.c_str(), size_text(fs.free_bytes).c_str());
  if (good) return Finding::ok("LUN", value);
  const std::string other = better_directory();
  return Finding::fail("LUN", value, why,
                       other.empty() || other == lun
                           ? "make a directory on a disk, and name it: `export LUNAR_LUN=DIR`"
                           : "`export LUNAR_LUN=" + shell_word(other) + "`");
}

bool is_in_use(const std::string& name) {
  std::string base = "/sys/block/" + name;
  // Device-mapper or md holds the device, or it has partitions.
  if (DIR* holders = opendir((base + "/holders").c_str())) {
    unsigned entries = 0;
    while (readdir(holders)) ++entries;
    closedir(holders);
    if (entries > 2) return true;
  }
  if (DIR* directory = opendir(base.c_str())) {
    bool partitioned = false;
    while (const dirent* entry = readdir(directory))
      partitioned |= access((base + "/" + entry->d_name + "/partition").c_str(), F_OK) == 0;
    closedir(directory);
    if (partitioned) return true;
  }
  struct stat status;
  if (stat(("/dev/" + name).c_str(), &status) != 0) return true;
  // The device is mounted or swapped on.
  std::string device = text_of(" %u:%u ", major(status.st_rdev), minor(status.st_rdev));
  if (read_text("/proc/self/mountinfo").value_or("").find(device) != std::string::npos) return true;
  return read_text("/proc/swaps").value_or("").find("/dev/" + name + " ") != std::string::npos;
}

Finding check_block_devices() {
  std::string list;
  if (DIR* directory = opendir("/sys/block")) {
    std::vector<std::string> names;
    while (const dirent* entry = readdir(directory)) {
      std::string name = entry->d_name;
      if (name[0] == '.' || name.compare(0, 3, "ram") == 0 || name.compare(0, 4, "zram") == 0 ||
          name.compare(0, 2, "sr") == 0)
        continue;
      names.push_back(name);
    }
    closedir(directory);
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      uint64_t bytes =
          strtoull(read_line("/sys/block/" + name + "/size").c_str(), nullptr, 10) * 512;
      if (bytes == 0 || read_line("/sys/block/" + name + "/ro") == "1" || is_in_use(name)) continue;
      list += text_of("%s/dev/%s (%s)", list.empty() ? "" : ", ", name.c_str(),
                      size_text(bytes).c_str());
    }
  }
  return Finding::info("free block devices", list.empty() ? "none" : list);
}

Finding check_preload() {
  std::string tried;
  std::string library = find_preload_library(&tried);
  if (!library.empty()) return Finding::ok("preload library", library);
  return Finding::fail("preload library", "not found",
                       "`lunar run` has nothing to load into programs; looked at " + tried,
                       "`ninja -C build`, or `sudo meson install -C build`");
}

}  // namespace

std::vector<Finding> examine_host(const Options& options) {
  const sys::UsableMemory memory = sys::usable_memory();
  std::vector<Finding> all = {
      check_kernel(),       check_userfaultfd(),    check_userfaultfd_rights(),
      check_io_uring(),     check_discard_vector(), check_privileges(),
      check_container(),    check_memlock(),        check_pipe_pages(),
      check_open_files(),   check_memory_limits(),  check_memory(memory),
      check_cgroup(memory), check_overcommit(),     check_thp(),
      check_swap(),         check_numa(),           check_lun_place(options, memory),
      check_block_devices()};
  for (Finding& finding : examine_devices()) all.push_back(std::move(finding));
  all.push_back(check_preload());
  return all;
}

}  // namespace lunar::tools
