// SPDX-License-Identifier: Apache-2.0
// URI dispatch of devices, and what contexts do that know no better.
// Threading: open and close on one thread at a time a device. May not be used on the fault path.
#include <errno.h>
#include <string.h>

#include <bit>

#include "superpipe/capi_device.h"
#include "superpipe/device.h"
#include "superpipe/file_device.h"
#include "superpipe/mem_device.h"
#include "superpipe/nvme_device.h"
#include "superpipe/pmem_device.h"
#include "superpipe/sim_device.h"
#include "superpipe/wakeups.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kLookNs = 20'000;

}  // namespace

int Context::exchange(const Command* commands, unsigned n, unsigned* taken, Response* out, unsigned max, unsigned least,
                      int64_t timeout_ns) {
  const int submitted = n ? submit(commands, n) : 0;
  *taken = submitted > 0 ? static_cast<unsigned>(submitted) : 0;
  if (submitted < 0 && submitted != -EAGAIN) return submitted;
  if (least > max) least = max;
  const uint64_t start = timeout_ns > 0 ? sys::now_ns() : 0;
  unsigned got = 0;
  do {
    int64_t left = timeout_ns;
    if (timeout_ns > 0) {
      const auto passed = static_cast<int64_t>(sys::now_ns() - start);
      left = passed < timeout_ns ? timeout_ns - passed : 0;
    }
    const int status = got < least ? wait(out + got, max - got, left) : reap(out + got, max - got);
    if (status < 0) return got ? static_cast<int>(got) : status;
    if (status == 0) break;   // the timeout, or nothing on its way
    got += static_cast<unsigned>(status);
  } while (got < least);
  return static_cast<int>(got);
}

// By looking again.
void Context::wakeups(Wakeups* out) { out->look_at(sys::now_ns() + kLookNs); }

const char* fua_text(Fua fua) {
  switch (fua) {
    case Fua::kFree: return "free";
    case Fua::kWriteThrough: return "write-through";
    case Fua::kFlush: return "flush";
  }
  return "";
}

bool atomic_fits(const Command& command, uint64_t atomic_write_bytes) {
  if (command.iov_count != 1) return false;
  const uint64_t bytes = command.iov->iov_len;
  return std::has_single_bit(bytes) && bytes <= atomic_write_bytes && command.offset.value % bytes == 0;
}

const char* device_schemes() { return "file, nvme, pmem, capi, mem, sim"; }

int device_open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  *out = nullptr;
  if (!uri || !*uri) return why->set(-EINVAL, "LUN: empty name; give a directory on a disk (--lun /var/tmp)");
  const char* colon = strchr(uri, ':');
  const char* slash = strchr(uri, '/');
  if (!colon || (slash && slash < colon)) return FileDevice::open(uri, uri, options, out, why);
  const auto scheme = static_cast<size_t>(colon - uri);
  const auto is = [&](const char* name) { return strlen(name) == scheme && strncmp(uri, name, scheme) == 0; };
  if (is("file")) return FileDevice::open_uri(uri, options, out, why);
  if (is("nvme")) return NvmeDevice::open(uri, options, out, why);
  if (is("pmem")) return PmemDevice::open(uri, colon + 1, options, out, why);
  if (is("capi")) return CapiDevice::open(uri, options, out, why);
  if (is("mem")) return MemDevice::open(uri, options, out, why);
  if (is("sim")) return SimDevice::open(uri, options, out, why);
  struct stat status;
  if (sys::path_status(uri, &status) == 0) return FileDevice::open(uri, uri, options, out, why);   // a file of that name
  return why->set(-EINVAL, "LUN %s: unknown scheme '%.*s'; known: %s", uri, static_cast<int>(scheme), uri, device_schemes());
}

}  // namespace lunar
