// SPDX-License-Identifier: Apache-2.0
// Several paths to one device: see path_device.h. path_verify.cpp checks that they reach one
// device.
// Threading: as every device. start and child_done run on the data path: they may not allocate or
// block.
#include "lun/raid/path_device.h"

#include <errno.h>
#include <string.h>

#include "base/format.h"
#include "superpipe/device_files.h"
#include "superpipe/device_memory.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

// Whether another path may succeed after this error.
bool path_error(int64_t result) {
  switch (-result) {
    case EIO:
    case ENODEV:
    case ENXIO:
    case ETIMEDOUT:
    case ETIME:
    case ENOLINK:
    case EREMOTEIO:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ESHUTDOWN:
    case ECONNRESET:
    case ENOTCONN:
    case EBADF:
    case EBADE:  // BLK_STS_NEXUS
    // The range was checked before, so this is a write to a disk that was removed, whose size is 0.
    case ENOSPC:
      return true;
    default:
      return false;
  }
}

// Name and connection of the member that `uri` names.
void path_named(PathInfo* out, const char* uri) {
  const char* slash = strrchr(uri, '/');
  const char* base = slash ? slash + 1 : uri;
  format_to(out->name, sizeof out->name, "%.*s", static_cast<int>(strcspn(base, ",")), base);
  format_to(out->connection, sizeof out->connection, "%s", uri);
}

// Whether all of these devices have the same locks, so that any of them may be the first.
bool same_locks(Device* const* devices, unsigned count) {
  struct stat first{}, other;
  for (unsigned i = 0; i < count; ++i) {
    struct stat* status = i == 0 ? &first : &other;
    if (sys::file_status(devices[i]->fd(devices[i]->lock_count() - 1), status) < 0) return false;
    if (i > 0 && (other.st_dev != first.st_dev || other.st_ino != first.st_ino)) return false;
  }
  return true;
}

}  // namespace

int PathDevice::create(const char* name, Device* const* paths, const char* const* uris,
                       unsigned count, bool may_write, Device** out, ErrorText* why) {
  size_t bytes = strlen(name) + 1;
  for (unsigned i = 0; i < count; ++i) bytes += strlen(uris[i]) + 1;
  char* texts = nullptr;
  auto* device = device_new<PathDevice>(bytes, &texts);
  const auto keep = [&texts](const char* text) {
    const size_t length = strlen(text) + 1;
    const char* kept = static_cast<const char*>(memcpy(texts, text, length));
    texts += length;
    return kept;
  };
  int status = device ? 0 : why->set(-ENOMEM, "LUN %s: out of memory", name);
  if (status == 0) {
    device->adopt(keep(name), paths, count);
    for (unsigned i = 0; i < count; ++i) {
      device->uri_[i] = keep(uris[i]);
      if (!paths[i])
        device->missing_ |= 1u << i;
      else
        device->size_bytes_ = paths[i]->size_bytes();
    }
    device->failed_.store(device->missing_, std::memory_order_relaxed);
    status = device->verify(may_write, why);
  }
  if (status != 0) {
    for (unsigned i = 0; i < count; ++i) device_close(paths[i]);
    device_free(device);
    return status;
  }
  *out = device;
  return 0;
}

// The lowest enabled path; if there is none, any that was not tried.
unsigned PathDevice::pick(uint32_t tried) const {
  const uint32_t all = (1u << count_) - 1, left = all & ~missing_ & ~tried;
  const uint32_t enabled = left & ~failed_.load(std::memory_order_relaxed);
  if (enabled) return static_cast<unsigned>(__builtin_ctz(enabled));
  return left ? static_cast<unsigned>(__builtin_ctz(left)) : count_;
}

// Notes that an I/O succeeded on `path`, after it failed on the paths in `bad`.
void PathDevice::succeeded(unsigned path, uint32_t bad) {
  const uint32_t failed = failed_.load(std::memory_order_relaxed);
  if (!(bad & ~failed) && !(failed >> path & 1)) return;
  if (failed >> path & 1) failed_.fetch_and(~(1u << path), std::memory_order_relaxed);
  const uint32_t before = failed_.fetch_or(bad, std::memory_order_relaxed);
  const uint64_t next = sys::now_ns() + probe_ns_.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i) {
    if (bad >> i & 1 & ~(before >> i)) path_[i].probe_at_ns.store(next, std::memory_order_relaxed);
  }
}

// Claims the probe of a path, if it is due.
bool PathDevice::may_probe(unsigned path, uint64_t now) {
  uint64_t due = path_[path].probe_at_ns.load(std::memory_order_relaxed);
  if (now < due) return false;
  return path_[path].probe_at_ns.compare_exchange_strong(
      due, now + probe_ns_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void PathDevice::probed(unsigned path, int64_t result) {
  if (result > 0) {
    failed_.fetch_and(~(1u << path), std::memory_order_relaxed);
    return;
  }
  path_[path].errors.fetch_add(1, std::memory_order_relaxed);
}

int PathDevice::start(CompositeContext* context, CompositeParent* parent) {
  const int status = check(parent->command, &parent->bytes);
  if (status < 0) return status;
  if (!context->room(1 + count_, 0)) return -EAGAIN;
  const uint32_t failed = failed_.load(std::memory_order_relaxed) & ~missing_;
  if (failed) {
    const uint64_t now = sys::now_ns();
    for (unsigned i = 0; i < count_; ++i) {
      if ((failed >> i & 1) && may_probe(i, now)) context->probe(i);
    }
  }
  const unsigned path = pick(0);
  path_[path].ios.fetch_add(1, std::memory_order_relaxed);
  const bool data = parent->command.op == Op::kRead || parent->command.op == Op::kWrite;
  context->add(parent, path, parent->command, data ? parent->bytes : 0);
  return 0;
}

// Evaluates a result. Returns the next path to try, or -1: the result goes to the caller.
int PathDevice::settle(uint32_t* tried, uint32_t* bad, unsigned path, int64_t result,
                       uint64_t bytes) {
  *tried |= 1u << path;
  const bool short_count = result >= 0 && static_cast<uint64_t>(result) < bytes;
  if (!short_count && !path_error(result)) {
    if (result >= 0) succeeded(path, *bad);
    return -1;
  }
  path_[path].errors.fetch_add(1, std::memory_order_relaxed);
  *bad |= 1u << path;
  const unsigned next = pick(*tried);
  if (next == count_) return -1;
  path_[path].failovers.fetch_add(1, std::memory_order_relaxed);
  path_[next].ios.fetch_add(1, std::memory_order_relaxed);
  return static_cast<int>(next);
}

bool PathDevice::child_done(CompositeContext* context, CompositeParent* parent,
                            CompositeChild* child, int64_t result) {
  const int next = settle(&parent->tried, &parent->bad, child->member, result, child->bytes);
  if (next >= 0) {
    context->resend(child, static_cast<unsigned>(next));
    return true;
  }
  parent->result = result;
  return false;
}

int64_t PathDevice::transfer(const Command& command) {
  uint64_t bytes = 0;
  const int status = check(command, &bytes);
  if (status < 0) return status;
  if (command.op == Op::kDiscard || command.op == Op::kFlush) bytes = 0;
  const uint32_t failed = failed_.load(std::memory_order_relaxed) & ~missing_;
  uint32_t tried = 0, bad = 0;
  auto path = static_cast<int>(pick(0));
  if (failed) {  // once per kProbeNs, one caller tries the failed path with its own command
    const uint64_t now = sys::now_ns();
    for (unsigned i = 0; i < count_; ++i) {
      if ((failed >> i & 1) && may_probe(i, now)) path = static_cast<int>(i);
    }
  }
  path_[path].ios.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    const auto now_at = static_cast<unsigned>(path);
    const int64_t result = member_[now_at]->transfer(command);
    path = settle(&tried, &bad, now_at, result, bytes);
    if (path < 0) return result;
  }
}

int PathDevice::reserve(DeviceOffset offset, uint64_t length) {
  int status = -ENXIO;
  uint32_t tried = 0;
  for (;;) {
    const unsigned path = pick(tried);
    if (path == count_) return status;
    status = member_[path]->reserve(offset, length);
    if (!path_error(status)) return status;
    tried |= 1u << path;
  }
}

void PathDevice::release(DeviceOffset offset, uint64_t length) {
  const unsigned path = pick(0);
  if (path < count_) member_[path]->release(offset, length);
}

void PathDevice::describe(unsigned path, PathInfo* out) const {
  const Path& one = path_[path];
  const uint32_t failed = failed_.load(std::memory_order_relaxed);
  out->status = missing_ >> path & 1 ? "Missing" : failed >> path & 1 ? "Failed" : "Enabled";
  out->primary = pick(0) == path;
  out->ios = one.ios.load(std::memory_order_relaxed);
  out->errors = one.errors.load(std::memory_order_relaxed);
  out->failovers = one.failovers.load(std::memory_order_relaxed);
  path_named(out, uri_[path]);
}

int paths_in_order(Device* raw, ErrorText* why) {
  if (strcmp(raw->kind(), "paths") != 0) return 0;
  auto* paths = static_cast<PathDevice*>(raw);
  Device* devices[kCompositeMembersMax];
  const char* missing = nullptr;
  PathInfo one;
  unsigned count = 0;
  for (unsigned i = 0; i < paths->member_count(); ++i) {
    Device* device = paths->member(i);
    if (device && device->lock_count()) devices[count++] = device;
    if (device) continue;
    paths->describe(i, &one);
    missing = one.connection;
  }
  if (count == 0) return 0;
  if (same_locks(devices, count) &&
      (!missing || locks_know_backing_device(raw->fd(raw->lock_count() - 1))))
    return 0;
  if (missing)
    return why->set(-ENXIO,
                    "LUN %s: path %s is missing; virtual LUNs are locked by the first path, "
                    "so bring it back, or leave it out in every process",
                    raw->name(), missing);
  uint64_t before = 0;
  for (unsigned i = 0; i < count; ++i) {
    struct stat status;
    if (sys::file_status(devices[i]->fd(0), &status) < 0) continue;
    if (status.st_rdev < before)
      return why->set(-EINVAL,
                      "LUN %s: virtual LUNs are locked by the first path; "
                      "write the paths in the order of their device numbers (ls -l)",
                      raw->name());
    before = status.st_rdev;
  }
  return 0;
}

int device_paths(Device* device, PathInfo* out, unsigned max) {
  if (max == 0) return 0;
  const char* kind = device->kind();
  if (strcmp(kind, "paths") == 0) {
    auto* paths = static_cast<PathDevice*>(device);
    unsigned n = 0;
    for (; n < paths->member_count() && n < max; ++n) {
      out[n] = {};
      paths->describe(n, &out[n]);
    }
    return static_cast<int>(n);
  }
  if (strcmp(kind, "stripe") == 0) {
    auto* stripe = static_cast<CompositeDevice*>(device);
    int n = 0;
    for (unsigned i = 0; i < stripe->member_count(); ++i)
      n += device_paths(stripe->member(i), out + n, max - static_cast<unsigned>(n));
    return n;
  }
  out[0] = {};
  path_named(&out[0], device->name());
  out[0].status = "Enabled";
  out[0].primary = true;
  return 1;
}

}  // namespace lunar
