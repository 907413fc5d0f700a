// SPDX-License-Identifier: Apache-2.0
// What the reports of all benches share: medians, ratios, the common objects of the JSON, times for people, and the rule by
// which a turn does not count.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "bench/turn.h"
#include "support/json_writer.h"

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

// ours / theirs, where both were measured.
void put_ratio(Ratios* ratios, const std::string& key, double ours, double theirs);
// STEMops, mean, p50, p99, p999 and cpu.
void put_turn_ratios(Ratios* ratios, const std::string& stem, const TurnResult& ours, const TurnResult& theirs);

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
