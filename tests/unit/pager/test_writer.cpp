// SPDX-License-Identifier: Apache-2.0
// The evictor's writer and its buffers.
#include "pager/evict/write.h"
#include "pager/state/state.h"
#include "sys/arena.h"
#include "tests/catch.h"

using namespace lunar;

TEST_CASE("the writer gives its buffers back once, also when none come in their place") {
  FramePool frames;
  REQUIRE(frames.open(64, 4096, -1) == 0);
  Writer writer(pager_state(), frames);
  const size_t before = arena_bytes();
  REQUIRE(writer.open(64) == 0);
  CHECK(arena_bytes() > before);
  writer.free_buffers();
  CHECK(arena_bytes() == before);
  writer.free_buffers();
  CHECK(arena_bytes() == before);
}
