// SPDX-License-Identifier: Apache-2.0
// URI dispatch of devices.
// Threading: open and close on one thread at a time a device. May not be used on the fault path.
#include <errno.h>
#include <string.h>

#include "superpipe/device.h"
#include "superpipe/file_device.h"
#include "superpipe/sim_device.h"

namespace lunar {

int device_open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  *out = nullptr;
  if (!uri || !*uri) return why->set(-EINVAL, "LUN: empty name; give a directory on a disk (--lun /var/tmp)");
  if (!options.scratch) return why->set(-ENOTSUP, "LUN %s: only scratch LUNs can be opened so far", uri);
  if (strncmp(uri, "sim:", 4) == 0) return SimDevice::open(uri, options, out, why);
  const char* path = strncmp(uri, "file:", 5) == 0 ? uri + 5 : uri;
  return FileDevice::open(uri, path, options, out, why);
}

void device_close(Device* device) {
  if (!device) return;
  if (strcmp(device->kind(), "sim") == 0) static_cast<SimDevice*>(device)->close();
  else static_cast<FileDevice*>(device)->close();
}

}  // namespace lunar
