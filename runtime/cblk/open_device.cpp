// SPDX-License-Identifier: Apache-2.0
// Opening devices for the block library: see open_device.h.
// Threading: any, blocking.
#include "cblk/open_device.h"

#include <errno.h>
#include <string.h>

#include "base/format.h"
#include "lun/compose.h"
#include "lun/raid/path_device.h"

namespace lunar::cblk {
namespace {

constexpr int kTurnsMax = 8;

}  // namespace

int split_devices(const char* path, char (*out)[kPathBytes], unsigned max) {
  unsigned count = 0;
  for (const char* at = path;; ++at) {
    const char* from = at;
    size_t length;
    if (*at == '(') {
      int depth = 0;
      do {
        if (*at == '(')
          ++depth;
        else if (*at == ')')
          --depth;
        else if (!*at)
          return -EINVAL;
        ++at;
      } while (depth);
      ++from;
      length = static_cast<size_t>(at - from) - 1;
    } else {
      at += scheme_length(at);
      at += strcspn(at, ":");
      length = static_cast<size_t>(at - from);
    }
    if (length == 0 || length == scheme_length(from) || count == max) return -EINVAL;
    if (length >= kPathBytes) return -ENAMETOOLONG;
    memcpy(out[count], from, length);
    out[count++][length] = '\0';
    if (!*at) return static_cast<int>(count);
    if (*at != ':') return -EINVAL;
  }
}

int paths_uri(const char* path, char* out, size_t size) {
  static thread_local char names[kDevicesMax][kPathBytes];
  const int count = split_devices(path, names, kDevicesMax);
  if (count < 0) return count;
  size_t length = count == 1 ? 0 : format_to(out, size, "paths:");
  for (int i = 0; i < count; ++i) {
    if (length + strlen(names[i]) + 2 > size) return -ENAMETOOLONG;
    length += format_to(out + length, size - length, i ? ";%s" : "%s", names[i]);
  }
  return 0;
}

// Virtual LUNs without owners hold no data, so the format is ended and the caller gets the device.
int open_whole(const char* path, bool read_only, Claim claim, Device** out, ErrorText* why) {
  DeviceOptions options;
  options.scratch = false;
  options.read_only = read_only;
  options.claim = claim;
  const bool as_it_is = claim == Claim::kForced || claim == Claim::kFurther;
  for (int turns = 0, busy = 0;; ++turns) {
    // Blank members of a stripe get labels, because the caller has named them as a stripe.
    int status = raw_open(path, options, read_only ? Format::kNever : Format::kIfBlank, out, why);
    if (status < 0 || as_it_is) return status;
    DeviceContent content = DeviceContent::kForeign;
    char what[64];
    // The caller may open data of other formats.
    status = device_content(*out, &content, what, sizeof what, true);
    if (status < 0)
      (void)why->set(status, "LUN %s: cannot look at what it holds: %s (%s)", path,
                     errno_text(status), errno_name(status));
    const bool ours = content == DeviceContent::kPhysicalLun || content == DeviceContent::kEnded ||
                      content == DeviceContent::kMember;
    if (status == 0 && (!ours || read_only)) return 0;  // a read-only open ends no format
    device_close(*out);
    *out = nullptr;
    if (status < 0) return status;
    if (content == DeviceContent::kMember)
      return why->set(
          -EBUSY, "LUN %s: carries %s; open the whole of it, or force it (CBLK_OPN_FORCED_RESERVE)",
          path, what);
    if (turns == kTurnsMax)
      return why->set(-EBUSY, "LUN %s: others make virtual LUNs on it again and again; try later",
                      path);
    status = physical_end(path, why);
    // Another process may have ended the format, and have the device now.
    if (status == 0 || status == -ENODEV || (status == -EBUSY && busy++ == 0)) continue;
    return status == -ENOMEM ? status : -EBUSY;
  }
}

int open_virtual(const char* path, VirtualLun** out, ErrorText* why) {
  PhysicalLun* physical = nullptr;
  const int status = physical_open(path, Format::kIfBlank, &physical, why);
  VirtualOptions options;
  options.joins = true;
  // VirtualLun::open takes ownership of `physical`.
  return status < 0 ? status : VirtualLun::open(physical, options, out, why);
}

Ways ways_to(Device* device) {
  PathInfo paths[kDevicesMax];
  const int count = device_paths(device, paths, kDevicesMax);
  Ways out;
  if (count > 0 && strcmp(device->kind(), "paths") == 0) out.count = static_cast<unsigned>(count);
  for (int i = 0; i < count; ++i) {
    out.fail_overs += paths[i].failovers;
    if (paths[i].primary) out.primary = static_cast<unsigned>(i);
  }
  return out;
}

}  // namespace lunar::cblk
