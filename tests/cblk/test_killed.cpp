// SPDX-License-Identifier: Apache-2.0
// Owners of a stripe that are killed (SIGKILL) in the middle of their writes: the next owner finds
// every acknowledged write whole, and no write of a dead owner lands on its own.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>

#include "cblk_test.h"

namespace {

constexpr int kMembers = 3, kThreads = 4;
constexpr size_t kMemberBlocks = 1024, kGroup = 40;  // a group's blocks lie on two members or three
constexpr size_t kGroups = 32, kUsed = kGroups * kGroup;

struct Written {
  std::atomic<uint64_t> begun, done;  // versions
};

// Outlives the owners.
struct Shared {
  Written blocks[kUsed];
  std::atomic<uint64_t> version, acknowledged, kept;
};
Shared* shared;
std::string stripe;

// A reservation ends with the last write of its owner, alive or not.
chunk_id_t open_alone() {
  for (const double end = seconds() + tier::scaled(20);;) {
    const chunk_id_t id = cblk_open(stripe.c_str(), kThreads * kGroup, O_RDWR, 0, CBLK_OPN_RESERVE);
    if (id != NULL_CHUNK_ID) return id;
    REQUIRE(errno == EBUSY && seconds() < end);
    usleep(1000);
  }
}

// Each block is as one write made it, and no older than a version that was acknowledged or read. On
// persistent memory a store may stop anywhere, so a block being written may hold anything.
void verify(chunk_id_t id) {
  Buffer buffer(kGroup);
  for (size_t at = 0; at < kUsed; at += kGroup) {
    REQUIRE(cblk_read(id, buffer, static_cast<cflash_offset_t>(at), kGroup, 0) == kGroup);
    for (size_t i = 0; i < kGroup; ++i) {
      Written& block = shared->blocks[at + i];
      if (kind() == "pmem" && block.begun.load() != block.done.load()) continue;
      uint64_t version;
      memcpy(&version, buffer.block(i) + sizeof version, sizeof version);
      REQUIRE(version >= block.done.load() && version <= block.begun.load());
      if (version == 0) continue;
      REQUIRE(is_stamped(buffer.block(i), at + i, version));
      shared->kept.fetch_add(version != block.done.exchange(version) ? 1 : 0);
    }
  }
}

void write_group(chunk_id_t id, const Buffer& buffer, size_t first, size_t n, uint64_t version,
                 bool at_once) {
  stamp(buffer, first, n, version);
  for (size_t i = first; i < first + n; ++i) shared->blocks[i].begun.store(version);
  if (at_once) {
    REQUIRE(cblk_write(id, buffer, static_cast<cflash_offset_t>(first), n, 0) ==
            static_cast<int>(n));
  } else {
    int tags[kGroup];
    for (size_t i = 0; i < n; ++i)
      REQUIRE(cblk_awrite(id, buffer.block(i), static_cast<cflash_offset_t>(first + i), 1, &tags[i],
                          nullptr, 0) == 0);
    for (size_t i = 0; i < n; ++i)
      REQUIRE(cblk_aresult(id, &tags[i], ignored(), CBLK_ARESULT_BLOCKING) == 1);
  }
  for (size_t i = first; i < first + n; ++i) shared->blocks[i].done.store(version);
  shared->acknowledged.fetch_add(n);
}

void write_until_killed(chunk_id_t id, size_t thread) {
  Random random(seed() + shared->version.fetch_add(1));
  const Buffer buffer(kGroup);
  for (;;) {
    const size_t group = random.below(kGroups / kThreads) * kThreads + thread,
                 from = random.below(kGroup);
    const size_t first = group * kGroup + from, n = 1 + random.below(kGroup - from);
    write_group(id, buffer, first, n, shared->version.fetch_add(1) + 1, random.below(2) != 0);
  }
}

[[noreturn]] void own_until_killed() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const chunk_id_t id = open_alone();
  verify(id);
  in_parallel(kThreads, [&](size_t t) { write_until_killed(id, t); });
  abort();
}

void kill_an_owner(Random* random) {
  const uint64_t enough = shared->acknowledged.load() + random->below(300);
  const pid_t owner = fork_child(own_until_killed);
  int status = 0;
  while (shared->acknowledged.load() <= enough) {
    REQUIRE(waitpid(owner, &status, WNOHANG) == 0);  // it has printed its failure
    usleep(500);
  }
  usleep(static_cast<useconds_t>(random->below(10'000)));
  kill(owner, SIGKILL);
  REQUIRE(waitpid(owner, &status, 0) == owner);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

}  // namespace

TEST_CASE("killed_owners_of_a_stripe_lose_nothing", "[kept][not-nvme]") {
  shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(shared != MAP_FAILED);
  stripe = "stripe:";
  for (int i = 0; i < kMembers; ++i) stripe += (i ? ";" : "") + device(kMemberBlocks, 10 + i);
  Random random(seed());
  const unsigned kills = full_strength() ? 2000 : 12;
  for (unsigned i = 0; i < kills; ++i) kill_an_owner(&random);
  in_child([&] {
    const chunk_id_t id = open_alone();
    verify(id);
    REQUIRE(cblk_close(id, 0) == 0);
  });
  printf("%u owners killed, %llu blocks acknowledged, %llu found that were not\n", kills,
         static_cast<unsigned long long>(shared->acknowledged.load()),
         static_cast<unsigned long long>(shared->kept.load()));
  REQUIRE(shared->acknowledged.load() >= kills);
  munmap(shared, sizeof(Shared));
}
