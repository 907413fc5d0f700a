// SPDX-License-Identifier: Apache-2.0
// Programs with an io_uring: its memory and what it reads into is pinned though no descriptor shows
// it, and it could drop pages where libc's madvise is not called. "early-": the ring is made while
// all memory is plain.
#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <cstdint>

#include "preload_test.h"
#include "raw_call.h"
#include "tests/support/refused_calls.h"

namespace {

// Newer than the headers of the oldest system we build on.
constexpr unsigned kNoMmap = 1u << 14, kRegisteredFdOnly = 1u << 15, kRegisteredRing = 1u << 4,
                   kSingleIssuer = 1u << 12, kDeferTaskrun = 1u << 13;
constexpr size_t kPage = 4096, kHeap = 96 * kMiB, kPiece = kMiB;  // three times the budget
constexpr unsigned kEntries = 8;

char* g_heap = nullptr;

// Everything else goes out to the LUN.
void fill_heap(unsigned long seed) {
  if (g_heap == nullptr) g_heap = map_tiered(kHeap);
  fill(g_heap, kHeap, seed);
}

// Makes the ring before the process is active, or after.
template <class Make>
auto make_in_time(Make make) {
  if (!g_early) fill_heap(1);
  auto made = make();
  fill_heap(2);
  return made;
}

int set_up(io_uring_params* parameters) {
  return static_cast<int>(syscall(SYS_io_uring_setup, kEntries, parameters));
}

io_uring ring_by_call(unsigned flags) {
  io_uring_params parameters = {};
  parameters.flags = flags;
  const int fd = set_up(&parameters);
  REQUIRE(fd >= 0 && parameters.flags == flags);
  io_uring ring;
  REQUIRE(io_uring_queue_mmap(fd, &parameters, &ring) == 0);
  for (unsigned i = 0; i < parameters.sq_entries; ++i) ring.sq.array[i] = i;
  return ring;
}

io_uring_sqe* next(io_uring* ring, uint64_t user) {
  io_uring_sqe* sqe = io_uring_get_sqe(ring);
  REQUIRE(sqe != nullptr);
  io_uring_prep_nop(sqe);
  sqe->user_data = user;
  return sqe;
}

int32_t finish(io_uring* ring, uint64_t user) {
  io_uring_cqe* cqe = nullptr;
  REQUIRE(io_uring_submit_and_wait(ring, 1) == 1 && io_uring_wait_cqe(ring, &cqe) == 0 &&
          cqe->user_data == user);
  const int32_t result = cqe->res;
  io_uring_cqe_seen(ring, cqe);
  return result;
}

// Its rings are pages of the heap, and it has no descriptor (NO_MMAP, REGISTERED_FD_ONLY). It goes
// on after they would have been evicted.
int hidden() {
  auto *queues = static_cast<char*>(aligned_alloc(kPage, kPage)),
       *entries = static_cast<char*>(aligned_alloc(kPage, kPage));
  REQUIRE(queues != nullptr && entries != nullptr);
  memset(queues, 0, kPage);
  memset(entries, 0, kPage);
  io_uring_params p = {};
  p.flags = kNoMmap | kRegisteredFdOnly;
  // user_addr, in headers that know it
  memcpy(reinterpret_cast<char*>(&p.cq_off + 1) - sizeof queues, &queues, sizeof queues);
  memcpy(reinterpret_cast<char*>(&p.sq_off + 1) - sizeof entries, &entries, sizeof entries);
  const int ring = make_in_time([&] { return set_up(&p); });
  REQUIRE(ring >= 0 && p.flags == (kNoMmap | kRegisteredFdOnly));
  const auto word = [&](uint32_t offset) { return reinterpret_cast<unsigned*>(queues + offset); };
  auto* sqes = reinterpret_cast<io_uring_sqe*>(entries);
  auto* cqes = reinterpret_cast<io_uring_cqe*>(queues + p.cq_off.cqes);
  for (unsigned i = 0; i < 20; ++i) {
    fill_heap(3 + i);
    const unsigned slot = i % kEntries;
    sqes[slot] = {};
    sqes[slot].opcode = IORING_OP_NOP;
    sqes[slot].user_data = i;
    word(p.sq_off.array)[slot] = slot;
    __atomic_store_n(word(p.sq_off.tail), i + 1, __ATOMIC_RELEASE);
    REQUIRE(syscall(SYS_io_uring_enter, ring, 1u, 1u, IORING_ENTER_GETEVENTS | kRegisteredRing,
                    nullptr, 0ul) == 1);
    REQUIRE(__atomic_load_n(word(p.cq_off.tail), __ATOMIC_ACQUIRE) == i + 1);
    REQUIRE(cqes[i % p.cq_entries].user_data == i && cqes[i % p.cq_entries].res == 0);
    __atomic_store_n(word(p.cq_off.head), i + 1, __ATOMIC_RELEASE);
  }
  REQUIRE(holds(g_heap, kHeap, 22));
  return 0;
}

int closed() {
  constexpr size_t kFile = 8 * kMiB, kRead = 256 * 1024;
  io_uring ring = make_in_time([] {
    io_uring made = ring_by_call(0);
    const int none[] = {-1};
    REQUIRE(io_uring_register_files(&made, none, 1) == 0 && io_uring_register_ring_fd(&made) == 1);
    REQUIRE(close(made.ring_fd) == 0);
    return made;
  });
  char* buffer = map_tiered(kFile);
  fill(buffer, kFile, 5);
  char name[] = "/var/tmp/lunar-test-XXXXXX";
  const int file = mkstemp(name);
  REQUIRE(file >= 0 && pwrite(file, buffer, kFile, 0) == static_cast<ssize_t>(kFile) &&
          fsync(file) == 0);
  close(file);
  io_uring_prep_openat_direct(next(&ring, 0), AT_FDCWD, name, O_RDONLY | O_DIRECT, 0, 0);
  REQUIRE(finish(&ring, 0) == 0 && unlink(name) == 0);
  size_t wrong = 0;
  for (unsigned i = 0; i < 400; ++i) {
    if (i % 40 == 0) fill_heap(6);
    const size_t at = i % (kFile / kRead) * kRead;
    memset(buffer + at, 0, kRead);
    io_uring_sqe* read = next(&ring, 0);
    io_uring_prep_read(read, 0, buffer + at, kRead, at);
    read->flags |= IOSQE_FIXED_FILE;
    REQUIRE(io_uring_submit(&ring) == 1);
    REQUIRE(madvise(buffer + at, kRead, MADV_PAGEOUT) == 0);
    io_uring_cqe* cqe = nullptr;
    REQUIRE(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == static_cast<int32_t>(kRead));
    io_uring_cqe_seen(&ring, cqe);
    wrong += !holds(buffer + at, kRead, 5, at / sizeof(long));
  }
  fprintf(stderr, "closed: %zu reads of 400 lost content\n", wrong);
  REQUIRE(wrong == 0);
  return 0;
}

// The ring's result is true.
void advise(io_uring ring) {
  for (char* at = g_heap; at < g_heap + kHeap; at += 2 * kPiece) {
    io_uring_prep_madvise(next(&ring, 0), at, kPiece, MADV_DONTNEED);
    REQUIRE(finish(&ring, 0) == -EACCES);
  }
  REQUIRE(holds(g_heap, kHeap, 2));
  next(&ring, 7);
  REQUIRE(finish(&ring, 7) == 0);
}

int advice() {
  advise(make_in_time([] { return ring_by_call(0); }));
  return 0;
}

int library() {
  advise(make_in_time([] {
    io_uring ring;
    REQUIRE(io_uring_queue_init(kEntries, &ring, 0) == 0);
    return ring;
  }));
  io_uring ring;
  io_uring_params parameters = {};
  REQUIRE(io_uring_queue_init_params(kEntries, &ring, &parameters) == 0 && parameters.flags == 0);
  advise(ring);
  return 0;
}

bool says(const io_uring_probe* probe, int operation) {
  return io_uring_opcode_supported(probe, operation) != 0;
}

// Each way to ask what the kernel serves says what rings do here.
void probe(io_uring* ring) {
  for (const bool own : {false, true}) {
    io_uring_probe* probe = own ? io_uring_get_probe() : io_uring_get_probe_ring(ring);
    REQUIRE(probe != nullptr && says(probe, IORING_OP_FADVISE) && !says(probe, IORING_OP_MADVISE));
    io_uring_free_probe(probe);
  }
  const auto number = static_cast<unsigned>(ring->ring_fd);
  constexpr auto kProbe = IORING_REGISTER_PROBE;
  for (const unsigned room : {64, int{IORING_OP_MADVISE}})
    for (const int how : {0, 1, 2}) {
      alignas(
          io_uring_probe) char memory[sizeof(io_uring_probe) + 64 * sizeof(io_uring_probe_op)] = {};
      auto* probe = reinterpret_cast<io_uring_probe*>(memory);
      if (how == 0) REQUIRE(io_uring_register_probe(ring, probe, room) == 0);
      if (how == 1) REQUIRE(io_uring_register(number, kProbe, probe, room) == 0);
      if (how == 2) REQUIRE(syscall(SYS_io_uring_register, number, kProbe, probe, room) == 0);
      REQUIRE(says(probe, IORING_OP_FADVISE) && !says(probe, IORING_OP_MADVISE));
    }
}

// The program's own calls to a ring, of whatever kind it is.
void use(io_uring* ring) {
  char* buffer = map_tiered(kMiB);
  const iovec registered{buffer, kMiB};
  const int zeros = open("/dev/zero", O_RDONLY), event = eventfd(0, 0);
  REQUIRE(zeros >= 0 && event >= 0);
  REQUIRE(io_uring_register_buffers(ring, &registered, 1) == 0 &&
          io_uring_register_files(ring, &zeros, 1) == 0);
  REQUIRE(io_uring_register_eventfd(ring, event) == 0 && io_uring_unregister_eventfd(ring) == 0);
  probe(ring);
  fill(buffer, kMiB, 8);
  io_uring_sqe* sqe = next(ring, 0);
  io_uring_prep_read_fixed(sqe, 0, buffer, kMiB, 0, 0);
  sqe->flags |= IOSQE_FIXED_FILE | IOSQE_IO_LINK | IOSQE_ASYNC;
  next(ring, 9);
  REQUIRE(io_uring_submit(ring) == 2);
  for (const uint64_t user : {0, 9}) {
    io_uring_cqe* cqe = nullptr;
    REQUIRE(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->user_data == user);
    REQUIRE(cqe->res == (user == 0 ? static_cast<int32_t>(kMiB) : 0));
    io_uring_cqe_seen(ring, cqe);
  }
  REQUIRE(all_zero(buffer, kMiB));
  REQUIRE(io_uring_unregister_buffers(ring) == 0 && io_uring_unregister_files(ring) == 0);
  close(zeros);
  close(event);
  io_uring_queue_exit(ring);
  REQUIRE(munmap(buffer, kMiB) == 0);
}

int kinds() {
  // how some programs ask for it
  for (const long nowhere : {0, 16})
    REQUIRE(syscall(SYS_io_uring_setup, kEntries, nowhere) == -1 && errno == EFAULT);
  io_uring_params wrong = {};
  wrong.flags = 1u << 31;
  REQUIRE(set_up(&wrong) == -1 && errno == EINVAL && wrong.flags == 1u << 31);
  for (const unsigned flags : {0u, unsigned{IORING_SETUP_SQPOLL}, kSingleIssuer | kDeferTaskrun}) {
    io_uring ring = make_in_time([&] { return ring_by_call(flags); });
    use(&ring);
    REQUIRE(io_uring_queue_init(kEntries, &ring, flags) == 0);
    use(&ring);
    ring = ring_by_call(flags | IORING_SETUP_R_DISABLED);
    REQUIRE(io_uring_enter(static_cast<unsigned>(ring.ring_fd), 0, 0, IORING_ENTER_GETEVENTS,
                           nullptr) == -EBADFD);
    io_uring_restriction own = {};
    own.opcode = IORING_RESTRICTION_SQE_OP;
    REQUIRE(io_uring_register(static_cast<unsigned>(ring.ring_fd), IORING_REGISTER_RESTRICTIONS,
                              &own, 1) == -EBUSY);
    REQUIRE(io_uring_register(static_cast<unsigned>(ring.ring_fd), IORING_REGISTER_ENABLE_RINGS,
                              nullptr, 0) == 0);
    use(&ring);
  }
  REQUIRE(holds(g_heap, kHeap, 2));
  return 0;
}

size_t ring_maps() {
  FILE* maps = fopen("/proc/self/maps", "r");
  REQUIRE(maps != nullptr);
  size_t count = 0;
  for (char line[512]; fgets(line, sizeof line, maps) != nullptr;)
    count += strstr(line, "[io_uring]") != nullptr;
  fclose(maps);
  return count;
}

// A filter lets no ring be restricted: there is none then, and nothing of it stays.
int refused() {
  make_in_time([] { return 0; });
  if (!refuse_calls({SYS_io_uring_register})) SKIP("seccomp", strerror(errno));
  const size_t before = ring_maps();
  io_uring ring;
  const int lowest = dup(0);
  close(lowest);
  REQUIRE(io_uring_queue_init(kEntries, &ring, 0) == -EPERM);
  io_uring_params parameters = {};
  REQUIRE(set_up(&parameters) == -1 && errno == EPERM);
  REQUIRE(ring_maps() == before && dup(0) == lowest);
  return 0;
}

template <auto kRun>
int with_rings() {
  io_uring_params parameters = {};
  const auto ring = static_cast<int>(raw(SYS_io_uring_setup, kEntries, &parameters));  // unseen
  if (ring < 0) SKIP("io_uring", strerror(errno));
  close(ring);
  return Body(kRun)();
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g"},
                   {{"hidden", with_rings<hidden>},
                    {"closed", with_rings<closed>},
                    {"advice", with_rings<advice>},
                    {"library", with_rings<library>},
                    {"kinds", with_rings<kinds>},
                    {"refused", with_rings<refused>}},
                   {"LUNAR_SIZE=1g"});
}
