// SPDX-License-Identifier: Apache-2.0
// A server that the gate knows by its symbols, but one of whose settings it does not find: this
// program exports what a Redis 7.0 does. Threading: main.
#include "adapters/gate/eviction.h"
#include "adapters/gate/gate_inside.h"
#include "adapters/gate/server_fields.h"
#include "tests/catch.h"

extern "C" {
char server[256];
int readQueryFromClient, CT_Socket, dbDictType, dictGenHashFunction, dictGetHash, dictFind;
int getMaxmemoryState, sdsfree, performEvictions, dictGetRandomKey, evictionPoolPopulate,
    propagatePendingCommands;
}

using namespace lunar::redis;

namespace {

// Its table of settings: a name, and after it a pointer into `server`. maxmemory and
// maxmemory-samples are not there.
const void* g_settings[64] = {"maxmemory-policy", server + 16};

}  // namespace

TEST_CASE("eviction is left to a server whose settings are not all found", "[gate]") {
  lunar::ErrorText why;
  REQUIRE(gate().layout.find_symbols(&why));
  REQUIRE(server_setting("maxmemory-policy") == g_settings[1]);
  REQUIRE_FALSE(eviction_start());
  REQUIRE_FALSE(eviction_turn(1));
}
