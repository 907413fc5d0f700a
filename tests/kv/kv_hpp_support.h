// SPDX-License-Identifier: Apache-2.0
// Helpers of lunar/kv.hpp's tests, which use the library's public headers only.
// Threading: Count by any thread, the rest by one.
#pragma once
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <coroutine>
#include <exception>
#include <lunar/kv.hpp>
#include <string>

#include "ark/ark_support.h"

namespace kv_test {

namespace kv = lunar::kv;

// The error of a Result; 0: it has none.
template <class T>
int code(const kv::Result<T>& result) {
  return result ? 0 : result.error().value();
}

inline kv::Options in_memory() { return {.place = "mem:64m", .expected_keys = 1000, .threads = 4}; }

using PlaceFile = ark_test::File;

struct Count : ark_test::Finished {
  void add() { note(0, 0); }
};

// A coroutine that runs to its end by itself, on whatever threads it is resumed on.
struct Detached {
  struct promise_type {
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

// How a child that runs it ends: its exit code, or -signal.
template <class Function>
int ends(Function function) {
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGABRT, SIG_DFL);
    if (!freopen("/dev/null", "w", stderr)) _exit(100);
    function();
    _exit(0);
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1000;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace kv_test
