// SPDX-License-Identifier: Apache-2.0
// A file that carries virtual LUNs, and functions that open it. For the tests of lun/.
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "lun/volume/virtual_lun.h"
#include "superpipe/device.h"
#include "superpipe/registry.h"

namespace lunar_test {

// A file in the current directory, removed at the end.
struct LunFile {
  std::string path;
  explicit LunFile(uint64_t bytes) {
    char name[] = "./lun-test-XXXXXX";
    const int fd = mkstemp(name);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) abort();
    close(fd);
    path = name;
  }
  ~LunFile() { unlink(path.c_str()); }
  LunFile(const LunFile&) = delete;
  LunFile& operator=(const LunFile&) = delete;
};

inline int open_physical(const char* uri, lunar::Format format, lunar::PhysicalLun** out,
                         lunar::ErrorText* why) {
  lunar::DeviceOptions options;
  options.scratch = false;
  lunar::Device* raw = nullptr;
  *out = nullptr;
  const int status = lunar::device_open(uri, options, &raw, why);
  return status < 0 ? status : lunar::PhysicalLun::open(raw, format, out, why);
}

inline int open_virtual(const char* uri, const lunar::VirtualOptions& options,
                        lunar::VirtualLun** out, lunar::ErrorText* why,
                        lunar::Format format = lunar::Format::kIfBlank) {
  lunar::PhysicalLun* physical = nullptr;
  *out = nullptr;
  const int status = open_physical(uri, format, &physical, why);
  return status < 0 ? status : lunar::VirtualLun::open(physical, options, out, why);
}

inline uint64_t next_random(uint64_t* state) {  // splitmix64
  uint64_t x = *state += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace lunar_test
