// SPDX-License-Identifier: Apache-2.0
// NVMe commands to a namespace's character device (/dev/ngXnY): by ioctl, and as entries of a ring
// (Uring::queue_nvme). The kernel's structures stay in nvme.cpp. 0 / -errno, a positive value is
// the NVMe status the device answered. No allocation; the ioctls block.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::sys {

struct NvmeCommand {
  uint8_t opcode = 0;
  uint32_t nsid = 0;
  // a buffer of data_bytes, or with `vector` an array of data_bytes iovecs
  const void* data = nullptr;
  uint32_t data_bytes = 0;
  bool vector = false;
  uint32_t cdw10 = 0, cdw11 = 0, cdw12 = 0, cdw13 = 0;
};

[[nodiscard]] int nvme_namespace_id(int fd);  // > 0, or -errno
// CNS; 4096 bytes
[[nodiscard]] int nvme_identify(int fd, uint32_t nsid, uint8_t structure, void* page);
[[nodiscard]] int nvme_io(int fd, const NvmeCommand& command);

// Fills the command part (80 bytes) of a 128-byte ring entry.
void nvme_ring_command(const NvmeCommand& command, uint32_t* operation, uint8_t* entry_command);

}  // namespace lunar::sys
