// SPDX-License-Identifier: Apache-2.0
// What the reports of all benches share: medians, the host object of the JSON, times for people, and the rule by which
// a turn does not count.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

#include "bench/turn.h"
#include "support/json_writer.h"

namespace lunar::tools {

double median(std::vector<double> values);   // pre: not empty
std::string duration_text(double ns);
void write_host(JsonWriter& json);
// What makes one turn dishonest, one line each: wrong stamps, bytes the disk did not move.
std::vector<std::string> turn_failures(const TurnResult& turn);

}   // namespace lunar::tools
