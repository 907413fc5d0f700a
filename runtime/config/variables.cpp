// SPDX-License-Identifier: Apache-2.0
// See variables.h.
// Threading: constant data.
#include "config/variables.h"

#include <string.h>

namespace lunar {
namespace {

constexpr OtherVariable kVariables[] = {
    {"LUNAR_KV_DRAM", "SIZE",
     "DRAM budget of a key/value store, a hard limit (default: a quarter of the memory available)",
     "man 3 ark_create"},
    {"LUNAR_KV_SIZE", "SIZE",
     "size of a key/value store on a place that can grow, or as a virtual LUN", "man 3 ark_create"},
    {"LUNAR_KV_DURABILITY", "flush|group|each",
     "when sets and deletes of a persistent store become durable", "man 3 ark_create"},
    {"LUNAR_RAID0_DEVICES", "DEVICE:DEVICE...",
     "the devices of the block library's RAID0, RAID0:* and RAID0:N", "man 3 cblk_cg_open"},
    {"LUNAR_REDIS_SERVER", "PATH", nullptr, nullptr},  // tests: the server
    {"LUNAR_SEED", "N", nullptr, nullptr},             // tests: repeats what was drawn
    {"LUNAR_TEST_DIR", "DIR", nullptr, nullptr},       // tests: a directory on a disk
};

}  // namespace

size_t other_variable_count() { return sizeof kVariables / sizeof kVariables[0]; }
const OtherVariable& other_variable(size_t index) { return kVariables[index]; }

bool is_other_variable(const char* name) {
  for (const OtherVariable& variable : kVariables) {
    if (strcmp(variable.name, name) == 0) return true;
  }
  return false;
}

}  // namespace lunar
