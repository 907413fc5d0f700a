// SPDX-License-Identifier: Apache-2.0
// Superpipe: the user-space command path to a LUN.
//
//        thread A                thread B
//     ┌───────────┐           ┌───────────┐
//     │ Context   │           │ Context   │     a command ring and a response ring of its own;
//     │ cmd │ rsp │           │ cmd │ rsp │     no lock shared between contexts
//     └──┬─────▲──┘           └──┬─────▲──┘
//        ▼     │                 ▼     │
//     ┌────────────────────────────────────┐
//     │ Device (file:, sim:, ...)          │     opened once, shared by all contexts
//     └────────────────────────────────────┘
//
// A thread *attaches* a Context to a Device, submits Commands and reaps Responses. A Context belongs to the thread that
// attached it and is used by no other. A Device is immutable after open and may be used by any thread.
//
// Waiting: `wait` first spins for about the device's usual latency (a moving average a context keeps), then sleeps.
//
// Fault path: submit, reap, wait, watch do not allocate, take no lock of the host, and use no stdio. open, attach and
// reserve are not for the fault path.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/units.h"

namespace lunar {

enum class Op : uint8_t { kRead, kWrite, kDiscard, kFlush };

struct Command {
  Op op = Op::kRead;
  DeviceOffset offset{};         // bytes; a multiple of Device::io_align()
  const iovec* iov = nullptr;    // kRead, kWrite: lives (with its memory) until the response; lengths and addresses are
  uint32_t iov_count = 0;        //   multiples of io_align(); at most 256 entries
  uint64_t length = 0;           // kDiscard: bytes
  uint64_t tag = 0;              // comes back in the response
};

struct Response {
  uint64_t tag = 0;
  int64_t result = 0;            // bytes moved (a short count is the caller's to treat as an error), or -errno
};

struct ContextOptions {
  unsigned depth = 256;          // commands in flight at most (1..4096)
  void* buffer = nullptr;        // a window registered with the device where limits allow: I/O whose single iovec lies
  size_t buffer_bytes = 0;       //   inside it avoids per-I/O page pinning. Optional; not owned
  bool spin = true;              // wait() spins before it sleeps
  bool sqpoll = false;
};

class Context {
 public:
  virtual ~Context() = default;  // pre: nothing in flight (detach waits for what is)
  // Queues and starts up to n commands. Returns how many were taken (fewer when the ring is full), or -errno when none
  // could be. A command taken always gets exactly one response.
  [[nodiscard]] virtual int submit(const Command* commands, unsigned n) = 0;
  // Takes finished responses without waiting: 0..max.
  [[nodiscard]] virtual int reap(Response* out, unsigned max) = 0;
  // As reap, but waits until at least one response is there or timeout_ns passed (< 0: no limit). Returns 0..max, or
  // -EINTR. With nothing in flight and nothing watched it returns 0 at once.
  [[nodiscard]] virtual int wait(Response* out, unsigned max, int64_t timeout_ns) = 0;
  // Also report when `fd` (O_NONBLOCK) becomes readable: one Response{tag, poll events} through reap/wait, then the
  // watch is over and must be set again. So that one wait serves faults and completions. A context may watch 4 fds.
  [[nodiscard]] virtual int watch(int fd, uint64_t tag) = 0;
  // Commands submitted and not yet reaped (watches not counted).
  virtual unsigned in_flight() const = 0;
  // Usual latency of a page read, nanoseconds, moving average; 0 before the first.
  virtual uint64_t usual_latency_ns() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // New context for the calling thread. Returns 0 or -errno; *out is released with detach().
  [[nodiscard]] virtual int attach(const ContextOptions& options, Context** out) = 0;
  virtual void detach(Context* context) = 0;            // by the thread that attached; waits for what is in flight
  // Makes sure that [offset, offset+length) is backed by real space (fallocate on a file; nothing on a block device).
  // Blocking; not for the fault path. -ENOSPC when the file system is full.
  [[nodiscard]] virtual int reserve(DeviceOffset offset, uint64_t length) = 0;
  // Gives space back (hole punch / BLKDISCARD). Best effort; blocking.
  virtual void release(DeviceOffset offset, uint64_t length) = 0;
  virtual uint64_t size_bytes() const = 0;              // what it can hold at most (a file that may grow: see growable)
  virtual bool growable() const = 0;                    // a file made by us: size_bytes() is the free space at open
  virtual uint32_t io_align() const = 0;                // 512 or 4096
  virtual const char* name() const = 0;                 // the URI as given, for messages
  virtual const char* kind() const = 0;                 // "file", "block", "sim"
  virtual int fd() const = 0;                           // -1 when it has none. For fork: see reopen()
  // A forked child, or a thread whose descriptor table is its own, calls this with a valid descriptor of the same file.
  virtual void reopen(int fd) = 0;
};

struct DeviceOptions {
  uint64_t want_bytes = 0;       // what the caller intends to use; 0: whatever is there
  bool scratch = true;           // contents may be thrown away at open. A file or block device that holds data (file
                                 //   system, partition table, swap, mount, unknown non-zero header) is refused
  bool sqpoll = false;
};

// Opens `uri`:
//   PATH or file:PATH   regular file (must exist; empty, all-zero header, or a former Lunar scratch LUN) or block device
//   DIR                 an unlinked file is made in it (O_TMPFILE, else mkstemp+unlink); refused on tmpfs/ramfs
//   sim:SIZE[,seed=N][,latency_us=N][,read_error=P][,write_error=P][,torn=P][,misdirect=P][,corrupt=P]   memory; P: one
//                       in P I/Os
// O_DIRECT is required (no silent buffered I/O). Returns 0, or -errno with *why filled (one line: what, where, how to mend).
[[nodiscard]] int device_open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why);
void device_close(Device* device);   // pre: no context attached

}  // namespace lunar
