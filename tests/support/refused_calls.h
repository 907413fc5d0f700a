// SPDX-License-Identifier: Apache-2.0
// A filter that refuses system calls (EPERM unless another answer is given) in the calling thread
// or all threads, and in threads and processes that they start.
#pragma once
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>
#include <vector>

// All calls of that number, or those whose argument is `value` in the bits of `mask` (of its low
// half, on little-endian machines).
struct RefusedCall {
  RefusedCall(unsigned call, int which = -1, unsigned is = 0, unsigned in_bits = ~0u)
      : number(call), argument(which), value(is), mask(in_bits) {}
  unsigned number;
  int argument;
  unsigned value, mask;
};

// False: there are no filters here.
inline bool refuse_calls(std::initializer_list<RefusedCall> calls, bool in_all_threads = false,
                         unsigned answer = SECCOMP_RET_ERRNO | EPERM) {
  std::vector<sock_filter> code;
  for (const RefusedCall& call : calls) {
    const bool any = call.argument < 0;
    const size_t at = offsetof(seccomp_data, args) + sizeof(__u64) * (any ? 0u : call.argument);
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0, __u8(any ? 1 : 4)));
    if (!any) {
      code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(at)));
      code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, call.mask));
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.value, 0, 1));
    }
    code.push_back(BPF_STMT(BPF_RET | BPF_K, answer));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  const unsigned long flags = in_all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0;
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
}
