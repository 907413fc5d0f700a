// SPDX-License-Identifier: Apache-2.0
// The simulated device: see sim_device.h.
// Threading: a context belongs to its owner. The device's memory is shared and unordered, like the
// sectors of a disk. May not: allocate after attach.
#include "superpipe/sim/sim_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "superpipe/context_base.h"
#include "superpipe/device_memory.h"
#include "superpipe/ring/sync_context.h"
#include "superpipe/sim/device_copy.h"
#include "sys/arena.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr unsigned kDepthMax = 4096;
constexpr uint64_t kSectorBytes = 512;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSpinNs = 60'000;  // completions nearer than this are waited for on the CPU

enum class Fault : uint64_t {
  kReadError = 1,
  kWriteError,
  kTorn,
  kMisdirect,
  kCorrupt,
  kPlace,
  kFlushError = 8,
  kLostFlush,
  kBadPlace
};

// splitmix64 over (seed, I/O number, kind of fault): an I/O number has the same fate in every run.
uint64_t chance(uint64_t seed, uint64_t io, Fault fault) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + io * 8 + static_cast<uint64_t>(fault) % 8 +
               (static_cast<uint64_t>(fault) / 8 << 60);
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x;
}

bool strikes(const SimFaults& faults, uint64_t one_in, uint64_t io, Fault fault) {
  return one_in != 0 && chance(faults.seed, io, fault) % one_in == 0;
}

class SimContext final : public OwnedContext {
 public:
  static int create(SimDevice* device, const ContextOptions& options, OwnedContext** out);
  int submit(const Command* commands, unsigned n) override;
  int reap(Response* out, unsigned max) override;
  int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  int watch(int fd, uint64_t tag) override { return watches_.add(fd, tag); }
  unsigned in_flight() const override { return count_; }
  uint64_t usual_latency_ns() const override { return latency_.ns(); }
  int await(int64_t timeout_ns) override;
  void wakeups(Wakeups* out) override;
  void release() override;

 private:
  struct Pending {
    uint64_t due_ns;
    uint64_t start_ns;
    uint64_t io;
    uint64_t until;  // what a flush covers
    uint32_t epoch;  // of the backing device's power
    Command command;
  };
  SimContext() = default;
  unsigned deliver(Response* out, unsigned max);

  SimDevice* device_ = nullptr;
  Pending* pending_ = nullptr;  // ring of depth_; delivered in the order of submission
  unsigned depth_ = 0, first_ = 0, count_ = 0;
  // The due time of the oldest pending command; 0: none. For await(), which runs concurrently.
  std::atomic<uint64_t> next_due_ns_{0};
  WatchSet watches_;
  LatencyAverage latency_;
  size_t mapping_bytes_ = 0;
};

int SimContext::create(SimDevice* device, const ContextOptions& options, OwnedContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t head = round_up(sizeof(SimContext), 64),
               bytes = head + options.depth * sizeof(Pending);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) SimContext;
  context->device_ = device;
  context->pending_ = reinterpret_cast<Pending*>(memory + head);
  context->depth_ = options.depth;
  context->mapping_bytes_ = bytes;
  *out = context;
  return 0;
}

void SimContext::release() {
  drain();
  unmap_private(this, mapping_bytes_);
}

int SimContext::submit(const Command* commands, unsigned n) {
  const uint64_t now = sys::now_ns();
  unsigned taken = 0;
  for (; taken < n && count_ < depth_; ++taken) {
    const SimBacking& backing = device_->backing();
    pending_[(first_ + count_) % depth_] = {now + device_->latency_ns(commands[taken]),
                                            now,
                                            device_->next_io(),
                                            backing.completed(),
                                            backing.epoch(),
                                            commands[taken]};
    ++count_;
  }
  if (count_) next_due_ns_.store(pending_[first_].due_ns, std::memory_order_release);
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

int64_t sim_read(SimDevice* device, const Command& command, uint64_t io) {
  device->counters().reads.fetch_add(1, std::memory_order_relaxed);
  if (strikes(device->faults(), device->faults().read_error, io, Fault::kReadError)) {
    device->counters().read_errors.fetch_add(1, std::memory_order_relaxed);
    return -static_cast<int64_t>(device->faults().error);
  }
  const uint64_t at = command.offset.value, size = device->size_bytes();
  uint64_t left = size - std::min(at, size), done = 0;
  for (uint32_t i = 0; i < command.iov_count && left; ++i) {
    const uint64_t bytes = std::min<uint64_t>(command.iov[i].iov_len, left);
    copy_from_device(command.iov[i].iov_base, device->memory() + at + done, bytes);
    done += bytes;
    left -= bytes;
  }
  if (done && strikes(device->faults(), device->faults().corrupt, io, Fault::kCorrupt)) {
    device->counters().corrupted.fetch_add(1, std::memory_order_relaxed);
    uint64_t bit = chance(device->faults().seed, io, Fault::kPlace) % (done * 8);
    uint32_t part = 0;
    while (bit >= command.iov[part].iov_len * 8) bit -= command.iov[part++].iov_len * 8;
    static_cast<uint8_t*>(command.iov[part].iov_base)[bit / 8] ^=
        static_cast<uint8_t>(1u << bit % 8);
  }
  return static_cast<int64_t>(done);
}

int64_t sim_write(SimDevice* device, const Command& command, uint64_t io) {
  SimCounters& counters = device->counters();
  const SimFaults& faults = device->faults();
  counters.writes.fetch_add(1, std::memory_order_relaxed);
  const uint64_t bytes = command_bytes(command), size = device->size_bytes();
  uint64_t at = command.offset.value, lands = bytes;
  if (at > size || bytes > size - at) return -ENOSPC;
  const uint64_t place = chance(faults.seed, io, Fault::kPlace);
  bool fails = strikes(faults, faults.write_error, io, Fault::kWriteError);
  for (uint64_t page = at / kPageBytes; !fails && faults.bad != 0 && page * kPageBytes < at + bytes;
       ++page)
    fails = device->bad_place(page);
  if (fails) {
    counters.write_errors.fetch_add(1, std::memory_order_relaxed);
    return -static_cast<int64_t>(faults.error);
  }
  const bool whole = bytes <= kSectorBytes;
  if (bytes >= kSectorBytes && strikes(faults, faults.torn, io, Fault::kTorn)) {
    counters.torn.fetch_add(1, std::memory_order_relaxed);
    lands = place % (bytes / kSectorBytes) * kSectorBytes;
  } else if (strikes(faults, faults.misdirect, io, Fault::kMisdirect)) {
    const uint64_t places = (size - bytes) / kPageBytes + 1;  // pages at which the write fits
    uint64_t other = place % places;
    if (other * kPageBytes == at) other = (other + 1) % places;
    if (other * kPageBytes != at) {  // false if there is only one place
      counters.misdirected.fetch_add(1, std::memory_order_relaxed);
      at = other * kPageBytes;
    }
  }
  return device->backing().write(at, command.iov, lands, whole, command.fua)
             ? static_cast<int64_t>(bytes)
             : -EIO;
}

int64_t sim_flush(SimDevice* device, uint64_t io, uint64_t until) {
  SimCounters& counters = device->counters();
  const SimFaults& faults = device->faults();
  counters.flushes.fetch_add(1, std::memory_order_relaxed);
  if (strikes(faults, faults.flush_error, io, Fault::kFlushError)) {
    counters.flush_errors.fetch_add(1, std::memory_order_relaxed);
    return -static_cast<int64_t>(faults.error);
  }
  if (strikes(faults, faults.lost_flush, io, Fault::kLostFlush)) {
    counters.lost_flushes.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  return device->backing().flush(until) ? 0 : -EIO;
}

// until: a flush covers the records before it. epoch: of the backing device's power when the
// command was submitted.
int64_t carry_out(SimDevice* device, const Command& command, uint64_t io, uint64_t until,
                  uint32_t epoch) {
  const bool read = command.op == Op::kRead;
  if (device->failing(read) || !device->backing().powered() || device->backing().epoch() != epoch) {
    (read ? device->counters().read_errors : device->counters().write_errors)
        .fetch_add(1, std::memory_order_relaxed);
    return -EIO;
  }
  const uint64_t at = command.offset.value, size = device->size_bytes();
  switch (command.op) {
    case Op::kRead:
      return sim_read(device, command, io);
    case Op::kWrite:
      return sim_write(device, command, io);
    case Op::kDiscard:
      if (at > size || command.length > size - at) return -EINVAL;
      return device->backing().zero(at, command.length) ? 0 : -EIO;
    case Op::kFlush:
      return sim_flush(device, io, until);
  }
  return -EINVAL;
}

unsigned SimContext::deliver(Response* out, unsigned max) {
  if (count_ == 0 || max == 0) return 0;
  const uint64_t now = sys::now_ns();
  unsigned taken = 0;
  for (; taken < max && count_ && pending_[first_].due_ns <= now; ++taken) {
    const Pending& pending = pending_[first_];
    out[taken] = {pending.command.tag,
                  carry_out(device_, pending.command, pending.io, pending.until, pending.epoch)};
    if (pending.command.op == Op::kRead) latency_.add(now - pending.start_ns);
    first_ = (first_ + 1) % depth_;
    --count_;
  }
  next_due_ns_.store(count_ ? pending_[first_].due_ns : 0, std::memory_order_release);
  return taken;
}

int SimContext::await(int64_t timeout_ns) {
  const uint64_t due = next_due_ns_.load(std::memory_order_acquire), now = sys::now_ns();
  if (due <= now) return 0;  // a response is available, or no command is pending
  const bool in_time = timeout_ns < 0 || due - now <= static_cast<uint64_t>(timeout_ns);
  sys::sleep_ns(in_time ? due - now : static_cast<uint64_t>(timeout_ns));
  return in_time ? 0 : -ETIME;
}

void SimContext::wakeups(Wakeups* out) {
  watches_.wakeups(out);
  if (const uint64_t due = next_due_ns_.load(std::memory_order_acquire)) out->look_at(due);
}

int SimContext::reap(Response* out, unsigned max) {
  unsigned taken = deliver(out, max);
  if (taken < max && watches_.used) {
    const int n = serve_watches(&watches_, out + taken, max - taken, 0);
    if (n > 0) taken += static_cast<unsigned>(n);
  }
  return static_cast<int>(taken);
}

int SimContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  const sys::TimeLimit limit(timeout_ns);
  for (;;) {
    const int taken = reap(out, max);
    if (taken != 0 || max == 0 || (count_ == 0 && watches_.used == 0)) return taken;
    int64_t left = limit.left();
    if (left == 0) return 0;
    if (count_) {
      const uint64_t now = sys::now_ns();
      const uint64_t due = pending_[first_].due_ns;
      const int64_t until = due > now ? static_cast<int64_t>(due - now) : 0;
      if (left < 0 || until < left) left = until;
    }
    if (count_ && static_cast<uint64_t>(left) < kSpinNs) {
      sys::cpu_relax();
      continue;
    }
    // A wake-up takes time, so the thread sleeps a little less and spins for the rest.
    const int n = serve_watches(&watches_, out, max,
                                count_ ? left - static_cast<int64_t>(kSpinNs) / 2 : left);
    if (n != 0) return n;
  }
}

// "key=value" settings after the size.
int parse_setting(SimFaults* faults, const char* uri, const char* text, size_t length,
                  ErrorText* why) {
  struct Setting {
    const char* name;
    uint64_t* value;
  } const settings[] = {{"seed", &faults->seed},
                        {"latency_us", &faults->latency_us},
                        {"stall", &faults->stall},
                        {"stall_us", &faults->stall_us},
                        {"stalls", &faults->stalls},
                        {"read_error", &faults->read_error},
                        {"write_error", &faults->write_error},
                        {"bad", &faults->bad},
                        {"torn", &faults->torn},
                        {"misdirect", &faults->misdirect},
                        {"corrupt", &faults->corrupt},
                        {"errno", &faults->error},
                        {"flush_error", &faults->flush_error},
                        {"lost_flush", &faults->lost_flush}};
  for (const Setting& setting : settings) {
    const size_t name = strlen(setting.name);
    if (length <= name + 1 || strncmp(text, setting.name, name) != 0 || text[name] != '=') continue;
    char* end = nullptr;
    errno = 0;
    *setting.value = strtoull(text + name + 1, &end, 10);
    const bool whole = errno == 0 && end == text + length && text[name + 1] != '-';
    if (whole && (faults->error == 0 || faults->error > 4095))
      return why->set(-EINVAL, "LUN %s: errno is 1 to 4095", uri);
    if (whole) return 0;
    return why->set(-EINVAL, "LUN %s: %s needs a whole number", uri, setting.name);
  }
  return why->set(
      -EINVAL,
      "LUN %s: unknown setting '%.*s'; known: seed, latency_us, read_error, write_error, bad, "
      "flush_error, torn, misdirect, corrupt, lost_flush, stall, stall_us, stalls, errno, cache, "
      "name",
      uri, static_cast<int>(length), text);
}

}  // namespace

bool SimDevice::bad_place(uint64_t page) const {
  return strikes(faults_, faults_.bad, page, Fault::kBadPlace);
}

int SimDevice::open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  const char* text = uri + 4;  // after "sim:"
  size_t length = strcspn(text, ",");
  uint64_t size = 0, cache = 0;
  if (parse_size(text, length, &size) < 0 || size < kPageBytes)
    return why->set(-EINVAL,
                    "LUN %s: '%.*s' is not a size of 4k or more; write sim:SIZE[,key=value]...",
                    uri, static_cast<int>(length), text);
  SimFaults faults;
  char shared[SimBacking::kNameBytes] = {};
  for (text += length; *text == ','; text += length) {
    length = strcspn(++text, ",");
    if (strncmp(text, "name=", 5) == 0) {
      if (length == 5 || length - 5 >= sizeof shared)
        return why->set(-EINVAL, "LUN %s: name needs 1 to %zu letters", uri, sizeof shared - 1);
      memset(shared, 0, sizeof shared);
      memcpy(shared, text + 5, length - 5);
      continue;
    }
    if (strncmp(text, "cache=", 6) == 0) {
      if (parse_size(text + 6, length - 6, &cache) < 0 || cache < kPageBytes)
        return why->set(-EINVAL, "LUN %s: cache needs a size of 4k or more", uri);
      continue;
    }
    const int err = parse_setting(&faults, uri, text, length, why);
    if (err < 0) return err;
  }
  size = round_down(size, kPageBytes);
  if (options.want_bytes > size)
    return why->set(-ENOSPC, "LUN %s: %s large, %s wanted; give a larger one", uri,
                    format_size(size).text, format_size(options.want_bytes).text);
  const char* name = nullptr;
  auto* device = device_new<SimDevice>(uri, &name);
  if (!device) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  const int err = SimBacking::find_or_make(uri, shared, size, round_up(cache, kPageBytes),
                                           &device->backing_, why);
  if (err < 0) {
    device_free(device);
    return err;
  }
  device->name_ = name;
  device->size_bytes_ = size;
  device->faults_ = faults;
  *out = device;
  return 0;
}

void SimDevice::close() {
  check_detached();
  backing_->close();
  device_free(this);
}

int64_t SimDevice::transfer(const Command& command) {
  const uint64_t until = backing_->completed();
  const uint32_t epoch = backing_->epoch();
  if (const uint64_t latency = latency_ns(command)) sys::sleep_ns(latency);
  return carry_out(this, command, next_io(), until, epoch);
}

Capabilities SimDevice::capabilities() const {
  Capabilities out;
  out.discard = true;
  out.polled = true;
  out.persistent = false;
  out.fua = backing_->cached() ? Fua::kWriteThrough : Fua::kFree;
  out.memory_align = 1;
  return out;
}

int SimDevice::attach(const ContextOptions& options, Context** out) {
  OwnedContext* context = nullptr;
  const int status = SimContext::create(this, options, &context);
  return attached(status, context, out);
}

int SimDevice::reserve(DeviceOffset offset, uint64_t length) {
  return offset.value > size_bytes_ || length > size_bytes_ - offset.value ? -ENOSPC : 0;
}

}  // namespace lunar
