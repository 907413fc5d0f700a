// SPDX-License-Identifier: Apache-2.0
// The devices, buffers and helpers of the block library's tests, which use its public header only.
//
//   PROGRAM DEVICE [CASE...]     DEVICE: file, block, sim, pmem. Without a CASE all run but the
//                                long ones; --all runs these too; --no-ring refuses io_uring, as
//                                some hosts do
//
// Tags: [.] long; [sim], [file]: on that device alone; [disk]: on file, block and nvme; [kept]:
// where survives(); [not-nvme]; [ring]: not with --no-ring; [timed]: repeated if it fails while its
// threads wait for a CPU.
//
//   PROGRAM nvme=/dev/ng0n3,/dev/ng0n4,...   OVERWRITES these namespaces. Their sizes, in blocks of
//                                            4 KiB: 4096 (two), 8192, 256, 80, 100 (two)
//
// Cases without a name on the command line are shared by several processes. Threading: a process
// runs its cases one after the other on its main thread; REQUIRE may be used by any.
#pragma once
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/in_child.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"
#include "tests/support/slowness.h"

namespace cblk_test {

using lunar_test::expect_exit;
using lunar_test::fork_child;
using lunar_test::in_child;
using lunar_test::in_parallel;
using lunar_test::Meanwhile;
using lunar_test::start_threads;

constexpr size_t kBlock = 4096;

// The call fails with -1 and that errno.
#define REFUSES(call, wanted)                                                                   \
  do {                                                                                          \
    errno = 0;                                                                                  \
    const long long refused_result = (call);                                                    \
    REQUIRE(refused_result == -1 && errno == (wanted), "%s gave %lld; wanted -1 and %s", #call, \
            refused_result, #wanted);                                                           \
  } while (0)

// ---- devices ----
const std::string& kind();  // "file", ...
bool survives();            // contents outlive a close, and other processes see them
bool full_strength();       // --all
// From now on, in this process and its children, as the seccomp profiles of containers do.
void refuse_rings();
// A new device of that many blocks of zeros, removed when the test ends. `number` distinguishes
// devices of one case.
std::string device(size_t blocks, int number = 0);
constexpr size_t kBlocks = 4096;  // 16 MiB, the usual size
chunk_id_t open_physical(size_t blocks = kBlocks, int requests = 0, int flags = 0,
                         int mode = O_RDWR);
// A sim: device with settings, for latencies and errors that a real one does not have on demand.
chunk_id_t open_sim(const char* settings, int requests = 0, int flags = 0, int mode = O_RDWR);

// A chunk, or a group, that is closed at the end of its scope, without a command under way.
template <int (*kClose)(int, int)>
class Open {
 public:
  explicit Open(int id) : id_(id) { REQUIRE(id != NULL_CHUNK_ID); }
  ~Open() { REQUIRE(kClose(id_, 0) == 0); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  operator int() const { return id_; }

 private:
  int id_;
};
using Chunk = Open<cblk_close>;
using Group = Open<cblk_cg_close>;

// ---- buffers ----
class Buffer {
 public:
  explicit Buffer(size_t blocks, size_t skew = 0);  // skew: offset from a multiple of 4096 bytes
  ~Buffer() { free(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return memory_ + skew_; }
  char* block(size_t i) const { return data() + i * kBlock; }
  operator void*() const { return data(); }

 private:
  char* memory_;
  size_t skew_;
};
// The content names the block and its version.
void stamp(char* block, uint64_t lba, uint64_t version);
bool is_stamped(const char* block, uint64_t lba, uint64_t version);
inline void stamp(const Buffer& buffer, uint64_t lba, size_t n, uint64_t version) {
  for (size_t i = 0; i < n; ++i) stamp(buffer.block(i), lba + i, version);
}
inline bool is_stamped(const Buffer& buffer, uint64_t lba, size_t n, uint64_t version) {
  for (size_t i = 0; i < n; ++i) {
    if (!is_stamped(buffer.block(i), lba + i, version)) return false;
  }
  return true;
}
bool is_zero(const Buffer& buffer, size_t n);
// Whether that version of the block lies on `device`, which is opened for this.
bool holds(const std::string& device, uint64_t lba, uint64_t version);

// For cblk_aresult(), which requires a place for the number of blocks.
inline uint64_t* ignored() {
  thread_local uint64_t blocks;
  return &blocks;
}

double seconds();
cblk_status_type_t status_of(cblk_arw_status_t& status);  // acquire
// Returns when the library has filled it; fails after a minute.
void await_status(cblk_arw_status_t& status);
uint64_t seed();
using tier::Random;
// An environment variable that is set during its life.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

// CFLSH_BLK_TIMEOUT for chunks that are opened during its life.
struct Limit {
  explicit Limit(const char* milliseconds)
      : number("CFLSH_BLK_TIMEOUT", milliseconds), units("CFLSH_BLK_TIMEOUT_UNITS", "MILLI") {}
  Environment number, units;
};

// Seconds since its construction.
struct Watch {
  double start = seconds();
  double passed() const { return seconds() - start; }
  void until(double when) const {
    while (passed() < when) usleep(1000);
  }
};

}  // namespace cblk_test
using namespace cblk_test;
