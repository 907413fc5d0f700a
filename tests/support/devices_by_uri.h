// SPDX-License-Identifier: Apache-2.0
// Devices by URI, for unit tests: opens, refusals, and a directory for files. Threading: the test's
// thread.
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "superpipe/registry.h"
#include "tests/catch.h"

namespace lunar_test {

inline const char* disk_directory() {
  const char* given = getenv("LUNAR_TEST_DIR");
  return given ? given : "/var/tmp";
}

// A directory on a disk, removed at the end.
struct Directory {
  std::string path = std::string(disk_directory()) + "/lunar-test-XXXXXX";
  Directory() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Directory() { (void)!system(("rm -rf " + path).c_str()); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string file(const char* name, const std::string& contents = "", off_t bytes = 0) const {
    const std::string full = path + "/" + name;
    std::ofstream(full, std::ios::binary) << contents;
    if (bytes) REQUIRE(truncate(full.c_str(), bytes) == 0);
    return full;
  }
  // With its blocks.
  std::string disk(const char* name, size_t bytes) const {
    const std::string full = file(name);
    const int fd = open(full.c_str(), O_RDWR);
    REQUIRE(posix_fallocate(fd, 0, static_cast<off_t>(bytes)) == 0);
    close(fd);
    return full;
  }
};

constexpr lunar::DeviceOptions kRaw = {.scratch = false},
                               kReadOnly = {.scratch = false, .read_only = true};

inline lunar::Device* opened(const std::string& uri, const lunar::DeviceOptions& options = {}) {
  lunar::Device* device = nullptr;
  lunar::ErrorText why;
  const int status = device_open(uri.c_str(), options, &device, &why);
  INFO(uri << ": " << why.text);
  REQUIRE(status == 0);
  return device;
}

struct Closer {
  void operator()(lunar::Device* device) const { device_close(device); }
};
using Opened = std::unique_ptr<lunar::Device, Closer>;
inline Opened hold(const std::string& uri, const lunar::DeviceOptions& options = kRaw) {
  return Opened(opened(uri, options));
}

// The reason, which is one line; `expected`: the status, if only one is right.
inline std::string refused(const std::string& uri, const lunar::DeviceOptions& options = {},
                           int expected = 0) {
  lunar::Device* device = nullptr;
  lunar::ErrorText why;
  const int status = device_open(uri.c_str(), options, &device, &why);
  const std::string text = why.text;
  INFO(uri << ": " << text);
  CHECK(status < 0);
  if (expected) CHECK(status == expected);
  CHECK(device == nullptr);
  CHECK(text.find('\n') == std::string::npos);
  return text;
}

inline bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace lunar_test
