// SPDX-License-Identifier: Apache-2.0
#include "pager/account/account_find.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "base/format.h"
#include "base/units.h"
#include "sys/file.h"
#include "sys/proc.h"

namespace lunar {
namespace {

struct Identity {
  int number = -1;
  uint64_t device = 0, inode = 0;
};
Identity g_account;             // as LUNAR_ACCOUNT names it
std::atomic<int> g_number{-1};  // its descriptor
std::atomic<int> g_moved{-1};   // or this one: a child of vfork moves its own, not its parent's

bool parse_identity(const char* text, Identity* out) {
  uint64_t fields[3];
  if (!parse_numbers(text, fields, 3) || fields[0] > 1u << 20) return false;
  *out = {static_cast<int>(fields[0]), fields[1], fields[2]};
  return true;
}

bool same(const struct stat& status) {
  return status.st_ino == g_account.inode && status.st_dev == g_account.device;
}

// Opens the account from a directory of descriptors (/proc/...), or -1.
int open_from(const char* directory) {
  int found = -1;
  (void)sys::each_entry(directory, [&](const char* name) {
    char path[128];
    struct stat status;
    format_to(path, sizeof path, "%s/%s", directory, name);
    if (sys::path_status(path, &status) == 0 && same(status)) found = sys::open_file(path, O_RDWR);
    return found < 0;
  });
  return found;
}

int open_from_process(int pid) {
  int fd = -1;
  sys::each_descriptor_table(pid, "fd", [&](const char* directory) {
    fd = open_from(directory);
    return fd < 0;
  });
  return fd;
}

int parent_of(int pid) {
  char path[32], text[512];
  format_to(path, sizeof path, "/proc/%d/stat", pid);
  if (sys::read_text(path, text, sizeof text) <= 0) return 0;
  const char* p = strrchr(text, ')');
  uint64_t parent = 0;
  return p != nullptr && p[1] == ' ' && p[2] != 0 && p[3] == ' ' &&
                 parse_digits(p + 4, &parent) != nullptr
             ? static_cast<int>(parent)
             : 0;
}

// Searches ancestors first: one of them usually has it. A daemon's ancestors have ended, so then
// any process that may be inspected.
int open_from_others() {
  for (int pid = static_cast<int>(getpid()), depth = 0; pid > 1 && depth < 64; ++depth) {
    if (int fd = open_from_process(pid); fd >= 0) return fd;
    pid = parent_of(pid);
  }
  int fd = -1;
  (void)sys::each_process([&](int other) {
    fd = open_from_process(other);
    return fd < 0;
  });
  return fd;
}

}  // namespace

bool account_is(int fd) {
  if (fd < 0 || (fd != g_number.load(std::memory_order_relaxed) &&
                 fd != g_moved.load(std::memory_order_relaxed)))
    return false;
  struct stat status;
  return sys::file_status(fd, &status) == 0 && same(status);
}

int account_number() {
  const int number = g_number.load(std::memory_order_relaxed),
            moved = g_moved.load(std::memory_order_relaxed);
  return moved >= 0 && account_is(moved) ? moved : number;
}

void account_make_way(int fd) {
  int moved = static_cast<int>(
      sys::control_file(fd, F_DUPFD, reinterpret_cast<void*>(static_cast<intptr_t>(fd + 1))));
  if (moved < 0)
    moved = static_cast<int>(sys::control_file(fd, F_DUPFD, reinterpret_cast<void*>(3)));
  if (moved >= 0) g_moved.store(moved, std::memory_order_relaxed);
}

int account_find(const char* text, size_t bytes, ErrorText* why) {
  if (!parse_identity(text, &g_account))
    return why->set(-EINVAL,
                    "LUNAR_ACCOUNT is '%s', which `lunar run` does not write; unset it, or start "
                    "the program with `lunar run`",
                    text);
  g_number.store(g_account.number, std::memory_order_relaxed);
  if (!account_is(g_account.number)) {
    int fd = open_from_others();
    if (fd < 0)
      return why->set(
          -EBADF,
          "the account of this tree's DRAM budget cannot be found: its descriptor (%d) was closed "
          "before this program was started, and no other process has it; a budget of its own would "
          "break the tree's. Keep descriptor %d open across exec",
          g_account.number, g_account.number);
    // Under its old number if that is free, where later processes look.
    int put = static_cast<int>(sys::control_file(
        fd, F_DUPFD, reinterpret_cast<void*>(static_cast<intptr_t>(g_account.number))));
    if (put < 0) put = static_cast<int>(sys::control_file(fd, F_DUPFD, reinterpret_cast<void*>(3)));
    sys::close_file(fd);
    if (put < 0)
      return why->set(put, "the account's descriptor cannot be kept (%s); raise `ulimit -n`",
                      errno_name(put));
    g_number.store(put, std::memory_order_relaxed);
  }
  const int fd = g_number.load(std::memory_order_relaxed);
  struct stat status;
  if (!sys::is_sealed_memory(fd) || sys::file_status(fd, &status) < 0 ||
      static_cast<uint64_t>(status.st_size) < bytes)
    return why->set(-EPROTO,
                    "LUNAR_ACCOUNT does not name an account; start the program with `lunar run` of "
                    "the same build");
  return fd;
}

}  // namespace lunar
