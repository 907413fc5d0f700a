// SPDX-License-Identifier: Apache-2.0
// See io_engine.h. Linux AIO is called by its system calls, so that nothing but the kernel is needed (libaio does no
// more).
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/io_engine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "tools/bench/io/cblk_chunk.h"
#include "tools/bench/io/raid0_group.h"

namespace lunar::tools {

namespace {

class SuperpipeEngine final : public IoEngine {
 public:
  SuperpipeEngine(const EngineSetup& setup, bool window, bool spin = true)
      : device_(setup.backing->device()), commands_(setup.slots), responses_(setup.slots) {
    ContextOptions options;
    options.depth = setup.slots;
    options.spin = spin;
    if (window) {
      options.buffer = setup.buffers->data();
      options.buffer_bytes = setup.buffers->bytes();
    }
    if (const int status = device_.attach(options, &context_); status < 0) {
      throw std::runtime_error(fmt::format("{}: no context: {}", device_.name(), errno_text(status)));
    }
    for (unsigned i = 0; i < setup.slots; ++i) {
      parts_.push_back({setup.buffers->data() + i * setup.unit_bytes, setup.unit_bytes});
    }
  }
  ~SuperpipeEngine() override { device_.detach(context_); }

  int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) override {
    for (unsigned i = 0; i < n; ++i) {
      Command& command = commands_[i];
      command.op = ops[i].write ? Op::kWrite : Op::kRead;
      command.offset = DeviceOffset{ops[i].offset};
      command.iov = &parts_[ops[i].slot];
      command.iov_count = 1;
      command.tag = ops[i].slot;
    }
    const auto room = static_cast<unsigned>(responses_.size());
    unsigned taken = 0;
    int got = context_->exchange(commands_.data(), n, &taken, responses_.data(), room, least, -1);
    if (taken < n && got >= 0) return -ENOBUFS;  // the context has room for all slots: never
    for (int i = 0; i < got; ++i) out[i] = {static_cast<unsigned>(responses_[i].tag), responses_[i].result};
    return got == -EINTR ? 0 : got;
  }

 private:
  Device& device_;
  Context* context_ = nullptr;
  std::vector<iovec> parts_;
  std::vector<Command> commands_;
  std::vector<Response> responses_;
};

class AioEngine final : public IoEngine {
 public:
  explicit AioEngine(const EngineSetup& setup)
      : path_offset_(setup.backing->path_offset()), blocks_(setup.slots), wanted_(setup.slots), events_(setup.slots) {
    fd_ = open(setup.backing->path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd_ < 0 || syscall(SYS_io_setup, setup.slots, &context_) != 0) {
      const int error = errno;
      if (fd_ >= 0) close(fd_);
      throw std::runtime_error(fmt::format("libaio on {}: {}", setup.backing->path(), strerror(error)));
    }
    for (unsigned i = 0; i < setup.slots; ++i) {
      blocks_[i].aio_fildes = static_cast<uint32_t>(fd_);
      blocks_[i].aio_buf = reinterpret_cast<uintptr_t>(setup.buffers->data() + i * setup.unit_bytes);
      blocks_[i].aio_nbytes = setup.unit_bytes;
      blocks_[i].aio_data = i;
    }
  }
  ~AioEngine() override {
    syscall(SYS_io_destroy, context_);  // waits for what is in flight
    close(fd_);
  }

  int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) override {
    for (unsigned i = 0; i < n; ++i) {
      iocb& block = blocks_[ops[i].slot];
      block.aio_lio_opcode = ops[i].write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
      block.aio_offset = static_cast<int64_t>(path_offset_ + ops[i].offset);
      wanted_[i] = &block;
    }
    for (unsigned sent = 0; sent < n;) {
      const long status = syscall(SYS_io_submit, context_, n - sent, wanted_.data() + sent);
      if (status < 0 && errno != EAGAIN && errno != EINTR) return -errno;
      if (status > 0) sent += static_cast<unsigned>(status);
    }
    const long got = syscall(SYS_io_getevents, context_, least, events_.size(), events_.data(), nullptr);
    if (got < 0) return errno == EINTR ? 0 : -errno;
    for (long i = 0; i < got; ++i) out[i] = {static_cast<unsigned>(events_[i].data), events_[i].res};
    return static_cast<int>(got);
  }

 private:
  uint64_t path_offset_;
  int fd_ = -1;
  aio_context_t context_ = 0;
  std::vector<iocb> blocks_;
  std::vector<iocb*> wanted_;
  std::vector<io_event> events_;
};

class CblkEngine final : public IoEngine {
 public:
  explicit CblkEngine(const EngineSetup& setup)
      : setup_(setup), chunk_(*setup.backing, setup.slots), slot_of_tag_(setup.slots) {}

  int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) override {
    if (setup_.slots == 1) {
      if (n == 1)
        out[0] = {ops[0].slot, chunk_.transfer(ops[0].write, buffer(ops[0].slot), ops[0].offset, setup_.unit_bytes)};
      return static_cast<int>(n);
    }
    for (unsigned i = 0; i < n; ++i) {
      int tag = 0;
      const int status =
          (ops[i].write ? cblk_awrite : cblk_aread)(chunk_.id(), buffer(ops[i].slot), chunk_.block_at(ops[i].offset),
                                                    setup_.unit_bytes / CblkChunk::kBlock, &tag, nullptr, 0);
      if (status != 0) return status < 0 ? -errno : -EPROTO;  // done at once: only a cache could
      slot_of_tag_[static_cast<unsigned>(tag)] = ops[i].slot;
    }
    int taken = 0;
    for (bool more = true; more;) {
      int tag = 0;
      const bool must = static_cast<unsigned>(taken) < least;
      uint64_t moved = 0;
      const int blocks =
          cblk_aresult(chunk_.id(), &tag, &moved, CBLK_ARESULT_NEXT_TAG | (must ? CBLK_ARESULT_BLOCKING : 0));
      more = blocks != 0;
      if (blocks < 0 && errno == ENOENT)
        more = false;  // all are fetched
      else if (blocks < 0)
        return -errno;
      if (more)
        out[taken++] = {slot_of_tag_[static_cast<unsigned>(tag)], blocks * static_cast<int64_t>(CblkChunk::kBlock)};
    }
    return taken;
  }

 private:
  char* buffer(unsigned slot) const { return setup_.buffers->data() + slot * setup_.unit_bytes; }
  EngineSetup setup_;
  CblkChunk chunk_;
  std::vector<unsigned> slot_of_tag_;
};

}  // namespace

std::unique_ptr<IoEngine> make_engine(const std::string& system, const EngineSetup& setup) {
  if (system == "lunar") return std::make_unique<SuperpipeEngine>(setup, true);
  if (system == "nospin") return std::make_unique<SuperpipeEngine>(setup, true, false);
  if (system == "perio") return std::make_unique<SuperpipeEngine>(setup, false);
  if (system == "libaio") return std::make_unique<AioEngine>(setup);
  if (system == "cblk") return std::make_unique<CblkEngine>(setup);
  if (system == "raid0") return dynamic_cast<const Raid0Group&>(*setup.backing).engine(setup);
  throw std::runtime_error("no engine is named " + system);
}

}  // namespace lunar::tools
