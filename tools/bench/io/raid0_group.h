// SPDX-License-Identifier: Apache-2.0
// A RAID 0 of the block library (libcflsh_block) over plain files, as what a block bench works on.
// Threading: one thread opens, fills, verifies and has the engine. May not be used by runtime/ (it allocates).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "capiblock.h"
#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/io_engine.h"

namespace lunar::tools {

class Raid0Group final : public BenchBacking {
 public:
  // `bytes` in all; `requests` at once on each member. Throws std::runtime_error.
  Raid0Group(const std::vector<std::string>& members, uint64_t bytes, uint64_t seed, SetupJournal& journal,
             unsigned requests, std::string disk_stat);
  ~Raid0Group() override;

  // cblk_cg_read and cblk_cg_write where there is one slot, else cblk_cg_aread, cblk_cg_awrite and cblk_cg_aresult,
  // which move one block of 4096 bytes each.
  std::unique_ptr<IoEngine> engine(const EngineSetup& setup) const;

 private:
  int64_t move(bool write, uint64_t at, char* data, size_t bytes) const override;
  chunk_cg_id_t id_ = NULL_CHUNK_CG_ID;
};

}  // namespace lunar::tools
