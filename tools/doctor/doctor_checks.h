// SPDX-License-Identifier: Apache-2.0
// The findings of `lunar doctor`. Each subject has one function, which returns one line for the
// table and, if something is missing, the command that fixes it. The checks change nothing.
// Threading: free functions, one thread.
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
  std::string value;
  std::string lack;    // the consequence, if there is one
  std::string remedy;  // the exact command (or step) that fixes it

  static Finding ok(const char* name, const std::string& value) {
    return {name, Health::kOk, value, "", ""};
  }
  static Finding info(const char* name, const std::string& value) {
    return {name, Health::kInfo, value, "", ""};
  }
  static Finding warn(const char* name, const std::string& value, const std::string& lack,
                      const std::string& remedy) {
    return {name, Health::kWarn, value, lack, remedy};
  }
  static Finding fail(const char* name, const std::string& value, const std::string& lack,
                      const std::string& remedy) {
    return {name, Health::kFail, value, lack, remedy};
  }
};

std::vector<Finding> examine_host(const Options& options);
// The part of examine_host about kinds of LUNs and their I/O (doctor_devices.cpp).
std::vector<Finding> examine_devices();

}  // namespace lunar::tools
