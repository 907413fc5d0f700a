// SPDX-License-Identifier: Apache-2.0
// Forked children of a test.
// Threading: any. May not: be used by code that ships.
#pragma once
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cases.h"

namespace lunar_test {

// A forked child that runs `body` and exits with 0.
template <class Body>
pid_t fork_child(Body&& body) {
  fflush(nullptr);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid != 0) return pid;
  body();
  fflush(nullptr);
  _exit(0);
}

inline void expect_exit(pid_t pid, const char* who = "the child") {
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(status == 0, "%s ended with status %x", who, static_cast<unsigned>(status));
}

// Runs `body` in a forked child, which must end well.
template <class Body>
void in_child(Body&& body) {
  expect_exit(fork_child(body));
}

}  // namespace lunar_test
