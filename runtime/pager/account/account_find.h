// SPDX-License-Identifier: Apache-2.0
// Finds the memory of the tree's account. `lunar run` passes it down as an open descriptor, which
// it names in LUNAR_ACCOUNT as NUMBER:DEVICE:INODE of a memfd. Programs close descriptors that they
// do not know (Python's subprocess, daemons). The preload library keeps libc's calls from closing
// this one. A process that closed it by a raw system call searches /proc/PID/fd of other processes
// of the tree, which still have it. A process that does not find it gets no budget of its own,
// because the tree would exceed its cap.
// Threading: at the start of a process, one thread. Allocates nothing.
#pragma once
#include "base/error.h"

namespace lunar {

// The descriptor, in the program's table and inherited by exec, or -errno with *why. text: the
// value of LUNAR_ACCOUNT.
[[nodiscard]] int account_find(const char* text, size_t bytes, ErrorText* why);

int account_number();  // -1: none

// The calls that close descriptors skip this number: true if it is the account's now.
bool account_is(int fd);
// The program wants this number for itself (dup2): the account's descriptor moves to another.
void account_make_way(int fd);

}  // namespace lunar
