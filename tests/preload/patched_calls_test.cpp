// SPDX-License-Identifier: Apache-2.0
// A program that overwrites the first bytes of functions with a jump to one of
// its own, which makes the system call by syscall() (UCX and Open MPI do, to see what is unmapped).
// One name after the other: the preload library's functions, or libc's behind them. Each call
// arrives, and tiered memory stays whole. x86-64 only: the jump is machine code.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/shm.h>
#include <sys/uio.h>

#include <cstdint>

#include "preload_test.h"

namespace {

constexpr size_t kPage = 4096, kPart = 2 * kMiB, kHeld = 18 * kMiB;  // kHeld: more than the budget

volatile long g_calls = 0;

// Takes the place of the function whose arguments are those of system call `kNumber`.
template <long kNumber>
long by_number(long a, long b, long c, long d, long e, long f) {
  g_calls = g_calls + 1;
  return syscall(kNumber, a, b, c, d, e, f);
}

struct Name {
  const char* name;
  long (*instead)(long, long, long, long, long, long);
};
constexpr Name kNames[] = {
    {"mmap", by_number<SYS_mmap>},
    {"mmap64", by_number<SYS_mmap>},
    {"munmap", by_number<SYS_munmap>},
    {"mremap", by_number<SYS_mremap>},
    {"madvise", by_number<SYS_madvise>},
    {"process_madvise", by_number<SYS_process_madvise>},
    {"mprotect", by_number<SYS_mprotect>},
    {"pkey_mprotect", by_number<SYS_pkey_mprotect>},
    {"mlock", by_number<SYS_mlock>},
    {"mlock2", by_number<SYS_mlock2>},
    {"munlock", by_number<SYS_munlock>},
    {"mlockall", by_number<SYS_mlockall>},
    {"munlockall", by_number<SYS_munlockall>},
    {"mseal", by_number<462>},
    {"shmat", by_number<SYS_shmat>},
    {"shmdt", by_number<SYS_shmdt>},
    {"brk", by_number<SYS_brk>},
    {"process_vm_writev", by_number<SYS_process_vm_writev>},
    {"open", by_number<SYS_open>},
    {"openat", by_number<SYS_openat>},
    {"fcntl", by_number<SYS_fcntl>},
    {"close", by_number<SYS_close>},
    {"close_range", by_number<SYS_close_range>},
    {"dup2", by_number<SYS_dup2>},
    {"dup3", by_number<SYS_dup3>},
    {"fork", by_number<SYS_fork>},
    {"_Fork", by_number<SYS_fork>},
    {"execve", by_number<SYS_execve>},
    {"_exit", by_number<SYS_exit_group>},
};

struct Patch {
  unsigned char* at = nullptr;
  unsigned char before[13] = {};

  bool put(void* library, const Name& name) {
    at = static_cast<unsigned char*>(dlsym(library, name.name));
    if (at == nullptr) return false;  // mseal in an older libc
    auto* page = at - reinterpret_cast<uintptr_t>(at) % kPage;
    REQUIRE(mprotect(page, 2 * kPage, kRw | PROT_EXEC) == 0);
    memcpy(before, at, sizeof before);
    // mov $instead, %r11; jmp *%r11
    unsigned char jump[13] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
    memcpy(jump + 2, &name.instead, sizeof name.instead);
    memcpy(at, jump, sizeof jump);
    return true;
  }
  void take_away() const { memcpy(at, before, sizeof before); }
};

// All of them by these, so that the compiler does not know what they do.
template <class F>
F* found(const char* name) {
  auto* function = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  REQUIRE(function != nullptr);
  return function;
}

void use_memory() {
  char* p = map_tiered(kPart);
  fill(p, kPart, 5);
  REQUIRE(mprotect(p, kPart, PROT_READ) == 0 && mprotect(p, kPart, kRw) == 0);
  REQUIRE(found<int(void*, size_t, int, int)>("pkey_mprotect")(p, kPart, kRw, -1) == 0);
  REQUIRE(mlock(p, kPage) == 0 && munlock(p, kPage) == 0 && mlock2(p, kPage, 0) == 0 &&
          munlock(p, kPage) == 0);
  REQUIRE(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM && munlockall() == 0);
  p = static_cast<char*>(mremap(p, kPart, 2 * kPart, MREMAP_MAYMOVE));
  REQUIRE(p != MAP_FAILED && holds(p, kPart, 5) && all_zero(p + kPart, kPart));
  REQUIRE(madvise(p, kPart / 2, MADV_DONTNEED) == 0 && all_zero(p, kPart / 2));
  const iovec range{p, kPart};
  REQUIRE(syscall(SYS_process_madvise, -10000, &range, 1, MADV_COLD, 0) >= -1);
  const int id = shmget(IPC_PRIVATE, kPart, IPC_CREAT | 0600);
  REQUIRE(id >= 0 && shmat(id, p, SHM_REMAP) == p && shmctl(id, IPC_RMID, nullptr) == 0);
  fill(p, kPart, 7);
  REQUIRE(holds(p, kPart, 7) && shmdt(p) == 0);
  REQUIRE(munmap(p, 2 * kPart) == 0);
  using Map = void*(void*, size_t, int, int, int, off64_t);
  p = static_cast<char*>(found<Map>("mmap64")(nullptr, kPart, kRw, kPrivate, -1, 0));
  REQUIRE(p != MAP_FAILED && tiered(p));
  if (auto* seal =
          reinterpret_cast<int (*)(void*, size_t, unsigned long)>(dlsym(RTLD_DEFAULT, "mseal")))
    REQUIRE(seal(p, kPart, 0) == -1 && errno == ENOSYS);
  const long word = 11;
  const iovec from{const_cast<long*>(&word), sizeof word}, to{p, sizeof word};
  REQUIRE(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == sizeof word &&
          *reinterpret_cast<long*>(p) == word);
  REQUIRE(munmap(p, kPart) == 0);
}

void use_files() {
  int fd = open("/dev/null", O_RDONLY);
  REQUIRE(fd >= 0 && close(fd) == 0);
  fd = openat(AT_FDCWD, "/dev/null", O_RDONLY);
  REQUIRE(fd >= 0 && dup2(fd, 300) == 300 && dup3(fd, 301, O_CLOEXEC) == 301 &&
          fcntl(301, F_GETFD) == FD_CLOEXEC);
  REQUIRE(close_range(301, 5000, 0) ==
          0);  // the tree's account and other files of the pager's are among these
  REQUIRE(fcntl(301, F_GETFD) == -1 && close(300) == 0 && close(fd) == 0);
}

template <class Fork>
void use_child(const char* held, size_t bytes, Fork fork_call) {
  const pid_t child = fork_call();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool whole = holds(held, bytes, 3);
    char program[] = "/bin/sh", option[] = "-c", text[] = "exit 9";
    char* words[] = {program, option, text, nullptr};
    if (whole) execve(program, words, environ);
    _exit(1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

int body() {
  const bool ours = g_case == "ours";
  void* library = ours ? RTLD_DEFAULT : dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  REQUIRE(ours || library != nullptr);
  char* held = map_tiered(kHeld);
  fill(held, kHeld, 3);
  for (const Name& name : kNames) {
    Patch patch;
    if (!patch.put(library, name)) continue;
    fprintf(stderr, "%s\n", name.name);
    use_memory();
    use_files();
    use_child(held, kHeld, [] { return fork(); });
    use_child(held, kHeld / 4, [] { return found<pid_t()>("_Fork")(); });
    REQUIRE(holds(held, kHeld, 3));
    patch.take_away();
  }
  REQUIRE(g_calls > 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
#ifndef __x86_64__
  return 0;
#endif
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=256m"},
                   {{"ours", body}, {"libc", body}});
}
