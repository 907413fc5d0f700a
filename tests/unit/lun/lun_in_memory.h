// SPDX-License-Identifier: Apache-2.0
// LunInMemory: the bytes of a physical LUN, opened again and again. Threading: a test's own thread.
#pragma once
#include <cstring>
#include <utility>
#include <vector>

#include "lun/volume/metadata_image.h"
#include "lun/volume/physical_lun.h"
#include "lun/volume/virtual_lun.h"
#include "tests/catch.h"
#include "tests/support/lun_device.h"

namespace lunar_test {

struct LunInMemory {
  std::vector<char> memory;
  lunar::ErrorText why;                        // of the last open
  std::vector<DeviceEvent>* record = nullptr;  // what an open device writes, from its open on

  explicit LunInMemory(uint64_t bytes) : memory(bytes) {}
  explicit LunInMemory(std::vector<char> bytes) : memory(std::move(bytes)) {}
  MemoryDevice* raw(MemoryDevice::Shape shape = {}) {  // a few bytes a test
    auto* device = new MemoryDevice(memory.data(), memory.size(), shape);
    device->record = record;
    return device;
  }
  int open(lunar::Format format, lunar::PhysicalLun** out, MemoryDevice::Shape shape = {}) {
    why = {};
    if (record) record->clear();
    return lunar::PhysicalLun::open(raw(shape), format, out, &why);
  }
  int open(lunar::Format format) {
    lunar::PhysicalLun* lun = nullptr;
    const int status = open(format, &lun);
    CHECK((lun != nullptr) == (status == 0));
    if (lun) lun->close();
    return status;
  }
  lunar::PhysicalLun* must(lunar::Format format = lunar::Format::kNever) {
    lunar::PhysicalLun* lun = nullptr;
    const int status = open(format, &lun);
    INFO(why.text);
    REQUIRE(status == 0);
    return lun;
  }
  // A LUN, closed again.
  int make(const char* name, uint64_t bytes, lunar::Format format = lunar::Format::kNever,
           lunar::LunType type = lunar::LunType::kBlocks) {
    lunar::VirtualOptions options;
    options.name = name;
    options.create = true;
    options.size_bytes = bytes;
    options.type = type;
    lunar::VirtualLun* lun = nullptr;
    const int status = lunar::VirtualLun::open(must(format), options, &lun, &why);
    if (lun) lun->close();
    return status;
  }
  bool says(const char* text) const { return strstr(why.text, text) != nullptr; }
  lunar::media::Superblock& super() {
    return *reinterpret_cast<lunar::media::Superblock*>(memory.data());
  }
  lunar::Geometry geometry() {
    lunar::Geometry g;
    REQUIRE(superblock_geometry(super(), memory.size(), &g) == 0);
    return g;
  }
  char* slot(unsigned i) { return memory.data() + geometry().slot_offset(i); }
};

}  // namespace lunar_test
