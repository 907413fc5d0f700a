// SPDX-License-Identifier: Apache-2.0
// What the tests of lunar/kv.hpp share. The library is seen through its public headers only.
// Threading: Count by any thread, the rest by one.
#pragma once
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <coroutine>
#include <exception>
#include <lunar/kv.hpp>
#include <mutex>
#include <string>

namespace kv_test {

namespace kv = lunar::kv;

// The error of a Result that has one; 0.
template <class T>
int code(const kv::Result<T>& result) {
  return result ? 0 : result.error().value();
}

inline kv::Options in_memory() { return {.place = "mem:64m", .expected_keys = 1000, .threads = 4}; }

// A file that is removed at the end.
struct PlaceFile {
  char path[64] = "/var/tmp/lunar-test-kv-XXXXXX";
  explicit PlaceFile(uint64_t bytes) {
    const int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) abort();
    close(fd);
  }
  ~PlaceFile() { unlink(path); }
  PlaceFile(const PlaceFile&) = delete;
  PlaceFile& operator=(const PlaceFile&) = delete;
};

class Count {
 public:
  void add() {
    std::lock_guard<std::mutex> guard(lock_);
    ++count_;
    changed_.notify_all();
  }
  void wait_for(uint64_t count) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return count_ >= count; });
  }
  uint64_t value() {
    std::lock_guard<std::mutex> guard(lock_);
    return count_;
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
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

// How a child that does this ends: its exit code, or -signal.
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
