// SPDX-License-Identifier: Apache-2.0
// Single commands to devices and contexts, and pages as their buffers.
// Threading: none; a context is its owner's.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "superpipe/device.h"

namespace lunar_test {

constexpr size_t kPage = 4096;

struct Pages {
  char* base;
  size_t bytes;
  explicit Pages(size_t count) : bytes(count * kPage) {
    base = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Pages() { munmap(base, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* page(size_t n) const { return base + n * kPage; }
};

inline lunar::Command command_of(lunar::Op op, uint64_t offset, const iovec* parts, uint32_t count,
                                 uint64_t tag = 0) {
  lunar::Command command;
  command.op = op;
  command.offset = lunar::DeviceOffset{offset};
  command.iov = parts;
  command.iov_count = count;
  command.tag = tag;
  return command;
}

// The command's result; a value below -999 if it did not get one.
inline int64_t one(lunar::Context* context, const lunar::Command& command) {
  if (context->submit(&command, 1) != 1) return -1000;
  lunar::Response response;
  if (context->wait(&response, 1, -1) != 1) return -1001;
  return response.tag == command.tag ? response.result : -1002;
}

// One command with one buffer, by `context`, or by transfer() without one.
inline int64_t io(lunar::Device* device, lunar::Op op, uint64_t offset, void* buffer,
                  uint64_t bytes = kPage, lunar::Context* context = nullptr) {
  const iovec part = {buffer, bytes};
  lunar::Command command = command_of(op, offset, &part, 1);
  command.length = bytes;
  return context ? one(context, command) : device->transfer(command);
}

struct Attached {
  lunar::Device* device;
  lunar::Context* context = nullptr;
  explicit Attached(lunar::Device* of, const lunar::ContextOptions& options = {}) : device(of) {
    if (of->attach(options, &context) != 0) abort();
  }
  ~Attached() { device->detach(context); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
  lunar::Context* operator->() const { return context; }
  operator lunar::Context*() const { return context; }
};

}  // namespace lunar_test
