// SPDX-License-Identifier: Apache-2.0
// Superpipe: the user-space command path to a LUN.
//
//        thread A                thread B
//     ┌───────────┐           ┌───────────┐
//     │ Context   │           │ Context   │     each has its own command and response ring;
//     │ cmd │ rsp │           │ cmd │ rsp │     no lock shared between contexts
//     └──┬─────▲──┘           └──┬─────▲──┘
//        ▼     │                 ▼     │
//     ┌────────────────────────────────────┐
//     │ Device (file:, nvme:, pmem:, ...)  │     opened once, shared by all contexts
//     └────────────────────────────────────┘
//
// A thread *attaches* a Context to a Device, submits Commands and reaps Responses. Only the thread
// that attached a Context uses it. A context that was attached as `shared` may be used by any
// thread, one at a time (the caller locks), while others sleep in await(). A Device does not change
// after open, so any thread may use it; transfer() is the blocking call, without a context or a
// lock.
//
// Devices stack: virtual LUNs, stripes and paths (lun/) are Devices over Devices.
//
// Waiting: `wait` first spins for about the device's usual latency (each context keeps a moving
// average), then sleeps.
//
// Fault path: submit, reap, wait, watch do not allocate, take no lock of the host, and use no
// stdio. open, attach and reserve are not for the fault path.
#pragma once
#include <errno.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/units.h"
#include "superpipe/ownership.h"

namespace lunar {

struct JoinedFiles;
class Wakeups;

// kDiscard: from its response on, the range reads as zeros, on every device that supports it
// (otherwise -EOPNOTSUPP: Capabilities::discard). It acts like a write of zeros, but costs less: a
// block device or namespace may free the space; a file or pmem: keeps it, so that reserved space
// stays reserved. Not atomic; durable after a flush, like a write. length: not 0. Beyond the end of
// the device: -EINVAL, with nothing discarded; a file that may grow by writes may be given space
// there.
//
// Order and durability. Commands in flight are unordered, even within one context: B follows A only
// if it is submitted after A's response. kFlush: every write and discard that completed before the
// flush was submitted, through any context or transfer() of this Device, is durable when the flush
// completes. A command has completed when its caller has the response. Commands in flight at that
// moment may each be durable, lost or torn, even if the response comes before that of the flush. A
// flush delays nothing: a command submitted after it may become durable before it. To get "first A,
// then B" in any case, use: A, response, flush, response, B; or A with fua, response, B. A stripe
// flushes every member and waits for all; paths flush one of them, because they lead to one backing
// device; a virtual LUN flushes its device. After a failed flush, write again everything since the
// last successful one: a later flush that succeeds need not cover it (Linux reports a failed
// write-back once).
// Durable: survives a power loss of the host, if the device keeps its promises, and if
// Capabilities::persistent.
enum class Op : uint8_t { kRead, kWrite, kDiscard, kFlush };

struct Command {
  Op op = Op::kRead;
  DeviceOffset offset{};  // bytes; a multiple of Device::io_align()
  // kRead, kWrite: valid (with its memory) until the response. Lengths and addresses are multiples
  // of io_align().
  const iovec* iov = nullptr;
  uint32_t iov_count = 0;  // at most 256
  uint64_t length = 0;     // kDiscard: bytes
  uint64_t tag = 0;        // returned in the response
  // kWrite: only this write is durable when it completes (force unit access). Capabilities::fua has
  // the cost. Ignored for other commands
  bool fua = false;
  uint8_t file = 0;  // for a context over several files (Device::join): the index. Otherwise 0
};

// The bytes that the command moves or discards.
inline uint64_t command_bytes(const Command& command) {
  if (command.op == Op::kFlush) return 0;
  if (command.op == Op::kDiscard) return command.length;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < command.iov_count; ++i) bytes += command.iov[i].iov_len;
  return bytes;
}

struct Response {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes moved (the caller must treat a short count as an error), or -errno
};

struct ContextOptions {
  unsigned depth = 256;  // maximum number of commands in flight (1..4096)
  // A window, registered with the device if limits allow: I/O whose single iovec lies inside it
  // pins no pages per I/O. Optional; not owned
  void* buffer = nullptr;
  size_t buffer_bytes = 0;
  bool spin = true;  // wait() spins before it sleeps
  // Several threads will use it: see Context::await. Costs a little, because task work is not
  // deferred
  bool shared = false;
  // (with shared) They use it one after the other, each waiting for its own command: cheaper
  bool in_turns = false;
  // If commands are blocking calls (because the host refuses io_uring), threads of the device make
  // them, so that submit() does not wait for I/O. If a ring only lacks descriptors or memory,
  // attach() fails, and may be tried again. Not for the fault path
  bool delegate = false;
  // A further file that must stay open until the last I/O has ended, even after a kill, because
  // locks are on it
  int keep_fd = -1;
};

// What Command::fua costs beyond the write.
enum class Fua : uint8_t {
  // Nothing: every write is durable when it completes, if the device is durable at all
  // (Capabilities::persistent).
  kFree,
  // The write bypasses the device's cache.
  kWriteThrough,
  // The whole device is flushed after the write. For several writes: write without fua, then flush
  // once.
  kFlush,
};
const char* fua_text(Fua fua);  // "free", "write-through", "flush"

// What a device can do, probed at open. Shown by `lunar doctor` and `lunar lun info`.
struct Capabilities {
  bool discard = false;  // kDiscard works: discarded ranges read as zeros (otherwise -EOPNOTSUPP)
  bool window = false;   // ContextOptions::buffer is registered once, if RLIMIT_MEMLOCK allows
  // An I/O is a copy by the CPU, complete when its call returns: it cannot hang (pmem)
  bool instant = false;
  bool polled = false;     // wait() never sleeps for I/O, because a copy is the I/O (pmem, sim)
  bool persistent = true;  // the content survives the last close
  Fua fua = Fua::kFlush;
  uint64_t transfer_bytes_max = 16u << 20;  // of one command
  uint32_t memory_align = 512;              // of buffer addresses, bytes
};

class Context {
 public:
  virtual ~Context() = default;  // pre: nothing in flight (detach waits for that)
  // Queues and starts up to n commands. Returns how many were accepted (fewer if the ring is full),
  // or -errno if none could be. An accepted command always gets exactly one response.
  [[nodiscard]] virtual int submit(const Command* commands, unsigned n) = 0;
  // Takes available responses without waiting: 0..max.
  [[nodiscard]] virtual int reap(Response* out, unsigned max) = 0;
  // As reap, but waits until at least one response is available or timeout_ns has passed (< 0: no
  // limit). Returns 0..max, or -EINTR. With nothing in flight and nothing watched it returns 0 at
  // once.
  [[nodiscard]] virtual int wait(Response* out, unsigned max, int64_t timeout_ns) = 0;
  // submit() and wait() in one, for callers that keep many commands in flight and value CPU time
  // above the latency of one. Waits until `least` responses are available (or all that are in
  // flight, if fewer), with one system call and one wake-up if the device can do that.
  // *taken: how many commands were accepted, even if there is no response. Returns 0..max, or
  // -errno as wait().
  [[nodiscard]] virtual int exchange(const Command* commands, unsigned n, unsigned* taken,
                                     Response* out, unsigned max, unsigned least,
                                     int64_t timeout_ns);
  // Also report when `fd` (O_NONBLOCK) becomes readable, so that one wait serves faults and
  // completions: one Response{tag, poll events} through reap/wait; then the watch is over and must
  // be set again. A context may watch 4 fds.
  [[nodiscard]] virtual int watch(int fd, uint64_t tag) = 0;
  // Commands submitted and not yet reaped (watches not counted).
  virtual unsigned in_flight() const = 0;
  // Usual latency of a page read, nanoseconds, moving average; 0 before the first.
  virtual uint64_t usual_latency_ns() const = 0;
  // For shared contexts: sleeps until reap() may find a response, or timeout_ns has passed (< 0: no
  // limit). Uses nothing that submit and reap use, so it needs no lock: other threads may submit
  // and reap meanwhile. It may return spuriously; with nothing in flight it may return at once. 0
  // or -errno (-ETIME: the timeout, -EINTR).
  [[nodiscard]] virtual int await(int64_t timeout_ns) = 0;
  // For a thread that waits for several contexts at once: adds what may bring a response to reap()
  // (wakeups.h). May run concurrently with other calls, like await().
  virtual void wakeups(Wakeups* out);
};

class Device {
 public:
  virtual ~Device() = default;
  // Makes a context for the calling thread. Returns 0 or -errno; *out is released with detach().
  [[nodiscard]] virtual int attach(const ContextOptions& options, Context** out) = 0;
  // Called by the thread that attached. Waits for commands in flight.
  virtual void detach(Context* context) = 0;
  // Devices on files can share a context, and so a ring (device_files.h). join: adds the device to
  // such a set; false: it needs its own context. attach_joined: as attach(), called on one of them
  // for all; a command names its device by its index in `files`.
  virtual bool join(JoinedFiles* /*files*/) const { return false; }
  [[nodiscard]] virtual int attach_joined(const JoinedFiles& /*files*/,
                                          const ContextOptions& /*options*/, Context** /*out*/) {
    return -EOPNOTSUPP;
  }
  // Backs [offset, offset+length) with real space (fallocate on a file; nothing on a block device).
  // Blocking; not for the fault path. -ENOSPC: the file system is full.
  [[nodiscard]] virtual int reserve(DeviceOffset offset, uint64_t length) = 0;
  // Frees space (hole punch / BLKDISCARD; a raw file keeps its space). Best effort; blocking.
  virtual void release(DeviceOffset offset, uint64_t length) = 0;
  // Grows the device to `bytes`, unless it is larger already; the new end reads as zeros. Any
  // thread, even during I/O; may block. 0; -ENOSPC beyond its limit; -ENOMEM; -EOPNOTSUPP: its size
  // is fixed (all devices but mem:; a virtual LUN has set_size()).
  [[nodiscard]] virtual int grow(uint64_t /*bytes*/) { return -EOPNOTSUPP; }
  // In-place access: the address of [offset, offset + bytes) in this process' memory, for loads and
  // stores; valid until close(). nullptr: not inside, or the device takes commands only (all
  // devices but mem:). Any thread, never blocks.
  virtual void* map(DeviceOffset /*offset*/, uint64_t /*bytes*/) { return nullptr; }
  // The greatest size (a file that may grow: see growable).
  virtual uint64_t size_bytes() const = 0;
  // Whether it was made for one process, so that other processes make their own. size_bytes() is
  // then the free space at open.
  virtual bool growable() const = 0;
  // Carries out one command in the calling thread. Returns the bytes moved (0 for kDiscard and
  // kFlush), or -errno. Ignores `tag`. Any number of threads at once; holds no lock of Lunar's
  // while the device works. May block.
  [[nodiscard]] virtual int64_t transfer(const Command& command) = 0;
  virtual uint32_t io_align() const = 0;  // 512 or 4096
  virtual Capabilities capabilities() const = 0;
  virtual const char* name() const = 0;  // the URI as given, for messages
  // "file", "block", "nvme", "pmem", "capi", "mem", "sim", "virtual", "stripe", ...
  virtual const char* kind() const = 0;
  // The descriptors that the device uses (a stripe has those of its members), for fork and for
  // threads with their own descriptor table: reopen() replaces number i by a valid descriptor of
  // the same open file. fd_count() is 0 for a device without descriptors.
  virtual unsigned fd_count() const { return 0; }
  virtual int fd(unsigned /*i*/) const { return -1; }
  virtual void reopen(unsigned /*i*/, int /*fd*/) {}
  // Locks are on descriptors 0 .. lock_count()-1: for a node, on the node and on its lock file
  // (device_files.h: device_lock).
  virtual unsigned lock_count() const { return fd_count() ? 1 : 0; }
  // `fd` is a new open file description of number i's file (in a forked child whose program had
  // closed the inherited one). Takes the locks that keep the device reserved on it as well (and the
  // owner's lock of a virtual LUN). 0 or -errno.
  [[nodiscard]] virtual int share_lock(unsigned /*i*/, int /*fd*/) { return 0; }
  // Releases everything and frees the object. pre: no context is attached. Called through
  // device_close().
  virtual void close() = 0;
  // In a forked child, instead of close(): frees the object's memory if that is possible. The
  // device belongs to the parent, and the caller has closed the descriptors. pre: no context of the
  // child's is attached.
  virtual void forget() {}
};
// The most descriptors of one device: one per file, two per node, and the namespace's other nodes.
constexpr unsigned kDeviceFdsMax = 32;

struct DeviceOptions {
  uint64_t want_bytes = 0;  // the size that the caller intends to use; 0: all
  // The content may be discarded at open, and the device is used exclusively; a file or block
  // device that holds data (file system, partition table, swap, mount, unknown non-zero header) is
  // refused. false: *raw*, the device as it is: offset 0 is its first byte, and the open neither
  // examines nor writes it; the layer above knows what it holds.
  bool scratch = true;
  // raw only: the claim (ownership.h). -EBUSY if it conflicts with another open
  Claim claim = Claim::kParts;
  bool read_only = false;  // raw only
};

inline void device_close(Device* device) {  // pre: no context is attached. `device` may be nullptr
  if (device) device->close();
}

}  // namespace lunar
