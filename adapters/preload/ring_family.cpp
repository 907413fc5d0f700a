// SPDX-License-Identifier: Apache-2.0
// io_uring's set-up calls: by syscall(), and liburing's. The pager cannot see a ring later, so two
// things are done here:
// - A ring pins memory, including its own, and may have no descriptor. So eviction learns of it
//   (pager/evict/pins.h).
// - IORING_OP_MADVISE drops pages without a call that the tier could serve: an evicted page would
//   come back with its old content. So a ring is restricted, before it is enabled, to all
//   operations that its kernel knows except this one, which then completes with -EACCES. A probe
//   does not show it.
// Threading: any thread.
#include "ring_family.h"

#include <errno.h>
#include <liburing.h>
#include <sys/syscall.h>

#include <atomic>

#include "pager/pager.h"
#include "preload.h"
#include "program_memory.h"
#include "real_calls.h"
#include "sys/file.h"
#include "sys/kernel_call.h"

namespace lunar::preload {
namespace {

// Newer than the headers of the oldest system we build on.
constexpr unsigned kNoMmap = 1u << 14, kRegisteredFdOnly = 1u << 15, kUseRegisteredRing = 1u << 31;
constexpr unsigned kOperationsMax = 256, kRegistersMax = 128;

struct Ring {
  int number;           // its descriptor, or -errno
  unsigned registered;  // kUseRegisteredRing: `number` is an index of the thread's registered rings

  int call(unsigned operation, const void* argument, unsigned count) const {
    const long a[6] = {number, static_cast<long>(operation | registered),
                       reinterpret_cast<long>(argument), count};
    return static_cast<int>(sys::kernel_call(SYS_io_uring_register, a));
  }
};

// The kernel accepts one list, and refuses a list with an operation or a call that it does not
// know. A probe shows the operations, but not the IORING_REGISTER_* calls: their number is found by
// trial.
int forbid_advice(const Ring& ring) {
  static constinit std::atomic<unsigned> known{kRegistersMax};
  io_uring_probe probe = {};
  int rc = ring.call(IORING_REGISTER_PROBE, &probe, 0);
  if (rc < 0) return rc;
  io_uring_restriction allowed[1 + kOperationsMax + kRegistersMax] = {};
  allowed[0].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
  allowed[0].sqe_flags = 0xFF;
  unsigned count = 1;
  for (unsigned operation = 0; operation <= probe.last_op; ++operation) {
    if (operation == IORING_OP_MADVISE) continue;
    allowed[count].opcode = IORING_RESTRICTION_SQE_OP;
    allowed[count++].sqe_op = static_cast<uint8_t>(operation);
  }
  unsigned registers = known.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < registers; ++i) {
    allowed[count + i].opcode = IORING_RESTRICTION_REGISTER_OP;
    allowed[count + i].register_op = static_cast<uint8_t>(i);
  }
  while ((rc = ring.call(IORING_REGISTER_RESTRICTIONS, allowed, count + registers)) == -EINVAL &&
         registers > 0)
    --registers;
  if (rc == 0) known.store(registers, std::memory_order_relaxed);
  return rc;
}

// Makes a ring by `make()`, which returns its number or -errno, and restricts it. 0 or more, or
// -errno, after `undo(ring)` if there was a ring.
template <class Make, class Undo>
int make_restricted(io_uring_params* parameters, Make make, Undo undo) {
  const unsigned wanted = parameters->flags;
  if ((wanted & kNoMmap) != 0)
    pager_note_pinning("it has an io_uring");  // its own memory is pinned from the start
  parameters->flags |= IORING_SETUP_R_DISABLED;
  const Ring ring{make(), (wanted & kRegisteredFdOnly) != 0 ? kUseRegisteredRing : 0};
  parameters->flags =
      (parameters->flags & ~IORING_SETUP_R_DISABLED) | (wanted & IORING_SETUP_R_DISABLED);
  if (ring.number < 0) return ring.number;
  pager_note_pinning("it has an io_uring");
  int rc = forbid_advice(ring);
  if (rc == 0 && (wanted & IORING_SETUP_R_DISABLED) == 0)
    rc = ring.call(IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  if (rc == 0) return ring.number;
  undo(ring);  // a filter of the program's refuses the call
  return rc;
}

int set_up(unsigned entries, io_uring_params* parameters) {
  const long a[6] = {entries, reinterpret_cast<long>(parameters)};
  const auto make = [&] { return static_cast<int>(sys::kernel_call(SYS_io_uring_setup, a)); };
  io_uring_params readable;
  if (!ready() || !read_if_readable(parameters, &readable)) return make();
  return make_restricted(parameters, make, [](const Ring& made) {
    if (made.registered == 0) sys::close_file(made.number);
  });
}

// Makes a ring by a function of liburing: `make()` returns 0 or more, or -errno.
template <class Make>
int queue_init(io_uring* ring, io_uring_params* parameters, Make make) {
  if (!ready()) return make();
  int made = 0;
  const auto make_ring = [&] {
    made = make();
    const bool has_descriptor = (parameters->flags & kRegisteredFdOnly) == 0;
    return made < 0 ? made : has_descriptor ? ring->ring_fd : ring->enter_ring_fd;
  };
  const int rc = make_restricted(parameters, make_ring, [&](const Ring&) {
    static constinit decltype(&io_uring_queue_exit) exit_ring = nullptr;
    look_up(exit_ring, "io_uring_queue_exit");
    exit_ring(ring);
  });
  return rc < 0 ? rc : made;
}

// Removes the operation that rings refuse from a probe of the kernel.
io_uring_probe* hide_advice(io_uring_probe* probe) {
  if (ready() && probe != nullptr && probe->ops_len > IORING_OP_MADVISE)
    probe->ops[IORING_OP_MADVISE].flags = 0;
  return probe;
}

int register_with(const long (&a)[6]) {
  const long rc = sys::kernel_call(SYS_io_uring_register, a);
  if (rc >= 0 && (static_cast<unsigned>(a[1]) & ~kUseRegisteredRing) == IORING_REGISTER_PROBE)
    hide_advice(reinterpret_cast<io_uring_probe*>(a[2]));
  return static_cast<int>(rc);
}

int probe_ring(io_uring* ring, io_uring_probe* probe, unsigned count) {
  look_up(g_real.io_uring_register_probe, "io_uring_register_probe");
  return g_real.io_uring_register_probe(ring, probe, count);
}

int init_params(unsigned entries, io_uring* ring, io_uring_params* parameters) {
  look_up(g_real.io_uring_queue_init_params, "io_uring_queue_init_params");
  return g_real.io_uring_queue_init_params(entries, ring, parameters);
}

}  // namespace

long ring_by_call(long number, const long (&a)[6]) {
  return with_errno(
      number == SYS_io_uring_register
          ? register_with(a)
          : set_up(static_cast<unsigned>(a[0]), reinterpret_cast<io_uring_params*>(a[1])));
}

}  // namespace lunar::preload

using namespace lunar::preload;

// The calls of this library itself and of the code linked into it (--wrap).
extern "C" __attribute__((visibility("hidden"))) int __wrap_io_uring_queue_init_params(
    unsigned entries, io_uring* ring, io_uring_params* parameters) {
  return init_params(entries, ring, parameters);
}

extern "C" __attribute__((visibility("hidden"))) int __wrap_io_uring_register_probe(
    io_uring* ring, io_uring_probe* probe, unsigned count) {
  return probe_ring(ring, probe, count);
}

LUNAR_EXPORT int io_uring_setup(unsigned entries, io_uring_params* parameters) {
  return set_up(entries, parameters);
}

LUNAR_EXPORT int io_uring_register(unsigned fd, unsigned operation, const void* argument,
                                   unsigned count) {
  return register_with({static_cast<long>(fd), operation, reinterpret_cast<long>(argument), count});
}

LUNAR_EXPORT int io_uring_register_probe(io_uring* ring, io_uring_probe* probe, unsigned count) {
  const int rc = probe_ring(ring, probe, count);
  if (rc >= 0) hide_advice(probe);
  return rc;
}

LUNAR_EXPORT io_uring_probe* io_uring_get_probe() {
  static constinit decltype(&io_uring_get_probe) real = nullptr;
  look_up(real, "io_uring_get_probe");
  return hide_advice(real());
}

LUNAR_EXPORT io_uring_probe* io_uring_get_probe_ring(io_uring* ring) {
  static constinit decltype(&io_uring_get_probe_ring) real = nullptr;
  look_up(real, "io_uring_get_probe_ring");
  return hide_advice(real(ring));
}

LUNAR_EXPORT int io_uring_queue_init_params(unsigned entries, io_uring* ring,
                                            io_uring_params* parameters) {
  return queue_init(ring, parameters, [&] { return init_params(entries, ring, parameters); });
}

LUNAR_EXPORT int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  io_uring_params parameters = {};
  parameters.flags = flags;
  return queue_init(ring, &parameters, [&] { return init_params(entries, ring, &parameters); });
}

// from liburing 2.5 on
LUNAR_EXPORT int io_uring_queue_init_mem(unsigned entries, io_uring* ring,
                                         io_uring_params* parameters, void* memory, size_t bytes) {
  const auto init_memory = g_real.io_uring_queue_init_mem;
  if (init_memory == nullptr) return -ENOSYS;
  parameters->flags |= kNoMmap;
  return queue_init(ring, parameters,
                    [&] { return init_memory(entries, ring, parameters, memory, bytes); });
}
