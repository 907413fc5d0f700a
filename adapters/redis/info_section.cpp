// SPDX-License-Identifier: Apache-2.0
// See info_section.h. The one list of figures is `figures`; INFO and LUNAR STATS print it.
#include "info_section.h"

#include "compaction.h"
#include "gate/gate.h"
#include "last_resort.h"
#include "memory_limit.h"
#include "module_settings.h"
#include "rates.h"
#include "space.h"
#include "tier.h"

namespace lunar::redis {
namespace {

class Table {
 public:
  explicit Table(Figure* out) : out_(out) {}
  void text(const char* name, const char* value) { put({name, Figure::Kind::kText, 0, 0, value}); }
  void count(const char* name, uint64_t value) {
    put({name, Figure::Kind::kInteger, value, 0, nullptr});
  }
  void real(const char* name, double value) { put({name, Figure::Kind::kReal, 0, value, nullptr}); }
  unsigned size() const { return count_; }

 private:
  void put(const Figure& figure) {
    if (count_ < kFiguresMax) out_[count_++] = figure;
  }
  Figure* out_;
  unsigned count_ = 0;
};

uint64_t input_bytes() {
  ServerInfo* info = g_api.GetServerInfo(nullptr, "stats");
  if (info == nullptr) return 0;
  int error = 0;
  const uint64_t bytes = g_api.ServerInfoGetFieldUnsigned(info, "total_net_input_bytes", &error);
  g_api.FreeServerInfo(nullptr, info);
  return bytes;
}

void add_memory(Table& table, const lunar_stats& stats) {
  uint64_t missing = stats.committed_bytes > stats.resident_bytes
                         ? stats.committed_bytes - stats.resident_bytes
                         : 0;
  table.count("dram_budget_bytes", stats.dram_budget_bytes);
  table.count("dram_used_bytes", stats.dram_used_bytes);
  table.count("resident_bytes", stats.resident_bytes);
  table.count("resident_peak_bytes", stats.resident_peak_bytes);
  const uint64_t cold = stats.evicted_bytes < missing ? stats.evicted_bytes : missing;
  table.count("cold_bytes", cold);
  table.real("dram_share_percent",
             stats.resident_bytes == 0
                 ? 100
                 : 100 * part_of(stats.resident_bytes, stats.resident_bytes + cold));
  table.count("committed_bytes", stats.committed_bytes);
  table.count("pinned_bytes", stats.pinned_bytes);
  table.count("lun_size_bytes", stats.lun_capacity_bytes);
  table.count("lun_used_bytes", stats.lun_used_bytes);
  const Space space = space_now(true);
  table.text("space_state", memory_limit_state());
  table.count("lun_free_bytes", space.free);
  table.count("lun_forked_bytes", space.forked);
  table.count("lun_fork_reserve_bytes", space.fork_reserve());
  table.count("lun_holes_bytes", space.holes());
  table.count("forks_refused_at_bytes", space.forks_refused_at());
  table.count("maxmemory_follows_at_bytes", space.limit);
  table.count("maxmemory_ceiling_bytes", memory_limit_ceiling());
  const CompactionCounters packed = compaction_counters();
  table.count("packed_values", packed.values);
  table.count("packed_bytes", packed.bytes);
  table.count("packing_passes", packed.passes);
  const LastResort resort = last_resort_counters();
  table.count("last_resort_allocations", resort.allocations);
  table.count("last_resort_children_ended", resort.children);
}

void add_rates(Table& table) {
  const Rates rates = rates_now();
  table.real("hit_rate_percent", 100 * rates.warm);
  table.real("cold_faults_per_second_1s", rates.cold_faults[0]);
  table.real("cold_faults_per_second_10s", rates.cold_faults[1]);
  table.real("cold_faults_per_second_60s", rates.cold_faults[2]);
  table.real("main_cold_faults_per_second_1s", rates.main_reads[0]);
  table.real("main_cold_faults_per_second_10s", rates.main_reads[1]);
  table.real("main_cold_faults_per_second_60s", rates.main_reads[2]);
  table.real("gate_reads_per_second_1s", rates.gate_reads[0]);
  table.real("gate_reads_per_second_10s", rates.gate_reads[1]);
  table.real("gate_reads_per_second_60s", rates.gate_reads[2]);
  table.real("gate_hold_p99_ms", rates.hold_p99_ms);
}

void add_work(Table& table, const lunar_stats& stats, const GateCounters& gate) {
  table.count("faults", stats.faults);
  table.count("cold_faults", stats.major_faults);
  table.count("main_cold_faults", gate.main_reads);
  table.count("main_cold_fault_ms", gate.main_read_ns / 1000000);
#define LUNAR_GATE_COUNTER(name, info) table.count(info, gate.name);
#define LUNAR_GATE_FIGURE(name, info, value) table.count(info, gate.name);
#include "gate/gate_counters.def"
#undef LUNAR_GATE_COUNTER
#undef LUNAR_GATE_FIGURE
  table.count("prefetched_pages", stats.prefetched);
  table.count("second_chances", stats.second_chances);
  table.count("evicted_pages", stats.evictions);
  table.count("evicted_clean_pages", stats.evicted_clean);
  table.count("lun_read_bytes", stats.lun_read_bytes);
  table.count("lun_written_bytes", stats.lun_written_bytes);
  // LUN bytes per byte that clients sent
  table.real("write_amplification", part_of(stats.lun_written_bytes, input_bytes()));
  table.count("read_errors", stats.read_errors);
  table.count("write_errors", stats.write_errors);
  table.count("poisoned_pages", stats.poisoned);
  table.count("dram_waits", stats.budget_waits);
  table.count("forks", stats.fork_count);
}

const char* gate_state_name() {
  switch (tier().gate == nullptr ? GateState::kOff : tier().gate->state()) {
    case GateState::kOff:
      return "off";
    case GateState::kStarting:
      return "starting";
    case GateState::kBypassed:
      return "bypassed";
    case GateState::kWatching:
      return "watching";
  }
  return "?";
}

void on_info(InfoContext* info, int for_crash_report) {
  if (for_crash_report != 0 || !tier().started())
    return;  // does as little as possible in a crashing process
  Figure list[kFiguresMax];
  unsigned count = figures(list);
  if (g_api.InfoAddSection(info, "") != kOk) return;
  for (unsigned i = 0; i < count; ++i) {
    const Figure& figure = list[i];
    switch (figure.kind) {
      case Figure::Kind::kText:
        (void)g_api.InfoAddFieldCString(info, figure.name, figure.text);
        break;
      case Figure::Kind::kInteger:
        (void)g_api.InfoAddFieldULongLong(info, figure.name, figure.integer);
        break;
      case Figure::Kind::kReal:
        (void)g_api.InfoAddFieldDouble(info, figure.name, figure.real);
        break;
    }
  }
}

}  // namespace

unsigned figures(Figure* out) {
  Table table(out);
  lunar_stats stats = tier_stats();
  const GateCounters gate = tier().gate == nullptr ? GateCounters{} : tier().gate->counters();
  table.text("tier", tier().owner == TierOwner::kPreload ? "lunar-run" : "module");
  table.text("gate", gate_state_name());
  if (const char* reason = tier().gate == nullptr ? "" : tier().gate->reason(); *reason != '\0')
    table.text("gate_reason", reason);
  add_memory(table, stats);
  add_rates(table);
  add_work(table, stats, gate);
  return table.size();
}

int info_register(Context* context) {
  return g_api.RegisterInfoFunc(context, on_info) == kOk ? 0 : -1;
}

}  // namespace lunar::redis
