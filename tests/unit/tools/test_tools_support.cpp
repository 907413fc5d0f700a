// SPDX-License-Identifier: Apache-2.0
// The parsers of the tools: disk counters, CPU seconds, process status, sizes, JSON.
#include "tests/catch.h"

#include <string>

#include "tools/support/cgroup.h"
#include "tools/support/flags.h"
#include "tools/support/json_writer.h"
#include "tools/support/procfs.h"

using namespace lunar::tools;

TEST_CASE("counters of memory.events and memory.oom_control") {
  CHECK(parse_counter("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n", "oom_kill") == 2);
  CHECK(parse_counter("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill") == 1);
  CHECK(parse_counter("max 12\n", "oom_kill") == 0);
}

TEST_CASE("disk bytes come from sectors of 512") {
  const auto bytes = parse_disk_stat(
      "  886843  7857  8870794  257293  279173  6971  7085320  41240  0  19784  299002 0 0 0 0 1 "
      "2\n");
  REQUIRE(bytes);
  const auto [read, written] = bytes.value_or(DiskBytes{});
  CHECK(read == 8870794ull * 512);
  CHECK(written == 7085320ull * 512);
  CHECK_FALSE(parse_disk_stat("1 2 3"));
}

TEST_CASE("machine CPU: what was idle, waiting or taken away is not work") {
  CHECK(parse_idle_seconds("cpu  100 10 50 9000 300 5 35 77 0 0\ncpu0 1 1\n", 100) == 93.77);
  CHECK(parse_idle_seconds("cpu 1 2 3 4 5 6 7\n", 100) == 0.09);  // old kernels have no steal
  CHECK_FALSE(parse_idle_seconds("cpu0 1 2 3 4 5 6 7 8\n", 100));
  CHECK_FALSE(parse_idle_seconds("cpu 1 2 3", 100));
}

TEST_CASE("status lines are matched by their whole name") {
  const char* text =
      "Name:\tredis-server\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nRssAnon:\t 512 kB\n";
  CHECK(parse_status_bytes(text, "VmRSS") == 1024u * 1024);
  CHECK(parse_status_bytes(text, "VmHWM") == 2048u * 1024);
  CHECK_FALSE(parse_status_bytes(text, "VmRS"));
  CHECK_FALSE(parse_status_bytes(text, "VmPin"));
}

TEST_CASE("sizes on tool command lines") {
  CHECK(size_option("--dram", "512") == 512);
  CHECK(size_option("--dram", "64k") == 65536);
  CHECK(size_option("--dram", "256M") == 256ull << 20);
  CHECK(size_option("--dram", "1.5g") == 3ull << 29);
  CHECK(size_option("--dram", "2TiB") == 2ull << 40);
  for (const char* bad : {"", "m", "12q", "-1g", "1gg", "nan", "1e99g", "5 m"}) {
    CHECK_THROWS_AS(size_option("--dram", bad), FlagsError);
  }
}

TEST_CASE("json is separated and escaped") {
  JsonWriter json;
  json.open('{')
      .field("a", 1)
      .key("b")
      .open('[')
      .value(true)
      .value(std::string("x\"\n"))
      .close(']');
  json.key("c").open('{').close('}').field("d", 2.5).field("e", std::string("f")).close('}');
  CHECK(json.text() == "{\"a\":1,\"b\":[true,\"x\\\"\\u000a\"],\"c\":{},\"d\":2.5,\"e\":\"f\"}");
}
