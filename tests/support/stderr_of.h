// SPDX-License-Identifier: Apache-2.0
// The standard error of code that runs in a child and may end its process.
// Threading: one thread. May not: be used by code that ships.
#pragma once
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace lunar_test {

// *status becomes waitpid()'s. If the body skips, the test skips. A failure to set up ends the
// test.
template <class Body>
std::string stderr_of(Body&& body, int* status = nullptr) {
  const auto must = [](bool done, const char* what) {
    if (done) return;
    perror(what);
    abort();
  };
  int ends[2];
  const int own = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  must(own >= 0 && pipe(ends) == 0, "pipe");
  fflush(nullptr);
  // Before the fork, because fork handlers may end the child.
  must(dup2(ends[1], STDERR_FILENO) >= 0, "dup2");
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    close(ends[1]);
    body();
    fflush(nullptr);
    _exit(0);
  }
  dup2(own, STDERR_FILENO);
  close(own);
  close(ends[1]);
  must(child >= 0, "fork");
  std::string text;
  char part[512];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(n));
  close(ends[0]);
  int ended;
  must(waitpid(child, &ended, 0) == child, "waitpid");
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == 77) _exit(77);
  if (status) *status = ended;
  return text;
}

}  // namespace lunar_test
