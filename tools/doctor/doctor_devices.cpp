// SPDX-License-Identifier: Apache-2.0
// Findings of `lunar doctor` about what LUNs can be and how their I/O can go: see doctor_checks.h.
// Threading: one thread. May not be used by runtime/ (it allocates).
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

// Nodes that a URI scheme opens: which there are, and how those that are closed to this user are
// opened.
Finding check_nodes(const char* name, const std::vector<std::string>& nodes, const char* scheme,
                    const char* none) {
  if (nodes.empty()) return {name, Health::kInfo, none, "", ""};
  std::string list, closed;
  for (const std::string& node : nodes) {
    list += (list.empty() ? "" : ", ") + node;
    if (access(node.c_str(), R_OK | W_OK) == 0) continue;
    list += " (closed to this user)";
    closed += " " + node;
  }
  Finding finding{name, closed.empty() ? Health::kOk : Health::kInfo, list, "", ""};
  if (!closed.empty()) {
    finding.lack = text_of("this user may not open %s as a LUN (%s:)", closed.c_str() + 1, scheme);
    finding.remedy = "`sudo setfacl -m u:" + user_name() + ":rw" + closed +
                     "` (till the next boot; permanently: a udev rule)";
  }
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
                               : text_of("memlock limit %s", format_size(limit.rlim_cur).text);
  if (status == 0) return {"registered window", Health::kOk, "available, " + most, "", ""};
  Finding finding{"registered window", Health::kWarn,
                  text_of("refused (%s), %s", errno_name(status), most.c_str()),
                  "each I/O pins its own pages", ""};
  finding.remedy =
      status == -ENOMEM ? memlock_remedy() : std::string("allow io_uring (see its line)");
  return finding;
}

Finding check_capi() {
  for (const char* const* place = kCapiLibraryPlaces; *place; ++place) {
    if (access(*place, R_OK) == 0) return {"CAPI library", Health::kInfo, *place, "", ""};
  }
  return {"CAPI library", Health::kInfo, "IBM's libcflsh_block is not installed (only for capi:)",
          "", ""};
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
