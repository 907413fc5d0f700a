// SPDX-License-Identifier: Apache-2.0
// written_elsewhere CASE: threads of a forked child write into tiered memory of its parent by
// process_vm_writev, twice the budget in each round, in parts that are not aligned, while the
// parent evicts its own pages. No written byte is lost, and no call waits for memory forever
// (parts). Also:
//   answered     the child writes messages, which the parent takes out of its memory as soon as it
//                sees them: each arrives once
//   stopped      the parent is stopped in the middle of an eviction: the write is refused, and not
//                made behind it
//   long-batch   a program that is about to pin pages waits for the end of an eviction, however
//                long that takes
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "pager/pager.h"
#include "stats/counters.h"
#include "sys/thread.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;
using tier::new_region;

constexpr uint64_t kTarget = 32 * kMega, kPressure = 24 * kMega, kPart = 3 * kMega + 1000,
                   kRounds = 3;
constexpr uint64_t kWriters = 6;
constexpr uint64_t kMessages = 1000;

std::atomic<uint64_t> g_progress{0};

// Writes [from, from + bytes) of this process to `to` of the other, as two parts on each side that
// are cut at different places.
void write_there(pid_t pid, char* from, char* to, size_t bytes) {
  const size_t a = bytes / 3, b = bytes / 2 + 7;
  const iovec mine[] = {{from, a}, {nullptr, 0}, {from + a, bytes - a}},
              theirs[] = {{to, b}, {to + b, bytes - b}};
  const long arguments[6] = {
      pid, reinterpret_cast<long>(mine), 3, reinterpret_cast<long>(theirs), 2, 0};
  const long done = lunar::pager_write_elsewhere(arguments);
  if (done < 0 && errno == EPERM) _exit(77);
  REQUIRE(done == static_cast<long>(bytes), "%ld of %zu bytes are written: %s", done, bytes,
          strerror(errno));
}

// Writes to absent places, and calls that the kernel refuses as a whole.
void write_wrong(pid_t pid, char* to) {
  char some[3000] = {};
  const iovec mine{some, sizeof some}, half[] = {{to, 1000}, {nullptr, 2000}}, none{nullptr, 100};
  const long partly[6] = {pid, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(half), 2,
                          0};
  REQUIRE(lunar::pager_write_elsewhere(partly) == 1000, "a part that is not there");
  const long nowhere[6] = {pid, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(&none), 1,
                           0};
  REQUIRE(lunar::pager_write_elsewhere(nowhere) == -1 && errno == EFAULT);
  const long flags[6] = {pid, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(half), 1, 1};
  REQUIRE(lunar::pager_write_elsewhere(flags) == -1 && errno == EINVAL);
  // The list has no address, or a part has an impossible length.
  const long no_list[6] = {pid, reinterpret_cast<long>(&mine), 1, 4096, 1, 0};
  REQUIRE(lunar::pager_write_elsewhere(no_list) == -1 && errno == EFAULT);
  const iovec endless[] = {{to, 1000}, {to, SIZE_MAX}};
  const long length[6] = {pid, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(endless), 2,
                          0};
  REQUIRE(lunar::pager_write_elsewhere(length) == -1 && errno == EINVAL);
}

// A writer's share of a round's parts: every kWriters'th one.
void write_share(pid_t parent, char* target, uint64_t writer, uint64_t round) {
  std::vector<char> content(kPart);
  for (uint64_t at = writer * kPart; at < kTarget; at += kWriters * kPart) {
    const size_t bytes = at + kPart <= kTarget ? kPart : kTarget - at;
    for (size_t i = 0; i < bytes; ++i)
      content[i] = static_cast<char>((at + i) * 7 + (at + i) / 4096 + round);
    write_there(parent, content.data(), target + at, bytes);
  }
}

void be_writer(pid_t parent, char* target, int told, int said) {
  write_wrong(parent, target);
  for (uint64_t round; read(told, &round, sizeof round) == sizeof round;) {
    lunar_test::in_parallel(kWriters, [&](uint64_t i) { write_share(parent, target, i, round); });
    REQUIRE(write(said, &round, sizeof round) == sizeof round);
  }
  _exit(0);
}

// The first word of each page is a mailbox: 0, or a message that is waiting. Messages go to one
// after the other.
uint64_t* mailbox(char* target, uint64_t message) {
  const uint64_t page = lunar_page_bytes();
  return reinterpret_cast<uint64_t*>(target + tier::mix(message / 16) % (kTarget / page) * page);
}

void be_sender(pid_t parent, char* target) {
  for (uint64_t message = 1; message <= kMessages; ++message) {
    iovec mine{&message, sizeof message};
    const iovec theirs{mailbox(target, message), sizeof message};
    const long arguments[6] = {
        parent, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(&theirs), 1, 0};
    const long done = lunar::pager_write_elsewhere(arguments);
    if (done < 0 && errno == EPERM) _exit(77);
    REQUIRE(done == sizeof message, "message %lu: %ld, %s", message, done, strerror(errno));
    uint64_t there = message;
    mine.iov_base = &there;
    while (there != 0) {
      std::this_thread::yield();
      REQUIRE(process_vm_readv(parent, &mine, 1, &theirs, 1, 0) == sizeof there);
    }
  }
  _exit(0);
}

void take_messages(char* target) {
  for (uint64_t message = 1; message <= kMessages; ++message) *mailbox(target, message) = 0;
  const pid_t parent = getpid(), sender = fork();
  REQUIRE(sender >= 0);
  if (sender == 0) be_sender(parent, target);
  for (uint64_t due = 1; due <= kMessages; ++due, ++g_progress) {
    std::atomic_ref<uint64_t> box(*mailbox(target, due));
    uint64_t message = 0;
    int status = 0;
    for (unsigned look = 0; message == 0; ++look) {
      message = box.exchange(0);
      if (look % 10000 != 9999 || waitpid(sender, &status, WNOHANG) == 0) continue;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("ptrace", "process_vm_writev is refused here");
      REQUIRE(false, "the sender has ended: status %x", status);
    }
    REQUIRE(message == due, "message %lu has come where %lu was due", message, due);
  }
}

void take_parts(char* target) {
  int told[2], said[2];
  REQUIRE(pipe(told) == 0 && pipe(said) == 0);
  const pid_t parent = getpid(), writer = fork();
  REQUIRE(writer >= 0);
  if (writer == 0) {
    close(told[1]);
    be_writer(parent, target, told[0], said[1]);
  }
  close(said[1]);
  uint64_t lost = 0;
  for (uint64_t round = 1; round <= kRounds; ++round, ++g_progress) {
    REQUIRE(write(told[1], &round, sizeof round) == sizeof round);
    uint64_t answer = 0;
    if (read(said[0], &answer, sizeof answer) != sizeof answer) {
      int status = 0;
      waitpid(writer, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("ptrace", "process_vm_writev is refused here");
      REQUIRE(false, "the writer has ended: status %x", status);
    }
    for (uint64_t at = 0; at < kTarget; ++at)
      lost += target[at] != static_cast<char>(at * 7 + at / 4096 + round) ? 1 : 0;
  }
  REQUIRE(lost == 0, "%lu bytes lost what was written into them", lost);
}

// A write to a running process, which is nearly always in the middle of an eviction, arrives. A
// write to a stopped process either arrives or is refused.
[[noreturn]] void be_stopper(pid_t parent, char* target) {
  char byte = 1;
  const iovec mine{&byte, 1}, theirs{target, 1};
  const long arguments[6] = {
      parent, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(&theirs), 1, 0};
  long done = 0;
  for (int attempt = 0; done >= 0 && attempt < 8; ++attempt) {
    done = lunar::pager_write_elsewhere(arguments);
    if (done < 0 && errno == EPERM) _exit(77);
    REQUIRE(done == 1, "to a running process: %s", strerror(errno));
    usleep(300000);  // the next batch has begun
    REQUIRE(kill(parent, SIGSTOP) == 0);
    done = lunar::pager_write_elsewhere(arguments);
    const int error = errno;
    REQUIRE(kill(parent, SIGCONT) == 0);
    REQUIRE(done == 1 || error == EAGAIN, "to a stopped process: %s", strerror(error));
  }
  REQUIRE(done < 0, "no write was refused: each was made in the middle of an eviction");
  REQUIRE(lunar::pager_write_elsewhere(arguments) == 1, "to a process that goes on: %s",
          strerror(errno));
  _exit(0);
}

void be_stopped(char* target) {
  const pid_t parent = getpid(), stopper = fork();
  REQUIRE(stopper >= 0);
  if (stopper == 0) be_stopper(parent, target);
  int status = 0;
  for (; waitpid(stopper, &status, WNOHANG) == 0; ++g_progress) usleep(20000);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    SKIP("ptrace", "process_vm_writev is refused here");
  REQUIRE(status == 0, "the child has ended: status %x", status);
}

constexpr uint64_t kLongNs = 4000000000;

void note_in_batch(char* target) {
  const uint64_t batches = lunar::counters().batches.get();
  std::thread evict(
      [&] { REQUIRE(lunar_evict(target, lunar_page_bytes()) == 1, "no page is evicted"); });
  // the batch has not begun at `before`, however long this thread waits for a CPU
  uint64_t before = 0, now = lunar::sys::now_ns();
  do before = now, now = lunar::sys::now_ns();
  while (lunar::counters().batches.get() == batches);
  sleep(1);  // it counts the batch just before it begins
  lunar::pager_note_pinning("the test does");
  const uint64_t waited = lunar::sys::now_ns() - before;
  evict.join();
  REQUIRE(waited >= kLongNs, "it waited for %lu ms of an eviction that takes %lu ms",
          waited / 1000000, kLongNs / 1000000);
}

// Runs `run` while another thread causes evictions, so that a batch is nearly always under way.
void under_pressure(const char* delay, uint64_t written, void (*run)(char*)) {
  tier::start_tier(16 * kMega, 512 * kMega, nullptr, (std::string("log=error") + delay).c_str());
  const tier::Watchdog watchdog(g_progress, 60);
  char *target = new_region(kTarget), *other = new_region(kPressure);
  memset(target, 1, written);
  const tier::Meanwhile pressing([other, at = uint64_t{0}]() mutable {
    *reinterpret_cast<volatile uint64_t*>(other + at % kPressure) = at;
    at += lunar_page_bytes();
  });
  run(target);
}

}  // namespace

TEST_CASE("parts") { under_pressure("", kTarget, take_parts); }
TEST_CASE("answered") { under_pressure("", kTarget, take_messages); }
TEST_CASE("stopped") { under_pressure(",test_evict_delay_us=1000000", kMega, be_stopped); }
TEST_CASE("long-batch") {
  tier::start_tier(16 * kMega, 512 * kMega, nullptr,
                   ("log=error,test_evict_delay_us=" + std::to_string(kLongNs / 1000)).c_str());
  char* target = new_region(kTarget);
  memset(target, 1, kMega);
  note_in_batch(target);
}
