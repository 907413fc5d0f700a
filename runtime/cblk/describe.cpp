// SPDX-License-Identifier: Apache-2.0
// A chunk's answers to cblk_get_stats and cblk_get_attrs.
// Threading: any. Takes no lock of the data path.
#include <string.h>

#include "cblk/chunk.h"
#include "cblk/open_device.h"

namespace lunar::cblk {
namespace {

uint64_t read(const Count& count) { return count.load(std::memory_order_relaxed); }
uint32_t now(const Gauge& gauge) { return gauge.now.load(std::memory_order_relaxed); }
uint32_t most(const Gauge& gauge) { return gauge.most.load(std::memory_order_relaxed); }

}  // namespace

void Chunk::stats(chunk_stats_t* out) {
  memset(out, 0, sizeof *out);
  const Ways ways = ways_to(device_);
  const Counters& c = counters_;
  out->block_size = CAPI_FLASH_BLOCK_SIZE;
  out->num_paths = ways.count;
  out->primary_path_id = ways.primary;
  out->num_path_fail_overs = ways.fail_overs;
  out->max_transfer_size = transfer_blocks_max_;
  out->num_reads = read(c.reads);
  out->num_writes = read(c.writes);
  out->num_areads = read(c.areads);
  out->num_awrites = read(c.awrites);
  out->num_act_reads = now(c.act_reads);
  out->num_act_writes = now(c.act_writes);
  out->num_act_areads = now(c.act_areads);
  out->num_act_awrites = now(c.act_awrites);
  out->max_num_act_reads = most(c.act_reads);
  out->max_num_act_writes = most(c.act_writes);
  out->max_num_act_areads = most(c.act_areads);
  out->max_num_act_awrites = most(c.act_awrites);
  out->num_blocks_read = read(c.blocks_read);
  out->num_blocks_written = read(c.blocks_written);
  out->num_errors = read(c.errors);
  out->num_aresult_no_cmplt = read(c.nothing_done);
  out->num_timeouts = out->num_fail_timeouts = read(c.timeouts);
  out->num_no_cmds_free = read(c.none_free);
  out->num_no_cmd_room = read(c.no_room);
  out->num_no_cmds_free_fail = read(c.none_free_failed);
  out->num_success_threads = read(c.threads_started);
  out->num_failed_threads = read(c.threads_failed);
  out->num_active_threads = out->max_num_act_threads = out->num_success_threads ? 1 : 0;
  out->num_cache_hits = read(c.cache_hits);
}

void Chunk::attributes(chunk_attrs_t* out) {
  memset(out, 0, sizeof *out);
  out->flags1 = can_unmap_ ? CFLSH_ATTR_UNMAP : 0;
  out->block_size = CAPI_FLASH_BLOCK_SIZE;
  out->num_paths = ways_to(device_).count;
  out->max_transfer_size = transfer_blocks_max_;
}

}  // namespace lunar::cblk
