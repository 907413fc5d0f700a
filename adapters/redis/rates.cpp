// SPDX-License-Identifier: Apache-2.0
// See rates.h.
#include "rates.h"

#include "server_cron.h"
#include "sys/thread.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr int64_t kSampleNs = 1'000'000'000, kHoldSampleNs = 10'000'000'000,
                  kPrefixesAgeNs = 60'000'000'000;
constexpr unsigned kSamples = 62, kHoldSamples = 7;
constexpr unsigned kWindows[3] = {1, 10, 60};  // samples

struct Sample {
  int64_t at_ns = 0;
  uint64_t cold_faults = 0, main_reads = 0, gate_reads = 0;
  uint64_t seen = 0, seen_cold = 0;          // by the gate
  uint64_t commands = 0, cold_commands = 0;  // by the main thread
};

template <class T, unsigned N>
class Ring {
 public:
  T& next() { return ring_[count_++ % N]; }
  unsigned size() const { return count_ < N ? count_ : N; }
  const T& ago(unsigned n) const { return ring_[(count_ - 1 - n) % N]; }  // pre: n < size()

 private:
  T ring_[N] = {};
  unsigned count_ = 0;
};

Ring<Sample, kSamples> g_samples;
Ring<HoldTimes, kHoldSamples> g_hold_samples;
int64_t g_hold_sample_at_ns = 0, g_prefixes_aged_at_ns = 0;
uint64_t g_commands = 0, g_cold_commands = 0;
const std::atomic<uint64_t>* g_main_reads = nullptr;
uint64_t g_main_reads_before = 0;

Sample sample_now() {
  Sample sample;
  sample.at_ns = sys::now_ns();
  sample.cold_faults = tier_stats().major_faults;
  sample.commands = g_commands;
  sample.cold_commands = g_cold_commands;
  if (tier().gate == nullptr) return sample;
  const GateCounters gate = tier().gate->counters();
  sample.main_reads = gate.main_reads;
  sample.gate_reads = gate.overlapped_reads;
  sample.seen = gate.seen;
  sample.seen_cold = gate.seen_cold;
  return sample;
}

void on_cron(Context*) {
  const int64_t now = sys::now_ns();
  if (g_samples.size() == 0 || now - g_samples.ago(0).at_ns >= kSampleNs)
    g_samples.next() = sample_now();
  if (tier().gate == nullptr) return;
  if (g_hold_samples.size() == 0 || now - g_hold_sample_at_ns >= kHoldSampleNs) {
    g_hold_sample_at_ns = now;
    g_hold_samples.next() = tier().gate->hold_times();
  }
  if (now - g_prefixes_aged_at_ns >= kPrefixesAgeNs) {
    g_prefixes_aged_at_ns = now;
    tier().gate->prefixes().age();
  }
}

}  // namespace

void rates_start(Context* context) {
  if (tier().gate != nullptr) g_main_reads = tier().gate->main_reads();
  g_prefixes_aged_at_ns = sys::now_ns();
  if (!server_cron_add(context, on_cron))
    g_api.Log(context, "warning", "this server does not tell its cron: INFO lunar has no rates");
}

void rates_on_command() {
  ++g_commands;
  const uint64_t reads =
      g_main_reads == nullptr ? 0 : g_main_reads->load(std::memory_order_relaxed);
  if (__builtin_expect(reads == g_main_reads_before, 1)) return;
  g_main_reads_before = reads;
  ++g_cold_commands;
}

Rates rates_now() {
  Rates rates;
  const unsigned samples = g_samples.size();
  for (unsigned w = 0; w < 3 && samples > 1; ++w) {
    const Sample& last = g_samples.ago(0);
    const Sample& first = g_samples.ago(kWindows[w] < samples ? kWindows[w] : samples - 1);
    const double seconds = static_cast<double>(last.at_ns - first.at_ns) / 1e9;
    rates.cold_faults[w] = static_cast<double>(last.cold_faults - first.cold_faults) / seconds;
    rates.main_reads[w] = static_cast<double>(last.main_reads - first.main_reads) / seconds;
    rates.gate_reads[w] = static_cast<double>(last.gate_reads - first.gate_reads) / seconds;
  }
  // Up to now, so that a benchmark of half a second counts.
  const Sample now = sample_now(),
               before = samples == 0 ? Sample{} : g_samples.ago(samples > 60 ? 60 : samples - 1);
  if (now.seen != before.seen)
    rates.warm = 1 - part_of(now.seen_cold - before.seen_cold, now.seen - before.seen);
  else if (now.commands != before.commands)
    rates.warm =
        1 - part_of(now.cold_commands - before.cold_commands, now.commands - before.commands);
  if (tier().gate != nullptr && g_hold_samples.size() != 0)
    rates.hold_p99_ms = static_cast<double>(tier().gate->hold_times().quantile_ns(
                            g_hold_samples.ago(g_hold_samples.size() - 1), 0.99)) /
                        1e6;
  return rates;
}

}  // namespace lunar::redis
