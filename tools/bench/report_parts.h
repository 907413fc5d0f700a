// SPDX-License-Identifier: Apache-2.0
// What the reports of all benches share: medians, the host object of the JSON, times for people, and the rule by which
// a turn does not count.
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
// What makes one turn dishonest, one line each: wrong stamps, bytes the disk did not move.
std::vector<std::string> turn_failures(const TurnResult& turn);

}   // namespace lunar::tools
