// SPDX-License-Identifier: Apache-2.0
// What a piece of code writes to standard error, run in a child, so that it may end its process.
// Threading: one thread. May not: be used by code that ships.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace lunar_test {

// *status, if it is wanted, as waitpid() gives it. What cannot be set up ends the test.
template <class Body>
std::string stderr_of(Body&& body, int* status = nullptr) {
  const auto must = [](bool done, const char* what) {
    if (done) return;
    perror(what);
    abort();
  };
  int ends[2];
  must(pipe(ends) == 0, "pipe");
  fflush(nullptr);
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    body();
    fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(n));
  close(ends[0]);
  int unused;
  must(waitpid(child, status ? status : &unused, 0) == child, "waitpid");
  return text;
}

}  // namespace lunar_test
