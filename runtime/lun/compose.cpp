// SPDX-License-Identifier: Apache-2.0
// Opening by URI: see compose.h.
//
// A composite URI is split at ';' outside of parentheses; a member in parentheses is a raw URI of
// its own.
// Threading: any, blocking. Allocates through map_private. Not for the fault path.
#include "lun/compose.h"

#include <errno.h>
#include <string.h>

#include <initializer_list>

#include "base/format.h"
#include "lun/member_set.h"
#include "lun/raid/path_device.h"
#include "lun/raid/stripe_device.h"
#include "superpipe/registry.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar {
namespace {

constexpr unsigned kDepthMax = 2;  // stripe over paths
constexpr size_t kUriBytesMax = 4096;
constexpr int kLabelTries = 3;

enum class Kind : uint8_t { kStripe, kPaths };
struct Scheme {
  const char* prefix;
  Kind kind;
};
constexpr Scheme kSchemes[] = {{"stripe:", Kind::kStripe}, {"paths:", Kind::kPaths}};

const Scheme* scheme_of(const char* uri) {
  for (const Scheme& scheme : kSchemes) {
    if (strncmp(uri, scheme.prefix, strlen(scheme.prefix)) == 0) return &scheme;
  }
  return nullptr;
}

// Member URIs of a composite one, without their parentheses: slices of a copy.
struct Members {
  explicit Members(const char* text) : copy(text) {}
  const TextCopy copy;
  unsigned count = 0;
  char* uri[kCompositeMembersMax] = {};
};

int split(const char* uri, const Scheme& scheme, Members* out, ErrorText* why) {
  if (strlen(uri) - strlen(scheme.prefix) > kUriBytesMax)
    return why->set(-ENAMETOOLONG, "LUN: the URI is longer than %zu bytes", kUriBytesMax);
  if (!out->copy.text()) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  int depth = 0;
  char* start = out->copy.text();
  for (char* at = start;; ++at) {
    if (*at == '(') ++depth;
    if (*at == ')' && --depth < 0) break;
    if (*at && (*at != ';' || depth > 0)) continue;
    const bool end = *at == 0;
    *at = 0;
    if (out->count == kCompositeMembersMax)
      return why->set(-EINVAL, "LUN %s: more than %u members", uri, kCompositeMembersMax);
    char* last = at - 1;
    if (at > start && *start == '(' && *last == ')') {
      *last = 0;
      ++start;
    }
    if (*start == 0)
      return why->set(-EINVAL, "LUN %s: an empty member; write %sURI;URI", uri, scheme.prefix);
    out->uri[out->count++] = start;
    start = at + 1;
    if (end) break;
  }
  if (depth != 0) return why->set(-EINVAL, "LUN %s: parentheses do not match", uri);
  if (out->count < 2)
    return why->set(-EINVAL, "LUN %s: one member; write %sURI;URI", uri, scheme.prefix);
  return 0;
}

int open_at(const char* uri, const DeviceOptions& options, Format format, unsigned level,
            Device** out, ErrorText* why);

void close_all(MemberSet* set) {
  for (Device*& device : set->device) {
    device_close(device);
    device = nullptr;
  }
}

bool may_contain(Kind outer, const Scheme* inner) {
  return !inner || (outer == Kind::kStripe && inner->kind == Kind::kPaths);
}

// Whether a path may be missing, because other paths can replace it. A path that exists but is
// wrong is refused.
bool may_be_missing(const Scheme& scheme, int status) {
  return scheme.kind == Kind::kPaths &&
         (status == -ENOENT || status == -ENXIO || status == -ENODEV || status == -EIO ||
          status == -ENOTDIR || status == -ETIMEDOUT);
}

int open_members(const char* uri, const Scheme& scheme, const Members& members,
                 const DeviceOptions& options, Format format, unsigned level, MemberSet* set,
                 ErrorText* why) {
  DeviceOptions each = options;
  each.want_bytes = 0;
  set->count = members.count;
  unsigned fds = 0;
  for (unsigned i = 0; i < members.count; ++i) {
    const Scheme* inner = scheme_of(members.uri[i]);
    if (!may_contain(scheme.kind, inner))
      return why->set(-EINVAL, "LUN %s: %s cannot be a member of %s; a stripe may consist of paths",
                      uri, inner->prefix, scheme.prefix);
    const int status = open_at(members.uri[i], each, format, level + 1, &set->device[i], why);
    // The paths are one device: an exclusive claim on the first covers all.
    if (status == 0 && scheme.kind == Kind::kPaths &&
        (each.claim == Claim::kAlone || each.claim == Claim::kForced))
      each.claim = Claim::kLook;
    if (status < 0 && may_be_missing(scheme, status)) {
      log_warning("%s; %s goes on without it", why->text, scheme.prefix);
      set->device[i] = nullptr;
      continue;
    }
    if (status < 0) return status;
    for (unsigned j = 0; j < i && scheme.kind != Kind::kPaths; ++j) {
      if (set->device[j] && same_backing_device(set->device[i], set->device[j]))
        return why->set(-EINVAL, "LUN %s: %s is there twice; give different devices", uri,
                        members.uri[i]);
    }
    fds += set->device[i] ? set->device[i]->fd_count() : 0;
  }
  if (fds > kDeviceFdsMax)
    return why->set(-E2BIG,
                    "LUN %s: %u descriptors (two a device node, and one for each further node of "
                    "an NVMe namespace), %u is the limit; give fewer devices",
                    uri, fds, kDeviceFdsMax);
  return 0;
}

int open_composite(const char* uri, const Scheme& scheme, const DeviceOptions& options,
                   Format format, unsigned level, Device** out, ErrorText* why) {
  Members members(uri + strlen(scheme.prefix));
  int status = split(uri, scheme, &members, why);
  if (status != 0) return status;
  MemberSet set;
  status = open_members(uri, scheme, members, options, format, level, &set, why);
  if (status == 0 && scheme.kind == Kind::kStripe) {
    // An open that shares the members does not label them, because two concurrent opens would make
    // two sets of them (raw_open).
    const bool alone = options.claim == Claim::kAlone || format != Format::kIfBlank;
    status = label_assemble(uri, &set, alone ? format : Format::kNever, why);
    if (status == 0)
      return StripeDevice::create(uri, set.device, set.count, kMemberDataOffset,
                                  set.label[0].data_bytes, out, why);
  } else if (status == 0) {
    return PathDevice::create(uri, set.device, members.uri, set.count,
                              format != Format::kNever && !options.read_only, out, why);
  }
  close_all(&set);
  return status;
}

int open_at(const char* uri, const DeviceOptions& options, Format format, unsigned level,
            Device** out, ErrorText* why) {
  *out = nullptr;
  if (!uri || !*uri) return why->set(-EINVAL, "LUN: empty name; give a device or a file");
  const Scheme* scheme = scheme_of(uri);
  if (!scheme) return device_open(uri, options, out, why);
  if (level >= kDepthMax) return why->set(-EINVAL, "LUN %s: nested too deep", uri);
  const int status = open_composite(uri, *scheme, options, format, level, out, why);
  if (status != 0) return status;
  if ((*out)->size_bytes() >= options.want_bytes) return 0;
  const SizeText large = format_size((*out)->size_bytes());
  device_close(*out);
  *out = nullptr;
  return why->set(-ENOSPC, "LUN %s: %s large, %s wanted; give larger members", uri, large.text,
                  format_size(options.want_bytes).text);
}

}  // namespace

size_t scheme_length(const char* text) {
  if (const Scheme* composite = scheme_of(text)) return strlen(composite->prefix);
  for (const char* scheme : {"file:", "nvme:", "pmem:", "capi:", "mem:", "sim:"}) {
    const size_t length = strlen(scheme);
    if (strncmp(text, scheme, length) == 0) return length;
  }
  return 0;
}

int raw_open(const char* uri, const DeviceOptions& options, Format format, Device** out,
             ErrorText* why) {
  LUNAR_CHECK(!options.scratch, "raw_open is for raw devices");
  for (int tries = 0;; ++tries) {
    int status = open_at(uri, options, format, 0, out, why);
    const Scheme* scheme = uri ? scheme_of(uri) : nullptr;
    if (status != -ENODEV || !scheme || scheme->kind != Kind::kStripe ||
        format != Format::kIfBlank || options.claim == Claim::kAlone)
      return status;
    DeviceOptions alone = options;  // blank members are labelled first, by one open at a time
    alone.claim = Claim::kAlone;
    status = open_at(uri, alone, format, 0, out, why);
    // Memory of this process is not shared, and is lost when it is closed.
    if (status == 0 && (*out)->fd_count() == 0) return 0;
    if (status == 0) device_close(*out);
    *out = nullptr;
    if (status != 0 && (status != -EBUSY || tries == kLabelTries))
      return status;  // -EBUSY: another open labels the members
  }
}

int physical_open(const char* uri, Format format, PhysicalLun** out, ErrorText* why) {
  *out = nullptr;
  struct stat status;
  if (uri && strchr(uri, '#') &&
      sys::path_status(uri, &status) != 0)  // (a file may have a # in its name)
    return why->set(-EINVAL, "LUN %s: names a virtual LUN; give the device alone, without #NAME",
                    uri);
  DeviceOptions options;
  options.scratch = false;
  options.read_only = only_looks(format);
  if (options.read_only) options.claim = Claim::kLook;
  Device* raw = nullptr;
  const int err = raw_open(uri, options, format, &raw, why);
  return err != 0 ? err : PhysicalLun::open(raw, format, out, why);
}

int physical_end(const char* uri, ErrorText* why) {
  DeviceOptions options;
  options.scratch = false;
  options.claim = Claim::kAlone;
  Device* raw = nullptr;
  PhysicalLun* physical = nullptr;
  int status = raw_open(uri, options, Format::kIfBlank, &raw, why);
  if (status == 0) status = PhysicalLun::open(raw, Format::kEnd, &physical, why);
  if (status != 0) return status;
  status = physical->end(why);
  physical->close();
  return status;
}

}  // namespace lunar
