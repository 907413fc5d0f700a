// SPDX-License-Identifier: Apache-2.0
// The registry: see registry.h.
// Threading: any thread, blocking. May not be used on the fault path.
#include "superpipe/registry.h"

#include <errno.h>
#include <string.h>

#include "superpipe/capi/capi_device.h"
#include "superpipe/file/file_device.h"
#include "superpipe/nvme/nvme_device.h"
#include "superpipe/pmem/pmem_device.h"
#include "superpipe/sim/mem_device.h"
#include "superpipe/sim/sim_device.h"
#include "sys/file.h"

namespace lunar {

const char* device_schemes() { return "file, nvme, pmem, capi, mem, sim"; }

int device_open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  *out = nullptr;
  if (!uri || !*uri) return why->set(-EINVAL, "LUN: empty name; give a directory on a disk");
  const char* colon = strchr(uri, ':');
  const char* slash = strchr(uri, '/');
  if (!colon || (slash && slash < colon)) return FileDevice::open(uri, uri, options, out, why);
  const auto scheme = static_cast<size_t>(colon - uri);
  const auto is = [&](const char* name) {
    return strlen(name) == scheme && strncmp(uri, name, scheme) == 0;
  };
  if (is("file")) return FileDevice::open(uri, colon + 1, options, out, why);
  if (is("nvme")) return NvmeDevice::open(uri, options, out, why);
  if (is("pmem")) return PmemDevice::open(uri, colon + 1, options, out, why);
  if (is("capi")) return CapiDevice::open(uri, options, out, why);
  if (is("mem")) return MemDevice::open(uri, options, out, why);
  if (is("sim")) return SimDevice::open(uri, options, out, why);
  struct stat status;
  // A file whose name looks like a URI.
  if (sys::path_status(uri, &status) == 0) return FileDevice::open(uri, uri, options, out, why);
  return why->set(-EINVAL, "LUN %s: unknown scheme '%.*s'; known: %s", uri,
                  static_cast<int>(scheme), uri, device_schemes());
}

}  // namespace lunar
