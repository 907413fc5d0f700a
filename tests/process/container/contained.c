// SPDX-License-Identifier: Apache-2.0
// contained [--allow NAME[,NAME]...] COMMAND...: runs COMMAND under what container engines deny by
// default of the system calls that a program like Lunar makes. The facts, of Docker's default
// profile (moby 25 and later; its own documentation lists them):
//   EPERM    userfaultfd, io_uring_* (since 25.0), keyctl and its kin, perf_event_open, bpf,
//            move_pages;
//            with --cap-add SYS_PTRACE allowed: process_madvise, pidfd_getfd, kcmp;
//            with --cap-add SYS_NICE: mbind, set_mempolicy, get_mempolicy, set_mempolicy_home_node;
//            with --cap-add SYS_ADMIN: unshare, setns, mount, umount2, and clone with a namespace's
//            flag
//   ENOSYS   clone3 (libc then takes clone), and calls that are newer than the engine
// --allow takes such names away from the list; `--allow all` denies nothing. The filter is BPF
// written here: no library, and the test depends on no engine. It lasts for COMMAND and all its
// children. Exit codes of its own: 125.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEWEST_KNOWN 461  // of the engine's library

struct denied {
  const char* name;
  unsigned number;
  int error;
};
static const struct denied kDenied[] = {
    {"userfaultfd", SYS_userfaultfd, EPERM},
    {"io_uring", SYS_io_uring_setup, EPERM},
    {"io_uring", SYS_io_uring_enter, EPERM},
    {"io_uring", SYS_io_uring_register, EPERM},
    {"process_madvise", 440, EPERM},
    {"pidfd_getfd", 438, EPERM},
    {"kcmp", SYS_kcmp, EPERM},
    {"mbind", SYS_mbind, EPERM},
    {"set_mempolicy", SYS_set_mempolicy, EPERM},
    {"get_mempolicy", SYS_get_mempolicy, EPERM},
    {"set_mempolicy_home_node", 450, EPERM},
    {"move_pages", SYS_move_pages, EPERM},
    {"unshare", SYS_unshare, EPERM},
    {"setns", SYS_setns, EPERM},
    {"mount", SYS_mount, EPERM},
    {"umount2", SYS_umount2, EPERM},
    {"bpf", SYS_bpf, EPERM},
    {"perf_event_open", SYS_perf_event_open, EPERM},
    {"keyctl", SYS_keyctl, EPERM},
    {"add_key", SYS_add_key, EPERM},
    {"request_key", SYS_request_key, EPERM},
    {"clone3", SYS_clone3, ENOSYS},
};
enum { kDeniedCount = sizeof kDenied / sizeof kDenied[0] };

static int allowed(const char* list, const char* name) {
  const size_t length = strlen(name);
  for (const char* at = list; (at = strstr(at, name)) != NULL; at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return 1;
  return strcmp(list, "all") == 0;
}

static int install(const char* allow) {
  const unsigned namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                              CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
  struct sock_filter code[16 + 2 * kDeniedCount];
  unsigned n = 0;
#define ADD(...) code[n++] = (struct sock_filter)__VA_ARGS__
#define ANSWER(error) SECCOMP_RET_ERRNO | ((error) & SECCOMP_RET_DATA)
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
  ADD(BPF_STMT(BPF_RET | BPF_K, ANSWER(ENOSYS)));
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
  for (unsigned i = 0; i < kDeniedCount; ++i) {
    if (allowed(allow, kDenied[i].name)) continue;
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kDenied[i].number, 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, ANSWER((unsigned)kDenied[i].error)));
  }
  ADD(BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, NEWEST_KNOWN, 0, 1));
  ADD(BPF_STMT(BPF_RET | BPF_K, ANSWER(ENOSYS)));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));
  // the lower half: x86 is little-endian
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])));
  ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, namespaces, 0, 1));
  ADD(BPF_STMT(BPF_RET | BPF_K, ANSWER(EPERM)));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  struct sock_fprog program = {(unsigned short)n, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

int main(int argc, char** argv) {
  const char* allow = "";
  int at = 1;
  if (argc > 3 && strcmp(argv[1], "--allow") == 0) {
    allow = argv[2];
    at = 3;
  }
  if (at >= argc) {
    fprintf(stderr, "Usage: contained [--allow NAMES] COMMAND...\n");
    return 125;
  }
  if (strcmp(allow, "all") != 0 && install(allow) != 0) {
    perror("contained: seccomp");
    return 125;
  }
  execvp(argv[at], argv + at);
  fprintf(stderr, "contained: %s: %s\n", argv[at], strerror(errno));
  return 125;
}
