// SPDX-License-Identifier: Apache-2.0
// See raid0_group.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/raid0_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace lunar::tools {

namespace {

constexpr size_t kBlock = 4096;

int64_t transfer(chunk_cg_id_t id, bool write, void* data, uint64_t at, size_t bytes) {
  const int blocks =
      (write ? cblk_cg_write : cblk_cg_read)(id, data, static_cast<cflash_offset_t>(at / kBlock), bytes / kBlock, 0);
  return blocks < 0 ? -errno : blocks * static_cast<int64_t>(kBlock);
}

class Raid0Engine final : public IoEngine {
 public:
  Raid0Engine(const EngineSetup& setup, chunk_cg_id_t id) : setup_(setup), id_(id) {}

  int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) override {
    if (setup_.slots == 1) {
      if (n == 1) {
        const int64_t moved = transfer(id_, ops[0].write, buffer(ops[0].slot), ops[0].offset, setup_.unit_bytes);
        out[0] = {ops[0].slot, moved};
      }
      return static_cast<int>(n);
    }
    for (unsigned i = 0; i < n; ++i) {
      cflsh_cg_tag_t tag{-1, -1};
      const int status = (ops[i].write ? cblk_cg_awrite : cblk_cg_aread)(
          id_, buffer(ops[i].slot), static_cast<cflash_offset_t>(ops[i].offset / kBlock), 1, &tag, nullptr, 0);
      if (status != 0) return status < 0 ? -errno : -EPROTO;  // done at once: only a cache could
      slot_of(tag) = ops[i].slot;
    }
    unsigned taken = 0;
    for (;;) {
      cflsh_cg_tag_t tag{-1, -1};
      uint64_t moved = 0;
      const int blocks =
          cblk_cg_aresult(id_, &tag, &moved, CBLK_ARESULT_NEXT_TAG | (taken < least ? CBLK_ARESULT_BLOCKING : 0));
      if (blocks == 0 || (blocks < 0 && errno == ENOENT)) return static_cast<int>(taken);
      if (blocks < 0) return -errno;
      out[taken++] = {slot_of(tag), blocks * static_cast<int64_t>(kBlock)};
    }
  }

 private:
  struct Member {
    chunk_id_t id;
    std::vector<unsigned> slot_of_tag;
  };
  char* buffer(unsigned slot) const { return setup_.buffers->data() + slot * setup_.unit_bytes; }
  unsigned& slot_of(const cflsh_cg_tag_t& tag) {
    auto member = std::find_if(members_.begin(), members_.end(), [&](const Member& one) { return one.id == tag.id; });
    if (member == members_.end()) member = members_.insert(member, {tag.id, std::vector<unsigned>(setup_.slots)});
    return member->slot_of_tag.at(static_cast<unsigned>(tag.tag));
  }
  EngineSetup setup_;
  chunk_cg_id_t id_;
  std::vector<Member> members_;  // in the order in which their tags came
};

}  // namespace

Raid0Group::Raid0Group(const std::vector<std::string>& members, uint64_t bytes, uint64_t seed, SetupJournal& journal,
                       unsigned requests, std::string disk_stat)
    : BenchBacking(bytes, seed, journal, std::move(disk_stat)) {
  const std::string path = fmt::format("{}", fmt::join(members, ":"));
  id_ = cblk_cg_open(path.c_str(), static_cast<int>(requests), O_RDWR, static_cast<int>(members.size()), 0,
                     CBLK_GROUP_RAID0);
  if (id_ == NULL_CHUNK_CG_ID) throw std::runtime_error(fmt::format("cblk_cg_open of {}: {}", path, strerror(errno)));
}

Raid0Group::~Raid0Group() {
  if (id_ != NULL_CHUNK_CG_ID) (void)cblk_cg_close(id_, 0);
}

int64_t Raid0Group::move(bool write, uint64_t at, char* data, size_t bytes) const {
  return transfer(id_, write, data, at, bytes);
}

std::unique_ptr<IoEngine> Raid0Group::engine(const EngineSetup& setup) const {
  return std::make_unique<Raid0Engine>(setup, id_);
}

}  // namespace lunar::tools
