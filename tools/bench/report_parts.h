// SPDX-License-Identifier: Apache-2.0
// What the reports of all benches share: medians, ratios of rounds, the common objects of the JSON, times for people, and the rule by
// which a turn does not count.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tools/bench/turn.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

double median(std::vector<double> values);   // pre: not empty
std::string duration_text(double ns);
void write_host(JsonWriter& json);
// "skipped", "memory_peak_bytes" and "failures", and the end of the report's object.
void write_end(JsonWriter& json, const std::map<std::string, std::string>& skipped, const std::map<std::string, double>& peak_bytes,
               const std::vector<std::string>& failures);
// The "ratios" object; baselines without any are left out.
using Ratios = std::map<std::string, double>;
void write_ratios(JsonWriter& json, const std::map<std::string, Ratios>& of_baselines);
// The table's last lines: what was skipped, what failed.
std::string end_lines(const std::map<std::string, std::string>& skipped, const std::vector<std::string>& failures);

// The one estimator of all benches: ours / theirs of each round in which both were measured; the median of these as KEY, the least and the most
// as KEY_min and KEY_max. (The quotient of two medians is a third figure, of no round.)
void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<double>& ours, const std::vector<double>& theirs);
template <class Turn, class Quantity>
void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<Turn>& ours, const std::vector<Turn>& theirs, Quantity quantity) {
  const auto values = [&](const std::vector<Turn>& turns) {
    std::vector<double> out;
    for (const Turn& turn : turns) out.push_back(turn.*quantity);
    return out;
  };
  put_round_ratios(ratios, key, values(ours), values(theirs));
}
// "1.52x (1.49 to 1.60)" of what stands under `key`; "" where nothing does.
std::string ratio_text(const Ratios& ratios, const std::string& key);
// STEMops, mean, p50, p99, p999 and cpu.
template <class Turn>
void put_turn_ratios(Ratios* ratios, const std::string& stem, const std::vector<Turn>& ours, const std::vector<Turn>& theirs) {
  put_round_ratios(ratios, stem + "ops", ours, theirs, &TurnResult::ops_per_s);
  put_round_ratios(ratios, stem + "mean", ours, theirs, &TurnResult::mean_ns);
  put_round_ratios(ratios, stem + "p50", ours, theirs, &TurnResult::p50_ns);
  put_round_ratios(ratios, stem + "p99", ours, theirs, &TurnResult::p99_ns);
  put_round_ratios(ratios, stem + "p999", ours, theirs, &TurnResult::p999_ns);
  put_round_ratios(ratios, stem + "cpu", ours, theirs, &TurnResult::cpu_us_per_op);
}

// Quantity by quantity; zeros of no turns.
TurnResult median_of(const std::vector<TurnResult>& turns);
// The same of a turn with fields of its own beside.
template <class Turn, class Fields>
Turn median_of(const std::vector<Turn>& turns, const Fields& own_fields) {
  Turn result;
  static_cast<TurnResult&>(result) = median_of(std::vector<TurnResult>(turns.begin(), turns.end()));
  for (const auto& field : own_fields) {
    std::vector<double> values;
    for (const Turn& turn : turns) values.push_back(turn.*field.member);
    result.*field.member = values.empty() ? 0 : median(values);
  }
  return result;
}

// What makes one turn dishonest, one line each: wrong stamps, bytes the disk did not move.
std::vector<std::string> turn_failures(const TurnResult& turn);

}   // namespace lunar::tools
