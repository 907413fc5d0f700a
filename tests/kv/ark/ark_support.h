// SPDX-License-Identifier: Apache-2.0
// Helpers of libarkdb's tests: a store that ends with its scope, keys and values as strings,
// counted asynchronous calls. They use the library's public header only. Threading: Finished by any
// thread, the rest by one.
#pragma once
#include <arkdb.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <string>

#include "tests/support/meanwhile.h"

namespace ark_test {

inline void* data_of(const std::string& text) { return const_cast<char*>(text.data()); }

struct Store {
  ARK* ark = nullptr;
  explicit Store(const char* path = "mem:64m", int threads = 4, int queue = 0, int asyncs = 0,
                 uint64_t flags = 0) {
    status = ark_create_verbose(const_cast<char*>(path), &ark, 0, 4096, 1000, threads, queue,
                                asyncs, flags);
  }
  ~Store() {
    if (ark) (void)ark_delete(ark);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  int set(const std::string& key, const std::string& value, int64_t* res = nullptr) const {
    int64_t ignored;
    return ark_set(ark, key.size(), data_of(key), value.size(), data_of(value),
                   res ? res : &ignored);
  }
  // The value; "(none)" if the key is not there, "(error)" after an error.
  std::string get(const std::string& key) const {
    int64_t length = 0;
    int rc = ark_exists(ark, key.size(), data_of(key), &length);
    if (rc == ENOENT) return "(none)";
    if (rc != 0) return "(error)";
    std::string value(static_cast<size_t>(length), '.');
    rc = ark_get(ark, key.size(), data_of(key), value.size(), value.data(), 0, &length);
    return rc == 0 ? value : "(error)";
  }
  int64_t count() const {
    int64_t n = -1;
    return ark_count(ark, &n) == 0 ? n : -1;
  }
  int status;
};

// A file that is removed at the end. One that could not be made is no store's.
struct File {
  char path[64] = "/var/tmp/lunar-test-ark-XXXXXX";
  explicit File(uint64_t bytes) {
    const int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) perror(path);
    if (fd >= 0) close(fd);
  }
  ~File() { unlink(path); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

// The resident bytes of this process; 0: unknown.
inline uint64_t resident() {
  unsigned long pages[2] = {0, 0};
  FILE* file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%lu %lu", &pages[0], &pages[1]) != 2) pages[1] = 0;
  if (file) fclose(file);
  return uint64_t{pages[1]} * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Callbacks that came, and the last one's words.
class Finished {
 public:
  void note(int errcode, int64_t res) {
    std::lock_guard<std::mutex> guard(lock_);
    ++count_;
    this->errcode = errcode;
    this->res = res;
    changed_.notify_all();
  }
  void wait_for(uint64_t count) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return count_ >= count; });
  }
  uint64_t count() {
    std::lock_guard<std::mutex> guard(lock_);
    return count_;
  }
  static void callback(int errcode, uint64_t dt, int64_t res) {
    reinterpret_cast<Finished*>(dt)->note(errcode, res);
  }
  uint64_t tag() { return reinterpret_cast<uint64_t>(this); }
  int errcode = -1;
  int64_t res = -2;

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace ark_test
