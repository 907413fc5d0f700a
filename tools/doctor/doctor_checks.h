// SPDX-License-Identifier: Apache-2.0
// The findings of `lunar doctor`: one function a subject, each gives one line for the table and,
// for a lack, the command that fixes it. They look and change nothing.
// Threading: free functions, one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

#include "config/options.h"

namespace lunar::tools {

enum class Health {
  kOk,    // as it should be
  kInfo,  // a fact, neither good nor bad
  kWarn,  // Lunar runs, but slower or with less
  kFail,  // Lunar cannot run
};
const char* health_name(Health health);  // "ok", "info", "warning", "fail"

struct Finding {
  std::string name;  // "userfaultfd": also the key in JSON
  Health health = Health::kOk;
  std::string value;   // what was found
  std::string lack;    // what follows from it, when something does
  std::string remedy;  // the exact command (or step) that fixes it
};

std::vector<Finding> examine_host(const Options& options);
// What LUNs can be, and how their I/O can go: a part of examine_host (doctor_devices.cpp).
std::vector<Finding> examine_devices();

}  // namespace lunar::tools
