// SPDX-License-Identifier: Apache-2.0
// Many processes on one physical LUN, killed at random. 16 processes create, grow, shrink and
// remove named LUNs, grow scratch LUNs, and write and verify stamped blocks. The parent kills one
// after the other with SIGKILL and starts it again. Some leave a daemon behind (forked twice) that
// goes on with its scratch LUN when its parent is killed.
//
// A block names its LUN and its place there. A foreign stamp means that an extent has two owners,
// zeros in place of a stamp mean that one is lost. New space of a named LUN must be zeros. At the
// end the metadata must be clean, the scratch LUNs of dead processes gone, and those of living
// daemons present and right.
//   lun_churn [--seconds N] [--processes N] [--stripe MEMBERS | --path DEVICE]; what DEVICE holds
//   is overwritten; LUNAR_SEED= replays the choices (not the timing).
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "lun/compose.h"
#include "lun/volume/metadata_image.h"
#include "lun/volume/virtual_lun.h"
#include "sys/thread.h"
#include "tests/support/cases.h"
#include "tests/support/device_io.h"
#include "tests/support/lun_file.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

// one stamped block an extent
constexpr uint64_t kBytes = 32 * kMiB, kBlock = 4096, kStep = 64 * kKiB;
constexpr unsigned kNames = 10, kDaemonsMax = 6;

struct Shared {
  std::atomic<unsigned> failures, created, resized, removed, scratch, daemons_started,
      blocks_checked, kills;
  std::atomic<unsigned> daemons;  // alive
  std::atomic<bool> stop_daemons, daemons_verify;
  std::atomic<unsigned> daemons_verified;
  char text[512];
};
Shared* shared;
std::vector<std::unique_ptr<LunFile>> files;
std::string path;
uint64_t random_state;
char* block;

uint64_t below(uint64_t n) { return next_random(&random_state) % n; }

int open_virtual(const VirtualOptions& options, VirtualLun** out, ErrorText* why) {
  PhysicalLun* physical = nullptr;
  const int status = physical_open(path.c_str(), Format::kNever, &physical, why);
  return status < 0 ? status : VirtualLun::open(physical, options, out, why);
}

void failure(const char* what, const char* detail) {
  if (shared->failures.fetch_add(1) == 0)
    snprintf(shared->text, sizeof shared->text, "%s: %s", what, detail);
}

struct Stamp {
  uint8_t uuid[16];
  uint64_t offset;
};

void write_stamp(VirtualLun* lun, uint64_t offset) {
  for (size_t at = 0; at < kBlock; at += sizeof(Stamp)) {
    Stamp stamp;
    memcpy(stamp.uuid, lun->info().uuid, 16);
    stamp.offset = offset + at;
    if (at + sizeof stamp <= kBlock) memcpy(block + at, &stamp, sizeof stamp);
  }
  const int64_t n = io(lun, Op::kWrite, offset, block);
  if (n != static_cast<int64_t>(kBlock)) failure("write", errno_name(static_cast<int>(n)));
}

// must: this owner has written it, so zeros are wrong.
void check_stamp(VirtualLun* lun, uint64_t offset, bool must) {
  const int64_t n = io(lun, Op::kRead, offset, block);
  if (n != static_cast<int64_t>(kBlock)) return failure("read", errno_name(static_cast<int>(n)));
  shared->blocks_checked.fetch_add(1);
  if (bytes_are_zero(block, kBlock)) {
    if (must) failure("a block was lost", lun->name());
    return;
  }
  for (size_t at = 0; at + sizeof(Stamp) <= kBlock; at += sizeof(Stamp)) {
    Stamp stamp;
    memcpy(&stamp, block + at, sizeof stamp);
    if (memcmp(stamp.uuid, lun->info().uuid, 16) != 0 || stamp.offset != offset + at) {
      char text[200];
      snprintf(text, sizeof text, "%s at %lu", lun->name(), offset);
      return failure("a block of another owner", text);
    }
  }
}

void named_work() {
  char name[16];
  snprintf(name, sizeof name, "n%u", static_cast<unsigned>(below(kNames)));
  ErrorText why;
  VirtualOptions options;
  options.name = name;
  options.create = below(3) == 0;
  options.size_bytes = below(12) * kStep;
  VirtualLun* lun = nullptr;
  int status = open_virtual(options, &lun, &why);
  if (status < 0) {
    if (status != -EEXIST && status != -ENOENT && status != -EBUSY && status != -ENOSPC)
      failure("open", why.text);
    return;
  }
  if (options.create) shared->created.fetch_add(1);
  for (unsigned round = 1 + static_cast<unsigned>(below(4)); round; --round) {
    const uint64_t before = lun->used_bytes();
    for (uint64_t at = 0; at < before; at += kStep) check_stamp(lun, at, false);
    status = lun->set_size(below(12) * kStep, &why);
    if (status < 0 && status != -ENOSPC) failure("resize", why.text);
    shared->resized.fetch_add(1);
    for (uint64_t at = before; at < lun->used_bytes(); at += kStep) {
      if (io(lun, Op::kRead, at, block) != static_cast<int64_t>(kBlock) ||
          !bytes_are_zero(block, kBlock))
        failure("not zeros after growing", name);
      write_stamp(lun, at);
    }
    for (uint64_t at = 0; at < lun->used_bytes(); at += kStep) write_stamp(lun, at);
    for (uint64_t at = 0; at < lun->used_bytes(); at += kStep) check_stamp(lun, at, true);
  }
  lun->close();
  if (below(3)) return;
  PhysicalLun* physical = nullptr;
  status = physical_open(path.c_str(), Format::kNever, &physical, &why);
  if (status < 0) return failure("open", why.text);
  status = physical->remove(name, &why);
  if (status < 0 && status != -ENOENT && status != -EBUSY) failure("remove", why.text);
  if (status == 0) shared->removed.fetch_add(1);
  physical->close();
}

void use_scratch(VirtualLun* lun, uint64_t* have, uint64_t want) {
  const int status = lun->reserve(DeviceOffset{0}, want);
  if (status < 0 && status != -ENOSPC) return failure("reserve", errno_name(status));
  for (; status == 0 && *have < want; *have += kStep) write_stamp(lun, *have);
  for (uint64_t at = 0; at < *have; at += kStep) check_stamp(lun, at, true);
}

[[noreturn]] void daemon_life(VirtualLun* lun, uint64_t have) {
  // not before: the process that would do it may be killed on the way
  shared->daemons.fetch_add(1);
  shared->daemons_started.fetch_add(1);
  const uint64_t end = sys::now_ns() + (200 + below(3000)) * 1'000'000;
  bool verified = false;
  while (!shared->stop_daemons.load()) {
    const bool last = shared->daemons_verify.load();
    if (!last && sys::now_ns() > end) break;
    use_scratch(lun, &have, last ? have : have + below(2) * kStep);
    if (last && !verified) {
      verified = true;
      shared->daemons_verified.fetch_add(1);
    }
    sys::sleep_ns(20'000'000);
  }
  shared->daemons.fetch_sub(1);
  _exit(0);  // no farewell
}

void scratch_work() {
  ErrorText why;
  VirtualLun* lun = nullptr;
  VirtualOptions options;
  options.zeroed = below(2) == 0;
  const int status = open_virtual(options, &lun, &why);
  if (status < 0) {
    if (status != -ENOSPC) failure("open scratch", why.text);
    return;
  }
  shared->scratch.fetch_add(1);
  uint64_t have = 0;
  const unsigned rounds = 1 + static_cast<unsigned>(below(6));
  for (unsigned i = 1; i <= rounds; ++i)
    use_scratch(lun, &have, i * (1 + below(4)) * kStep > have ? have + below(4) * kStep : have);
  if (below(5) == 0 && shared->daemons.load() < kDaemonsMax) {
    const pid_t middle = fork();
    if (middle == 0) {
      if (fork() == 0) daemon_life(lun, have);
      _exit(0);
    }
    waitpid(middle, nullptr, 0);
    for (;;) use_scratch(lun, &have, have);  // until killed, while the daemon does the same
  }
  if (below(2)) lun->release(DeviceOffset{0}, have);
  lun->close();
}

[[noreturn]] void worker(uint64_t seed) {
  random_state = seed;
  // While it shares its scratch LUN with a daemon, the worker only reads, because only one may
  // write.
  for (;;) below(3) ? named_work() : scratch_work();
}

unsigned scratch_count(PhysicalLun* lun, bool* all_in_use) {
  std::vector<VirtualLunInfo> list(256);
  const int n = lun->list(list.data(), 256, 0);
  unsigned count = 0;
  *all_in_use = true;
  for (int i = 0; i < n; ++i) {
    if (list[static_cast<size_t>(i)].name[0]) continue;
    ++count;
    *all_in_use &= list[static_cast<size_t>(i)].in_use;
  }
  return count;
}

PhysicalLun* look(const char* when) {
  PhysicalLun* lun = nullptr;
  ErrorText why;
  REQUIRE(physical_open(path.c_str(), Format::kNever, &lun, &why) == 0, "%s: %s", when, why.text);
  PhysicalLunInfo info;
  (void)!lun->info(&info);  // frees what the dead left
  return lun;
}

void check_result() {
  // Each living daemon has its scratch LUN and reads what it wrote. From now on none ends by
  // itself.
  shared->daemons_verify.store(true);
  sys::sleep_ns(400'000'000);
  PhysicalLun* lun = look("after the last kill");
  bool in_use = false;
  const unsigned alive = shared->daemons.load(), scratch = scratch_count(lun, &in_use);
  printf("daemons alive: %u, scratch LUNs left: %u\n", alive, scratch);
  if (scratch != alive || !in_use) failure("scratch LUNs", "not as many as living owners");
  lun->close();
  for (int i = 0; i < 500 && shared->daemons_verified.load() < shared->daemons.load(); ++i)
    sys::sleep_ns(10'000'000);
  if (shared->daemons_verified.load() < alive) failure("daemons", "did not verify in 5 s");
  shared->stop_daemons.store(true);
  for (int i = 0; i < 500 && shared->daemons.load(); ++i) sys::sleep_ns(10'000'000);
  while (waitpid(-1, nullptr, 0) > 0) {}
  lun = look("after the last daemon");
  for (int i = 0; i < 500 && scratch_count(lun, &in_use) != 0;
       ++i) {  // the kernel ends the rings of the dead by and by
    lun->close();
    sys::sleep_ns(10'000'000);
    lun = look("after the last daemon");
  }
  if (scratch_count(lun, &in_use) != 0) failure("scratch LUNs", "left by the dead");
  CheckReport report;
  if (lun->check(false, &report) < 0 || report.problems != report.repaired || report.extents_lost ||
      report.extents_double)
    failure("check", "not clean");
  uint64_t used = 0;
  std::vector<VirtualLunInfo> list(64);
  const int n = lun->list(list.data(), 64, 0);
  for (int i = 0; i < n; ++i) used += list[static_cast<size_t>(i)].extents;
  if (used != report.extents_used) failure("extents", "used without an owner");
  lun->close();
  for (int i = 0; i < n; ++i) {
    VirtualOptions options;
    options.name = list[static_cast<size_t>(i)].name;
    VirtualLun* named = nullptr;
    ErrorText why;
    if (open_virtual(options, &named, &why) < 0) {
      failure("open at the end", why.text);
      continue;
    }
    for (uint64_t at = 0; at < named->used_bytes(); at += kStep) check_stamp(named, at, false);
    named->close();
  }
  printf(
      "created %u, resized %u, removed %u, scratch %u, daemons %u, kills %u, blocks checked %u, "
      "named at the end %d\n",
      shared->created.load(), shared->resized.load(), shared->removed.load(),
      shared->scratch.load(), shared->daemons_started.load(), shared->kills.load(),
      shared->blocks_checked.load(), n);
  REQUIRE(shared->failures.load() == 0, "%u times, first: %s", shared->failures.load(),
          shared->text);
}

}  // namespace

TEST_CASE("lun-churn") {
  const uint64_t seconds = option("--seconds", 3), processes = option("--processes", 16),
                 members = option("--stripe", 1);
  path = text_option("--path", "");
  random_state = tier::run_seed();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  shared =
      new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Shared;
  block = static_cast<char*>(aligned_alloc(4096, kBlock));
  const bool given_path = !path.empty();
  for (unsigned i = 0; i < members && !given_path; ++i)
    files.push_back(std::make_unique<LunFile>(kBytes / members));
  for (const auto& file : files)
    path += (path.empty() ? members > 1 ? "stripe:" : "" : ";") + file->path;
  PhysicalLun* lun = nullptr;
  ErrorText why;
  REQUIRE(
      physical_open(path.c_str(), given_path ? Format::kForce : Format::kIfBlank, &lun, &why) == 0,
      "%s", why.text);
  lun->close();
  std::vector<pid_t> pids(processes);
  const auto start = [&](pid_t* pid) {
    const uint64_t of_child = next_random(&random_state);
    *pid = fork();
    if (*pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      worker(of_child);
    }
  };
  for (pid_t& pid : pids) start(&pid);
  const uint64_t end = sys::now_ns() + seconds * 1'000'000'000ull;
  while (sys::now_ns() < end && !shared->failures.load()) {
    sys::sleep_ns(1'000'000 * (5 + below(40)));
    pid_t& victim = pids[below(processes)];
    kill(victim, SIGKILL);
    waitpid(victim, nullptr, 0);
    shared->kills.fetch_add(1);
    int how = 0;
    for (pid_t ended;
         (ended = waitpid(-1, &how, WNOHANG)) > 0;) {  // daemons that ended; nothing else may
      if (!WIFEXITED(how)) failure("a process died by itself", std::to_string(ended).c_str());
    }
    start(&victim);
  }
  for (const pid_t pid : pids) kill(pid, SIGKILL);
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  check_result();
}
