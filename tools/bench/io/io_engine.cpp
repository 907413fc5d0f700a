// SPDX-License-Identifier: Apache-2.0
// See io_engine.h.
#include "tools/bench/io/io_engine.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "capiblock.h"

namespace lunar::tools {

namespace {

class SuperpipeEngine final : public IoEngine {
 public:
  SuperpipeEngine(Device& device, const NoiseBuffer& buffers, unsigned slots)
      : device_(device), commands_(slots), responses_(slots) {
    ContextOptions options;
    options.depth = slots;
    options.buffer = buffers.data();
    options.buffer_bytes = buffers.bytes();
    if (const int status = device_.attach(options, &context_); status < 0)
      throw std::runtime_error(
          fmt::format("{}: no context: {}", device_.name(), errno_text(status)));
    for (unsigned i = 0; i < slots; ++i)
      parts_.push_back({buffers.data() + i * kBlockBytes, kBlockBytes});
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
    const int got =
        context_->exchange(commands_.data(), n, &taken, responses_.data(), room, least, -1);
    if (taken < n && got >= 0)
      return -ENOBUFS;  // cannot happen: the context has room for all slots
    for (int i = 0; i < got; ++i)
      out[i] = {static_cast<unsigned>(responses_[i].tag), responses_[i].result};
    return got == -EINTR ? 0 : got;
  }

 private:
  Device& device_;
  Context* context_ = nullptr;
  std::vector<iovec> parts_;
  std::vector<Command> commands_;
  std::vector<Response> responses_;
};

class CblkEngine final : public IoEngine {
 public:
  // The bench itself has reserved the device, so the open must be forced.
  CblkEngine(const BenchBacking& backing, const NoiseBuffer& buffers, unsigned slots)
      : buffers_(buffers), first_block_(backing.path_offset() / kBlockBytes), slot_of_tag_(slots) {
    id_ = cblk_open(backing.uri().c_str(), static_cast<int>(slots), O_RDWR, 0,
                    CBLK_OPN_FORCED_RESERVE);
    if (id_ == NULL_CHUNK_ID)
      throw std::runtime_error(fmt::format("cblk_open of {}: {}", backing.uri(), strerror(errno)));
  }
  ~CblkEngine() override { (void)cblk_close(id_, 0); }

  int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) override {
    if (slot_of_tag_.size() == 1) {
      if (n == 1) {
        const int blocks = (ops[0].write ? cblk_write : cblk_read)(id_, buffers_.data(),
                                                                   block_at(ops[0].offset), 1, 0);
        out[0] = {ops[0].slot, blocks < 0 ? -errno : bytes_of(blocks)};
      }
      return static_cast<int>(n);
    }
    for (unsigned i = 0; i < n; ++i) {
      int tag = 0;
      const int status = (ops[i].write ? cblk_awrite : cblk_aread)(
          id_, buffers_.data() + ops[i].slot * kBlockBytes, block_at(ops[i].offset), 1, &tag,
          nullptr, 0);
      if (status != 0)
        return status < 0 ? -errno : -EPROTO;  // only a cache could complete it at once
      slot_of_tag_[static_cast<unsigned>(tag)] = ops[i].slot;
    }
    for (unsigned taken = 0;;) {
      int tag = 0;
      uint64_t moved = 0;
      const int blocks = cblk_aresult(
          id_, &tag, &moved, CBLK_ARESULT_NEXT_TAG | (taken < least ? CBLK_ARESULT_BLOCKING : 0));
      if (blocks == 0 || (blocks < 0 && errno == ENOENT))
        return static_cast<int>(taken);  // all results are fetched
      if (blocks < 0) return -errno;
      out[taken++] = {slot_of_tag_[static_cast<unsigned>(tag)], bytes_of(blocks)};
    }
  }

 private:
  static int64_t bytes_of(int blocks) { return blocks * static_cast<int64_t>(kBlockBytes); }
  cflash_offset_t block_at(uint64_t offset) const {
    return static_cast<cflash_offset_t>(first_block_ + offset / kBlockBytes);
  }
  const NoiseBuffer& buffers_;
  uint64_t first_block_;
  chunk_id_t id_ = NULL_CHUNK_ID;
  std::vector<unsigned> slot_of_tag_;
};

}  // namespace

std::unique_ptr<IoEngine> make_engine(const std::string& system, const BenchBacking& backing,
                                      const NoiseBuffer& buffers, unsigned slots) {
  if (system == "cblk") return std::make_unique<CblkEngine>(backing, buffers, slots);
  return std::make_unique<SuperpipeEngine>(backing.device(), buffers, slots);
}

}  // namespace lunar::tools
