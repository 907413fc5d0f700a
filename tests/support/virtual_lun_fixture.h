// SPDX-License-Identifier: Apache-2.0
// Helpers of the virtual LUNs' unit tests. Threading: a test's.
#pragma once
#include <string>

#include "base/bytes.h"
#include "lun/volume/virtual_impl.h"
#include "sys/arena.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/lun_file.h"

namespace lunar_test {

using namespace lunar;

constexpr uint64_t kBytes = 16 * kMiB, kExtent = 64 * kKiB;

inline VirtualOptions named(const char* name, uint64_t bytes = 0, bool create = true) {
  VirtualOptions options;
  options.name = name;
  options.create = create;
  options.size_bytes = bytes;
  return options;
}

inline VirtualLun* must(const std::string& uri, const VirtualOptions& options) {
  VirtualLun* lun = nullptr;
  ErrorText why;
  const int status = open_virtual(uri.c_str(), options, &lun, &why);
  INFO(why.text);
  REQUIRE(status == 0);
  return lun;
}

inline int refused(const std::string& uri, const VirtualOptions& options, const char* word) {
  VirtualLun* lun = nullptr;
  ErrorText why;
  const int status = open_virtual(uri.c_str(), options, &lun, &why);
  INFO(why.text);
  CHECK(lun == nullptr);
  CHECK(strstr(why.text, word));
  return status;
}

// Page-aligned memory.
struct Buffer {
  char* at;
  size_t bytes;
  explicit Buffer(size_t n)
      : at(static_cast<char*>(map_private(n, ForkPolicy::kInherit))), bytes(n) {
    REQUIRE(at);
  }
  ~Buffer() { unmap_private(at, bytes); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

inline bool zeros(Device* device, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kPiece = 64 * kKiB;
  Buffer buffer(kPiece);
  bool all = true;
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    const uint64_t part = bytes - at < kPiece ? bytes - at : kPiece;
    REQUIRE(io(device, Op::kRead, offset + at, buffer.at, part) == static_cast<int64_t>(part));
    all &= bytes_are_zero(buffer.at, part);
  }
  return all;
}

}  // namespace lunar_test
