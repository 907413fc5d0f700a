// SPDX-License-Identifier: Apache-2.0
// Findings of `lunar doctor` about kinds of LUNs and their I/O: see doctor_checks.h.
#include <glob.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/units.h"
#include "superpipe/capi/capi_library.h"
#include "sys/uring.h"
#include "tools/doctor/doctor_checks.h"
#include "tools/support/host.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

std::vector<std::string> matches(const char* pattern) {
  std::vector<std::string> out;
  glob_t found{};
  if (glob(pattern, 0, nullptr, &found) == 0)
    out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return out;
}

// Lists the nodes that a URI scheme can open, with a remedy for those closed to this user.
Finding check_nodes(const char* name, const std::vector<std::string>& nodes, const char* scheme,
                    const char* none) {
  if (nodes.empty()) return Finding::info(name, none);
  std::string list, closed;
  for (const std::string& node : nodes) {
    list += (list.empty() ? "" : ", ") + node;
    if (access(node.c_str(), R_OK | W_OK) == 0) continue;
    list += " (closed to this user)";
    closed += " " + node;
  }
  if (closed.empty()) return Finding::ok(name, list);
  Finding finding = Finding::info(name, list);
  finding.lack = text_of("this user may not open %s as a LUN (%s:)", closed.c_str() + 1, scheme);
  finding.remedy = "`sudo setfacl -m u:" + user_name() + ":rw" + closed +
                   "` (until the next boot; permanently: a udev rule)";
  return finding;
}

Finding check_window() {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int status = page == MAP_FAILED ? -ENOMEM : sys::uring_probe_window(page, bytes);
  if (page != MAP_FAILED) munmap(page, bytes);
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string most = limit.rlim_cur == RLIM_INFINITY
                               ? "no memlock limit"
                               : text_of("memlock limit %s", size_text(limit.rlim_cur).c_str());
  if (status == 0) return Finding::ok("registered window", "available, " + most);
  return Finding::warn(
      "registered window", text_of("refused (%s), %s", errno_name(status), most.c_str()),
      "each I/O pins its own pages",
      status == -ENOMEM ? memlock_remedy() : std::string("allow io_uring (see its line)"));
}

Finding check_capi() {
  for (const char* const* place = kCapiLibraryPlaces; *place; ++place) {
    if (access(*place, R_OK) == 0) return Finding::info("CAPI library", *place);
  }
  return Finding::info("CAPI library", "IBM's libcflsh_block is not installed (only for capi:)");
}

}  // namespace

std::vector<Finding> examine_devices() {
  std::vector<std::string> pmem = matches("/dev/pmem[0-9]*");
  for (const std::string& node : matches("/dev/dax[0-9]*")) pmem.push_back(node);
  return {check_window(),
          check_nodes("NVMe passthrough", matches("/dev/ng[0-9]*n[0-9]*"), "nvme",
                      "no /dev/ng* (nvme: needs one)"),
          check_nodes("persistent memory", pmem, "pmem",
                      "no /dev/pmem* or /dev/dax* (pmem: also takes a file in /dev/shm)"),
          check_capi()};
}

}  // namespace lunar::tools
