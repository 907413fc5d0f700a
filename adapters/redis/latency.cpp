// SPDX-License-Identifier: Apache-2.0
// See latency.h.
#include "latency.h"

#include <cstring>

#include "server_config.h"
#include "server_cron.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kNsPerMs = 1000000;
uint64_t g_threshold_ms = 0;  // 0: the monitor is off

void sample(const char* event, uint64_t ns) {
  // The server drops samples below its threshold, but not while the monitor is off.
  if (g_threshold_ms != 0 && ns >= g_threshold_ms * kNsPerMs)
    g_api.LatencyAddSample(event, static_cast<long long>(ns / kNsPerMs));
}

void on_cron(Context*) {
  if (tier().gate == nullptr) return;
  const GateWorst worst = tier().gate->take_worst();
  sample("lunar-fault", worst.fault_ns);
  sample("lunar-stall", worst.stall_ns);
  sample("lunar-hold", worst.hold_ns);
}

void read_threshold(Context* context) {
  if (!server_config_number(context, "latency-monitor-threshold", &g_threshold_ms))
    g_threshold_ms = 0;
}

}  // namespace

void latency_start(Context* context) {
  if (g_api.LatencyAddSample == nullptr) return;
  read_threshold(context);
  if (!server_config_watch(context, "latency-monitor-threshold", read_threshold)) return;
  (void)server_cron_add(context, on_cron);
}

}  // namespace lunar::redis
