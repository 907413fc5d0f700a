// SPDX-License-Identifier: Apache-2.0
// NVMe passthrough: see nvme.h.
// Threading: no state; any thread. May not: allocate, retry.
#include "sys/nvme.h"

#include <errno.h>
#include <linux/nvme_ioctl.h>
#include <string.h>
#include <sys/ioctl.h>

namespace lunar::sys {
namespace {

// Newer than the headers of the oldest system we build on.
#ifndef NVME_IOCTL_IO64_CMD_VEC
#define NVME_IOCTL_IO64_CMD_VEC _IOWR('N', 0x49, struct nvme_passthru_cmd64)
#endif
#ifndef NVME_URING_CMD_IO
struct nvme_uring_cmd {
  uint8_t opcode, flags;
  uint16_t rsvd1;
  uint32_t nsid, cdw2, cdw3;
  uint64_t metadata, addr;
  uint32_t metadata_len, data_len, cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, timeout_ms, rsvd2;
};
#define NVME_URING_CMD_IO _IOWR('N', 0x80, struct nvme_uring_cmd)
#define NVME_URING_CMD_IO_VEC _IOWR('N', 0x81, struct nvme_uring_cmd)
#endif

constexpr uint8_t kOpcodeIdentify = 0x06;
constexpr uint32_t kIdentifyBytes = 4096;
constexpr size_t kEntryCommandBytes = 80;

static_assert(sizeof(nvme_uring_cmd) == 72 && sizeof(nvme_uring_cmd) <= kEntryCommandBytes);

template <class Raw>
Raw raw_of(const NvmeCommand& command) {
  Raw raw = {};
  raw.opcode = command.opcode;
  raw.nsid = command.nsid;
  raw.addr = reinterpret_cast<uintptr_t>(command.data);
  raw.data_len = command.data_bytes;
  raw.cdw10 = command.cdw10;
  raw.cdw11 = command.cdw11;
  raw.cdw12 = command.cdw12;
  raw.cdw13 = command.cdw13;
  return raw;
}

int send(int fd, unsigned long request, const NvmeCommand& command) {
  auto raw = raw_of<nvme_passthru_cmd64>(command);
  const int status = ioctl(fd, request, &raw);
  return status < 0 ? -errno : status;
}

}  // namespace

int nvme_namespace_id(int fd) {
  const int id = ioctl(fd, NVME_IOCTL_ID);
  return id < 0 ? -errno : id;
}

int nvme_identify(int fd, uint32_t nsid, uint8_t structure, void* page) {
  NvmeCommand command;
  command.opcode = kOpcodeIdentify;
  command.nsid = nsid;
  command.data = page;
  command.data_bytes = kIdentifyBytes;
  command.cdw10 = structure;
  return send(fd, NVME_IOCTL_ADMIN64_CMD, command);
}

int nvme_io(int fd, const NvmeCommand& command) {
  return send(fd, command.vector ? NVME_IOCTL_IO64_CMD_VEC : NVME_IOCTL_IO64_CMD, command);
}

void nvme_ring_command(const NvmeCommand& command, uint32_t* operation, uint8_t* entry_command) {
  const auto raw = raw_of<nvme_uring_cmd>(command);
  *operation = static_cast<uint32_t>(command.vector ? NVME_URING_CMD_IO_VEC : NVME_URING_CMD_IO);
  memset(entry_command, 0, kEntryCommandBytes);
  memcpy(entry_command, &raw, sizeof raw);
}

}  // namespace lunar::sys
