// SPDX-License-Identifier: Apache-2.0
// Finds the memory of the tree's account. `lunar run` passes it down as an open descriptor of a
// memfd, named in LUNAR_ACCOUNT as NUMBER:DEVICE:INODE. Programs close descriptors that they do not
// know (Python's subprocess, daemons). The preload library keeps libc's calls from closing this
// one. If it was closed by a raw call, the process searches /proc/PID/fd of other processes
// of the tree. A process that does not find the account gets no budget of its own, with which the
// tree would exceed its cap. Threading: at the start of a process, one thread. Allocates nothing.
#pragma once
#include "base/error.h"

namespace lunar {

// Returns the descriptor, in the program's table and inherited by exec, or -errno with *why. text:
// the value of LUNAR_ACCOUNT.
[[nodiscard]] int account_find(const char* text, size_t bytes, ErrorText* why);

int account_number();  // -1: none

// Whether the number is the account's now: calls that close descriptors skip it then.
bool account_is(int fd);
// The program wants this number for itself (dup2): duplicates the account's descriptor to another
// number.
void account_make_way(int fd);

}  // namespace lunar
