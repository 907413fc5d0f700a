// SPDX-License-Identifier: Apache-2.0
// Mirrors: content against a model, failover, what the labels say when a write is acknowledged, repair, members that come back,
// crashes, resync beside writers, several processes.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "mirrors.hpp"
#include "sys/file.h"
#include "sys/thread.h"

using namespace lunar;
using namespace composite;

namespace {

char* data_of(Device* device, unsigned i) { return sim(member(device, i)).memory() + kMemberDataOffset; }

bool equal(Device* device, unsigned a, unsigned b) {
  return memcmp(data_of(device, a), data_of(device, b), device->size_bytes()) == 0;
}

// The memory of a sim: device by its name, as somebody else's device.
struct Medium {
  Device* device = nullptr;
  explicit Medium(const std::string& uri) {
    ErrorText why;
    REQUIRE(device_open(uri.c_str(), raw(), &device, &why) == 0);
  }
  ~Medium() { device_close(device); }
  char* memory() const { return sim(device).memory(); }
  void copy_to(const Medium& other) const { memcpy(other.memory(), memory(), device->size_bytes()); }
};

struct Page {
  char* at = static_cast<char*>(aligned_alloc(4096, 4096));
  ~Page() { free(at); }
};

}  // namespace

TEST_CASE("mirror: random commands of all sizes, and every member has everything") {
  for (unsigned count : {2u, 4u}) {
    std::string uri = "mirror:";
    for (unsigned i = 0; i < count; ++i) uri += (i ? ";" : "") + named("4m", fresh()) + ",latency_us=" + std::to_string(i * 5);
    Device* device = open_mirror(uri);
    CHECK(device->size_bytes() == 3 * kMiB);
    {
      Exerciser exerciser(device, 0, device->size_bytes(), seed() + count);   // while it is being copied
      exerciser.run(1000, 3);
      exerciser.run(200, 200);
      CHECK(exerciser.errors == 0);
      CHECK(exerciser.wrong == 0);
      REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
      exerciser.run(300, 20);
      CHECK(exerciser.errors == 0);
      CHECK(exerciser.wrong == 0);
      CHECK(exerciser.verify());
    }
    for (unsigned i = 1; i < count; ++i) CHECK(equal(device, 0, i));
    CHECK(label_of(device, 0).dirty == 1);
    device_close(device);
    device = open_mirror(uri, Format::kNever);
    for (unsigned i = 0; i < count; ++i) CHECK(status(device, i) == "Enabled");   // it was closed: nothing to copy
    device_close(device);
  }
}

TEST_CASE("mirror: a write that a member fails is on the other's label before it is acknowledged; the member comes back") {
  Device* device = open_mirror("mirror:sim:4m;sim:4m", Format::kIfBlank, 300'000'000);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  std::vector<char> page(kPage, 'a');
  for (unsigned bad : {1u, 0u}) {
    const uint64_t before = label_of(device, 1 - bad).events;
    page[0] = static_cast<char>('b' + bad);
    sim(member(device, bad)).set_failing(false, true);
    CHECK(io(device, Op::kWrite, 5, page.data()) == kPage);
    const MemberLabel after = label_of(device, 1 - bad);
    CHECK(after.events > before);
    CHECK(after.states[bad] == static_cast<uint8_t>(MemberState::kStale));
    CHECK(after.states[1 - bad] == static_cast<uint8_t>(MemberState::kInSync));
    CHECK(status(device, bad) == "Failed");
    CHECK(data_of(device, bad)[5 * kPage] != page[0]);
    std::vector<char> in(kPage);
    CHECK(io(device, Op::kRead, 5, in.data()) == kPage);
    CHECK(in == page);
    sim(member(device, bad)).set_failing(false, false);
    REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
    CHECK(equal(device, 0, 1));
    CHECK(label_of(device, 0).states[bad] == 0);
    CHECK(label_of(device, 0).events == label_of(device, 1).events);
  }
  // Nobody takes it: an error.
  for (unsigned i = 0; i < 2; ++i) sim(member(device, i)).set_failing(true, true);
  CHECK(io(device, Op::kWrite, 5, page.data()) == -EIO);
  CHECK(io(device, Op::kRead, 5, page.data()) == -EIO);
  for (unsigned i = 0; i < 2; ++i) sim(member(device, i)).set_failing(false, false);
  CHECK(io(device, Op::kRead, 5, page.data()) == kPage);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  CHECK(equal(device, 0, 1));
  device_close(device);
}

namespace {

int64_t discard(Device* device, Context* context, uint64_t page, uint64_t pages) {
  Command command;
  command.op = Op::kDiscard;
  command.offset = DeviceOffset{page * kPage};
  command.length = pages * kPage;
  if (!context) return device->transfer(command);
  Response response{};
  REQUIRE(context->submit(&command, 1) == 1);
  REQUIRE(context->wait(&response, 1, 10'000'000'000) == 1);
  return response.result;
}

}  // namespace

TEST_CASE("mirror: a discard that one member refuses is zeros there; one that all refuse, and an empty command, fail nobody") {
  Device* device = open_mirror("mirror:sim:8m;sim:8m", Format::kIfBlank, 100 * kSecond);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  Context* context = nullptr;
  REQUIRE(device->attach({}, &context) == 0);
  std::vector<char> data(5 * kMiB, 'x');
  for (Context* way : {static_cast<Context*>(nullptr), context}) {
    for (uint64_t at = 0; at < data.size(); at += kMiB) REQUIRE(io(device, Op::kWrite, at / kPage, data.data() + at, kMiB) == kMiB);
    for (unsigned refusing : {0u, 1u}) {
      sim(member(device, refusing)).set_refusing_discard(true);
      CHECK(discard(device, way, refusing * 600 + 1, 599) == 0);
      sim(member(device, refusing)).set_refusing_discard(false);
    }
    CHECK(equal(device, 0, 1));
    for (uint64_t page : {1, 599, 601, 1199}) CHECK(data_of(device, 0)[page * kPage + 77] == 0);
    for (uint64_t page : {0, 600, 1200}) CHECK(data_of(device, 1)[page * kPage + 77] == 'x');
    for (unsigned i = 0; i < 2; ++i) sim(member(device, i)).set_refusing_discard(true);
    CHECK(discard(device, way, 0, 1) == -EOPNOTSUPP);
    CHECK(data_of(device, 0)[0] == 'x');
    for (unsigned i = 0; i < 2; ++i) sim(member(device, i)).set_refusing_discard(false);
    CHECK(discard(device, way, 3, 0) == 0);
    for (unsigned i = 0; i < 2; ++i) CHECK(status(device, i) == "Enabled");
  }
  CHECK(io(device, Op::kWrite, 0, data.data(), 0) == 0);
  CHECK(io(device, Op::kRead, 0, data.data(), 0) == 0);
  device->detach(context);
  device_close(device);
}

TEST_CASE("mirror: who reads beside the writers of one process takes nothing from them, nor they from him") {
  const std::string uri = "mirror:" + named("2m", fresh()) + ";" + named("2m", fresh());
  Page page;
  memset(page.at, 'w', kPage);
  for (bool reader_first : {true, false}) {
    Device *writer = open_mirror(uri), *reader = nullptr;
    REQUIRE(mirror(writer).wait_in_sync(20 * kSecond) == 0);
    DeviceOptions look = raw();
    look.read_only = true;
    ErrorText why;
    REQUIRE(raw_open(uri.c_str(), look, Format::kNever, &reader, &why) == 0);
    CHECK(io(writer, Op::kWrite, 3, page.at) == kPage);
    device_close(reader_first ? reader : writer);
    if (reader_first) CHECK(io(writer, Op::kWrite, 3, page.at) == kPage);
    else CHECK(io(reader, Op::kRead, 3, page.at) == kPage);
    device_close(reader_first ? writer : reader);
    CHECK(page.at[kPage - 1] == 'w');
    Device* again = open_mirror(uri, Format::kNever);
    CHECK(status(again, 1) == "Enabled");   // it was closed clean
    device_close(again);
  }
}

TEST_CASE("mirror: what cannot be read is read from the other, and written again where it was") {
  Device* device = open_mirror("mirror:sim:4m,read_error=5,seed=7;sim:4m");
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  {
    Exerciser exerciser(device, 0, device->size_bytes(), seed());
    exerciser.run(1500, 4);
    CHECK(exerciser.errors == 0);
    CHECK(exerciser.wrong == 0);
  }
  CHECK(sim(member(device, 0)).counters().read_errors > 0);
  PathInfo list[2];
  REQUIRE(device_paths(device, list, 2) == 2);
  CHECK(list[0].failovers > 0);
  CHECK(list[0].errors >= list[0].failovers);
  // A member whose reads fail for good and whose repair does not help is out.
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  mirror(device).set_probe_interval(100 * kSecond);
  sim(member(device, 1)).set_failing(true, false);
  sim(member(device, 0)).set_failing(true, false);
  std::vector<char> page(kPage);
  CHECK(io(device, Op::kRead, 1, page.data()) == -EIO);
  sim(member(device, 1)).set_failing(false, false);
  CHECK(io(device, Op::kRead, 1, page.data()) == kPage);
  for (int i = 0; i < 5000 && status(device, 0) != "Failed"; ++i) sys::sleep_ns(1'000'000);
  CHECK(status(device, 0) == "Failed");
  CHECK(label_of(device, 1).states[0] == static_cast<uint8_t>(MemberState::kStale));
  device_close(device);
}

TEST_CASE("mirror: no I/O fails under load while a member fails and comes back, and the copies are equal at the end") {
  constexpr unsigned kThreads = 3;
  const char* slow = getenv("LUNAR_MIRROR_SECONDS");
  const uint64_t rounds = slow ? strtoull(slow, nullptr, 0) * 4 : 8;
  Device* device = open_mirror("mirror:sim:10m,latency_us=20;sim:10m,latency_us=40;sim:10m");
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> errors{0}, wrong{0}, bad{0}, done{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Exerciser exerciser(device, t * 3 * kMiB, 3 * kMiB, seed() + t, t == 1);
      exerciser.clear();
      while (!stop) exerciser.run(100, 40);
      if (!exerciser.verify()) ++bad;
      errors += exerciser.errors;
      wrong += exerciser.wrong;
      done += exerciser.done;
    });
  }
  std::mt19937_64 random(seed());
  unsigned in_sync_again = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    const unsigned out = static_cast<unsigned>(random() % 3);
    const bool reads = random() % 2;
    sim(member(device, out)).set_failing(reads, !reads || random() % 2);
    sys::sleep_ns(100'000'000);
    sim(member(device, out)).set_failing(false, false);
    if (random() % 3) in_sync_again += mirror(device).wait_in_sync(60 * kSecond) == 0;
    else in_sync_again += mirror(device).wait_in_sync(60 * kSecond) == 0 ? 1 : 0;
  }
  CHECK(in_sync_again == rounds);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == 0);
  CHECK(wrong == 0);
  CHECK(bad == 0);
  CHECK(done > 100);
  REQUIRE(mirror(device).wait_in_sync(60 * kSecond) == 0);
  CHECK(equal(device, 0, 1));
  CHECK(equal(device, 0, 2));
  CHECK(mirror(device).state().shared().resyncs > 0);
  CHECK(label_of(device, 0).events == label_of(device, 2).events);
  device_close(device);
}

TEST_CASE("mirror: writers beside the copier: no write is undone") {
  // The whole device is one hot megabyte, so that nearly every write meets the copy of its region.
  Device* device = open_mirror("mirror:sim:2m;sim:2m", Format::kIfBlank, 1'000'000);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Exerciser exerciser(device, t * 512 * kKiB, 512 * kKiB, seed() + t);
      exerciser.clear();
      while (!stop) exerciser.run(50, 4, 3);
      wrong += exerciser.wrong + exerciser.errors + !exerciser.verify();
    });
  }
  for (unsigned round = 0; round < 20; ++round) {
    sim(member(device, 1)).set_failing(false, true);
    sys::sleep_ns(3'000'000);
    sim(member(device, 1)).set_failing(false, false);
    CHECK(mirror(device).wait_in_sync(60 * kSecond) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(mirror(device).wait_in_sync(60 * kSecond) == 0);
  CHECK(wrong == 0);
  CHECK(equal(device, 0, 1));
  device_close(device);
}

TEST_CASE("mirror: after a crash the first copy counts, and the others are made like it") {
  const std::string a = named("4m", fresh()), b = named("4m", fresh()), c = named("4m", fresh()), d = named("4m", fresh());
  Device* device = open_mirror("mirror:" + a + ";" + b);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  std::vector<char> page(kPage, 'w');
  REQUIRE(io(device, Op::kWrite, 7, page.data()) == kPage);
  Medium one(a), two(b), three(c), four(d);
  one.copy_to(three);   // as they lie there when the machine stops
  two.copy_to(four);
  three.memory()[kMemberDataOffset + 9 * kPage] = 'n';   // a write that reached only one of them
  device_close(device);
  device = open("mirror:" + c + ";" + d, Format::kNever);
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  CHECK(equal(device, 0, 1));
  CHECK(io(device, Op::kRead, 9, page.data()) == kPage);
  CHECK(page[0] == 'n');
  CHECK(io(device, Op::kRead, 7, page.data()) == kPage);
  CHECK(page[0] == 'w');
  device_close(device);
  // The first is lost before the copy is done: the other has all that was acknowledged, and takes over.
  one.copy_to(three);
  two.copy_to(four);
  device = open("mirror:" + c + ",latency_us=2000;" + d + ",latency_us=2000", Format::kNever);
  sim(member(device, 0)).set_failing(true, true);
  page[0] = 'x';
  CHECK(io(device, Op::kWrite, 8, page.data()) == kPage);
  CHECK(io(device, Op::kRead, 7, page.data()) == kPage);
  CHECK(page[0] == 'w');
  CHECK(status(device, 1) == "Enabled");
  device_close(device);
}

TEST_CASE("mirror: stale, lost and diverged members are told apart") {
  const std::string a = named("4m", fresh()), b = named("4m", fresh()), gone = "/nonexistent/member";
  Device* device = open_mirror("mirror:" + a + ";" + b);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  device_close(device);
  int error = 0;
  CHECK(refusal("mirror:" + a + ";" + gone, &error).find("'missing'") != std::string::npos);
  CHECK(error == -ENXIO);
  Medium one(a), two(b), old_one(named("4m", fresh())), old_two(named("4m", fresh()));
  one.copy_to(old_one);
  two.copy_to(old_two);
  std::vector<char> page(kPage, 'd');
  device = open("mirror:" + a + ";missing", Format::kNever);
  CHECK(status(device, 1) == "Missing");
  CHECK(io(device, Op::kWrite, 3, page.data()) == kPage);
  device_close(device);
  device = open("mirror:" + a + ";" + gone, Format::kNever);   // known to be stale: no doubt now
  device_close(device);
  (void)refusal("mirror:missing;" + b + "x", &error);
  // The stale one alone does not know: it must be said that the other is lost. With it, it is seen to be stale, and copied to.
  CHECK(refusal("mirror:" + gone + ";" + b, &error).find("may have newer data") != std::string::npos);
  device = open("mirror:" + a + ";" + b, Format::kNever);
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  CHECK(equal(device, 0, 1));
  CHECK(data_of(device, 1)[3 * kPage] == 'd');
  device_close(device);
  // Each went on without the other.
  old_one.copy_to(one);
  old_two.copy_to(two);
  device = open("mirror:" + a + ";missing", Format::kNever);
  CHECK(io(device, Op::kWrite, 3, page.data()) == kPage);
  device_close(device);
  device = open("mirror:missing;" + b, Format::kNever);
  CHECK(io(device, Op::kWrite, 4, page.data()) == kPage);
  device_close(device);
  CHECK(refusal("mirror:" + a + ";" + b, &error).find("apart") != std::string::npos);
  CHECK(error == -EBADMSG);
  CHECK(refusal("mirror:missing;missing", &error).find("no member") != std::string::npos);
}

TEST_CASE("mirror: of stripes, over paths; a stripe of it is refused") {
  const std::string a = named("4m", fresh()), b = named("4m", fresh()), c = named("4m", fresh()), d = named("4m", fresh());
  const std::string uri = "mirror:(stripe:" + a + ";" + b + ");(stripe:" + c + ";(paths:" + d + ";" + d + ",seed=9))";
  Device* device = open_mirror(uri);
  {
    Exerciser exerciser(device, 0, device->size_bytes(), seed());
    exerciser.run(500, 60);
    CHECK(exerciser.errors == 0);
    CHECK(exerciser.wrong == 0);
    sim(member(member(member(device, 1), 1), 0)).set_failing(true, true);
    exerciser.run(100, 60);
    sim(member(member(device, 0), 1)).set_failing(true, true);
    exerciser.run(100, 60);
    CHECK(exerciser.errors == 0);
    CHECK(exerciser.wrong == 0);
    CHECK(exerciser.verify());
  }
  device_close(device);
  CHECK(refusal("stripe:(mirror:" + a + ";" + b + ");" + c).find("cannot be a member") != std::string::npos);
}

TEST_CASE("mirror: label writes torn at a crash leave one that opens with every acknowledged write") {
  // Every prefix of the sector writes that a failing member causes on the other's label.
  const std::string a = named("2m", fresh()), b = named("2m", fresh());
  Device* device = open_mirror("mirror:" + a + ";" + b, Format::kIfBlank, 100 * kSecond);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  Medium one(a), two(b);
  const std::vector<char> before(one.memory(), one.memory() + 64 * kKiB);
  std::vector<char> page(kPage, 'k');
  sim(member(device, 1)).set_failing(false, true);
  REQUIRE(io(device, Op::kWrite, 2, page.data()) == kPage);
  const std::vector<char> after(one.memory(), one.memory() + 64 * kKiB), other(two.memory(), two.memory() + 64 * kKiB);
  const std::vector<char> data(one.memory() + kMemberDataOffset, one.memory() + 2 * kMiB);
  device_close(device);
  const std::string c = named("2m", fresh()), d = named("2m", fresh());
  Medium three(c), four(d);
  for (size_t sectors = 0; sectors <= 16; ++sectors) {
    memcpy(three.memory(), before.data(), before.size());
    for (size_t s = 0; s < sectors; ++s) {
      const size_t at = s < 8 ? s * 512 : kLabelCopyOffset[1] + (s - 8) * 512;
      memcpy(three.memory() + at, after.data() + at, 512);
    }
    memcpy(four.memory(), other.data(), other.size());
    memcpy(three.memory() + kMemberDataOffset, data.data(), data.size());
    memset(four.memory() + kMemberDataOffset, 0, data.size());   // it missed the write
    device = open("mirror:" + c + ";" + d, Format::kNever);
    CHECK(io(device, Op::kRead, 2, page.data()) == kPage);
    CHECK(page[0] == 'k');
    CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
    CHECK(equal(device, 0, 1));
    device_close(device);
  }
}

TEST_CASE("mirror: another process never reads a member that an acknowledged write missed") {
  const MemberFiles files("mirror:", 3 * kMiB);
  const std::string& uri = files.uri;
  device_close(open(uri));
  int to_child[2], to_parent[2];
  REQUIRE(pipe(to_child) == 0);
  REQUIRE(pipe(to_parent) == 0);
  const pid_t child = fork();
  if (child == 0) {   // reads page 1 each time it is told to, and says what it begins with
    close(to_child[1]);
    Device* device = nullptr;
    ErrorText why;
    char ready = raw_open(uri.c_str(), raw(), Format::kNever, &device, &why) == 0 ? 'r' : 'e';
    if (write(to_parent[1], &ready, 1) != 1 || ready != 'r') _exit(2);
    mirror(device).set_probe_interval(100 * kSecond);
    Page page;
    for (char order; read(to_child[0], &order, 1) == 1 && order == 'g';) {
      char first = io(device, Op::kRead, 1, page.at) == kPage ? page.at[0] : '!';
      if (write(to_parent[1], &first, 1) != 1) _exit(3);
    }
    device_close(device);
    _exit(0);
  }
  char answer = 0;
  REQUIRE(read(to_parent[0], &answer, 1) == 1);
  CHECK(answer == 'r');
  Device* device = open_mirror(uri, Format::kNever, 100 * kSecond);
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  const auto ask = [&] {
    char order = 'g', got = 0;
    REQUIRE(write(to_child[1], &order, 1) == 1);
    REQUIRE(read(to_parent[0], &got, 1) == 1);
    return got;
  };
  Page page;
  memset(page.at, '1', kPage);
  CHECK(io(device, Op::kWrite, 1, page.at) == kPage);
  CHECK(ask() == '1');
  // A forked child that lets an inherited context go leaves its slot to the parent.
  Context* context = nullptr;
  REQUIRE(device->attach({}, &context) == 0);
  const auto slots = [&] {
    unsigned out = 0;
    for (const MirrorSlot& slot : mirror(device).state().shared().slot) out += slot.owner.load() >> 32 == static_cast<uint64_t>(getpid());
    return out;
  };
  const unsigned held = slots();
  const pid_t heir = fork();
  if (heir == 0) {
    device->detach(context);
    _exit(0);
  }
  REQUIRE(waitpid(heir, nullptr, 0) == heir);
  CHECK(slots() == held);
  device->detach(context);
  CHECK(slots() == held - 1);
  // Here, and only here, the preferred member refuses writes from now on.
  const int good = device->fd(0), read_only = sys::open_file(files.paths[0].c_str(), O_RDONLY | O_DIRECT);
  REQUIRE(read_only >= 0);
  device->reopen(0, read_only);
  memset(page.at, '2', kPage);
  CHECK(io(device, Op::kWrite, 1, page.at) == kPage);
  CHECK(ask() == '2');
  CHECK(status(device, 0) == "Failed");
  device->reopen(0, good);
  sys::close_file(read_only);
  // Forgetting nobody: with the child gone and this one closed, the next open knows.
  close(to_child[1]);
  int how = 0;
  REQUIRE(waitpid(child, &how, 0) == child);
  CHECK(WIFEXITED(how));
  CHECK(WEXITSTATUS(how) == 0);
  device_close(device);
  device = open(uri, Format::kNever);
  CHECK(io(device, Op::kRead, 1, page.at) == kPage);
  CHECK(page.at[0] == '2');
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  // Formatting what is in use is refused; a session whose memory is gone is not joined.
  int error = 0;
  (void)refusal(uri, &error, Format::kForce);
  CHECK(error == -EBUSY);
  device_close(device);
  for (int fd : {to_child[0], to_parent[0], to_parent[1]}) close(fd);
}

namespace {

constexpr unsigned kWriters = 3;
constexpr uint64_t kWriterPages = 128;

// What writers promise, in memory they share with the test.
struct Promises {
  std::atomic<uint64_t> issued[kWriters][kWriterPages], acknowledged[kWriters][kWriterPages];
};

// Writes versions to its pages, eight at a time, until it is killed.
[[noreturn]] void write_for_ever(const std::string& uri, unsigned writer, Promises* promises) {
  Device* device = nullptr;
  ErrorText why;
  if (raw_open(uri.c_str(), raw(), Format::kNever, &device, &why) < 0) _exit(2);
  mirror(device).set_probe_interval(5'000'000);
  Context* context = nullptr;
  ContextOptions options;
  options.depth = 8;
  if (device->attach(options, &context) < 0) _exit(3);
  auto* pages = static_cast<char*>(aligned_alloc(4096, 8 * kPage));
  std::mt19937_64 random(seed() + writer);
  iovec parts[8];
  uint64_t page_of[8], version_of[8];
  for (unsigned slot = 0; slot < 8; ++slot) page_of[slot] = UINT64_MAX;
  for (unsigned flying = 0;;) {
    for (unsigned slot = 0; slot < 8; ++slot) {
      if (page_of[slot] != UINT64_MAX) continue;
      const uint64_t page = random() % (kWriterPages / 8) * 8 + slot;   // a slot's pages are its own
      page_of[slot] = page;
      version_of[slot] = promises->issued[writer][page] + 1;
      promises->issued[writer][page] = version_of[slot];
      parts[slot] = {pages + slot * kPage, kPage};
      for (size_t i = 0; i < kPage / 8; ++i) memcpy(pages + slot * kPage + i * 8, &version_of[slot], 8);
      Command command;
      command.op = Op::kWrite;
      command.offset = DeviceOffset{(writer * kWriterPages + page) * kPage};
      command.iov = &parts[slot];
      command.iov_count = 1;
      command.tag = slot;
      if (context->submit(&command, 1) != 1) _exit(4);
      ++flying;
    }
    Response out[8];
    const int n = context->wait(out, 8, -1);
    for (int i = 0; i < n; ++i) {
      if (out[i].result != kPage) _exit(5);
      promises->acknowledged[writer][page_of[out[i].tag]] = version_of[out[i].tag];
      page_of[out[i].tag] = UINT64_MAX;
      --flying;
    }
  }
}

}  // namespace

TEST_CASE("mirror: processes that are killed while they write and copy lose nothing that was acknowledged") {
  const char* slow = getenv("LUNAR_MIRROR_SECONDS");
  const MemberFiles files("mirror:", 3 * kMiB);
  const std::string& uri = files.uri;
  auto* promises = static_cast<Promises*>(mmap(nullptr, sizeof(Promises), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(promises != MAP_FAILED);
  const unsigned rounds = slow ? static_cast<unsigned>(strtoul(slow, nullptr, 0)) / 4 : 1;
  std::mt19937_64 random(seed());
  for (unsigned round = 0; round < rounds; ++round) {
    Device* device = open(uri, round ? Format::kNever : Format::kIfBlank);
    device_close(device);
    std::vector<pid_t> children;
    for (unsigned w = 0; w < kWriters; ++w) {
      const pid_t child = fork();
      if (child == 0) write_for_ever(uri, w, promises);
      children.push_back(child);
    }
    device = open_mirror(uri, Format::kNever, 5'000'000);
    const int read_only[2] = {sys::open_file(files.paths[0].c_str(), O_RDONLY | O_DIRECT), sys::open_file(files.paths[1].c_str(), O_RDONLY | O_DIRECT)};
    Page page;
    memset(page.at, 'p', kPage);
    for (unsigned w = 0; w < kWriters; ++w) {
      if (w == 0) CHECK(mirror(device).wait_in_sync(60 * kSecond) == 0);
      unsigned out = static_cast<unsigned>(random() % 2);
      if (status(device, 1 - out) != "Enabled") out = 1 - out;   // one has to stay
      const int good = device->fd(out);
      device->reopen(out, read_only[out]);   // fails its next write here, which makes it stale for all
      CHECK(io(device, Op::kWrite, kWriters * kWriterPages + w, page.at) == kPage);
      device->reopen(out, good);
      sys::sleep_ns(10'000'000 + random() % 60'000'000);
      kill(children[w], SIGKILL);   // one after the other, in the middle of writes or copying
      int how = 0;
      REQUIRE(waitpid(children[w], &how, 0) == children[w]);
      CHECK(WIFSIGNALED(how));   // did not end by itself: no I/O failed
    }
    CHECK(mirror(device).wait_in_sync(60 * kSecond) == 0);
    for (const int fd : read_only) sys::close_file(fd);
    device_close(device);
    device = open(uri, Format::kNever);   // writers died in writes: their last ones may differ till they are copied
    CHECK(mirror(device).wait_in_sync(60 * kSecond) == 0);
    unsigned wrong = 0, differ = 0;
    for (uint64_t p = 0; p < kWriters * kWriterPages; ++p) {
      uint64_t versions[2] = {};
      for (unsigned m = 0; m < 2; ++m) {
        const iovec part = {page.at, kPage};
        Command command;
        command.offset = DeviceOffset{kMemberDataOffset + p * kPage};
        command.iov = &part;
        command.iov_count = 1;
        REQUIRE(member(device, m)->transfer(command) == kPage);
        memcpy(&versions[m], page.at, 8);
        wrong += memcmp(page.at, page.at + kPage - 8, 8) != 0;
      }
      const uint64_t least = promises->acknowledged[p / kWriterPages][p % kWriterPages];
      const uint64_t most = promises->issued[p / kWriterPages][p % kWriterPages];
      wrong += versions[0] < least || versions[0] > most;
      differ += versions[0] != versions[1];
    }
    CHECK(wrong == 0);
    CHECK(differ == 0);
    device_close(device);
  }
  munmap(promises, sizeof(Promises));
}
