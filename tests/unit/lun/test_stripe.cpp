// SPDX-License-Identifier: Apache-2.0
// Stripes and member labels: content against a model, order and belonging of members, torn labels,
// mutated labels.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "composite.h"
#include "lun/raid/member_label.h"
#include "lun/raid/stripe_device.h"
#include "sys/file.h"
#include "sys/thread.h"
#include "sys/uring.h"
#include "tests/support/meanwhile.h"

using namespace lunar;
using namespace composite;

TEST_CASE("stripe: random commands of all sizes come back as the model says") {
  const MemberFiles files("", 5 * kMiB), ways("paths:", 5 * kMiB);
  std::vector<std::string> uris = {"stripe:(paths:" + ways.paths[0] + ";" + ways.paths[0] + ");" +
                                   files.paths[0] + ";" + files.paths[1]};
  for (const unsigned count : {2u, 3u, 8u}) {
    std::string uri = "stripe:";
    for (unsigned i = 0; i < count; ++i)
      uri += (i ? ";" : "") + named("4m", fresh()) + ",latency_us=" + std::to_string(i * 7);
    uris.push_back(uri);
  }
  for (const std::string& uri : uris) {
    INFO(uri);
    Device* device = open(uri);
    const auto members = static_cast<unsigned>(std::count(uri.begin(), uri.end(), ';')) + 1;
    if (uri != uris[0]) CHECK(device->size_bytes() == members * 3 * kMiB);
    for (const bool shared : {false, true})
      CHECK(DeviceModel(device, 0, device->size_bytes(), seed(), {.depth = 16, .shared = shared})
                .holds(300));
    device_close(device);
    device = open(uri, Format::kNever);  // it is still that stripe
    device_close(device);
  }
}

TEST_CASE(
    "stripe: a chunk lies where RAID 0 puts it, and large commands go to all members at once") {
  Device* device = open("stripe:sim:4m;sim:4m");
  std::vector<char> data(4 * kStripeChunkBytes);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>('a' + i / kStripeChunkBytes);
  const uint64_t before = sim(member(device, 0)).counters().writes;
  {
    const Attached context(device);
    CHECK(io(device, Op::kWrite, 0, data.data(), data.size(), context) ==
          static_cast<int64_t>(data.size()));
    CHECK(io(device, Op::kWrite, device->size_bytes(), data.data(), kPage, context) == -EINVAL);
  }
  for (unsigned m = 0; m < 2; ++m) {
    const char* at = sim(member(device, m)).memory() + kMemberDataOffset;
    CHECK(at[0] == static_cast<char>('a' + m));
    CHECK(at[kStripeChunkBytes] == static_cast<char>('c' + m));
  }
  CHECK(sim(member(device, 0)).counters().writes == before + 1);  // both chunks in one
  device_close(device);
}

TEST_CASE("stripe: a failed member fails the commands that touch it, and only these") {
  Device* device = open("stripe:sim:4m;sim:4m");
  sim(member(device, 1)).set_failing(true, true);
  std::vector<char> data(2 * kStripeChunkBytes);
  CHECK(io(device, Op::kRead, 0, data.data()) == kPage);
  CHECK(io(device, Op::kRead, kStripeChunkBytes, data.data()) == -EIO);
  {
    const Attached context(device);
    CHECK(io(device, Op::kRead, 0, data.data(), data.size(), context) == -EIO);
  }
  device_close(device);
}

namespace {

// Rings that this process has open.
unsigned rings() {
  unsigned count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    count += std::filesystem::read_symlink(entry.path(), none).string() == "anon_inode:[io_uring]";
  }
  return count;
}

long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

TEST_CASE("stripe: members on files share one ring") {
  const MemberFiles files("stripe:", 5 * kMiB);
  Device* device = open(files.uri);
  files.forget();
  CHECK(device->fd_count() == 2);
  CHECK(device->size_bytes() == 8 * kMiB);
  const unsigned before = rings();
  {
    const Attached context(device);
    if (sys::uring_probe() == 0) CHECK(rings() == before + 1);
  }
  device_close(device);
}

TEST_CASE(
    "stripe: a thread that waits for several members sleeps until one of them has something") {
  const MemberFiles files("", 5 * kMiB);
  Device* device = open("stripe:" + named("5m", fresh()) + ",latency_us=200000;" +
                        named("5m", fresh()) + ",latency_us=200000;" + files.paths[0]);
  for (const bool shared : {false, true}) {
    const Attached context(device, {.shared = shared});
    PageVector data(2 * kStripeChunkBytes);
    const iovec part = {data.data(), data.size()};
    const Command command = command_of(Op::kRead, 0, &part, 1);
    REQUIRE(context->submit(&command, 1) == 1);
    Response response;
    const long slept = sleeps();
    int got = 0;
    while (got == 0) {
      if (shared) {
        const int status = context->await(-1);
        REQUIRE((status == 0 || status == -EINTR));
        got = context->reap(&response, 1);
      } else {
        got = context->wait(&response, 1, -1);
      }
    }
    CHECK(got == 1);
    CHECK(response.result == static_cast<int64_t>(data.size()));
    CHECK(sleeps() - slept < 200);  // of a tenth of a millisecond each: 2000
  }
  device_close(device);
}

TEST_CASE(
    "stripe: of several contexts the one that has something wakes the waiting thread at once") {
  const MemberFiles files("", 5 * kMiB);
  Device* device = open("stripe:" + named("5m", fresh()) + ",latency_us=400000;" + files.paths[0]);
  for (const bool shared : {false, true}) {
    const Attached context(device, {.spin = false, .shared = shared});
    PageVector slow(kPage), fast(kPage);
    const iovec parts[2] = {{slow.data(), kPage}, {fast.data(), kPage}};
    const Command commands[2] = {command_of(Op::kRead, 0, &parts[0], 1, 0),
                                 command_of(Op::kRead, kStripeChunkBytes, &parts[1], 1, 1)};
    REQUIRE(context->submit(&commands[0], 1) == 1);
    Response response{7, 0};
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 20; ++round) {
      const uint64_t start = sys::now_ns();
      REQUIRE(context->submit(&commands[1], 1) == 1);
      int got = 0;
      while (got == 0) {
        if (shared) (void)context->await(-1);
        got = shared ? context->reap(&response, 1) : context->wait(&response, 1, -1);
      }
      if (response.tag == 0) break;  // a slow machine
      CHECK(response.result == static_cast<int64_t>(kPage));
      best = std::min(best, sys::now_ns() - start);
    }
    CHECK(best < 5'000'000);  // looked at again after 10 ms anyway
    while (context->in_flight()) (void)context->wait(&response, 1, -1);
  }
  device_close(device);
}

TEST_CASE(
    "stripe: a blocking command has all members at work at once, also in a forked child, and by "
    "many threads") {
  std::string uri = "stripe:";
  for (unsigned i = 0; i < 4; ++i)
    uri += (i ? ";" : "") + named("4m", fresh()) + ",latency_us=50000";
  Device* device = open(uri);
  const auto fastest_ms = [device] {
    std::vector<char> data(8 * kStripeChunkBytes);
    double best = 1e9;
    for (int i = 0; i < 5 && best > 150; ++i) {
      const uint64_t start = sys::now_ns();
      if (io(device, Op::kRead, 0, data.data(), data.size()) != static_cast<int64_t>(data.size()))
        return 1e9;
      best = std::min(best, static_cast<double>(sys::now_ns() - start) / 1e6);
    }
    return best;
  };
  CHECK(fastest_ms() < 150);  // one after the other: 400
  const pid_t child = fork();
  if (child == 0) _exit(fastest_ms() < 150 ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::atomic<unsigned> wrong{0};
  lunar_test::in_parallel(40, [&] {  // more than there are contexts
    std::vector<char> data(4 * kStripeChunkBytes);
    wrong +=
        io(device, Op::kRead, 0, data.data(), data.size()) != static_cast<int64_t>(data.size());
  });
  CHECK(wrong == 0);
  device_close(device);
}

TEST_CASE("labels: wrong order, count, set, kind and size are named, and nothing is written") {
  const std::string a = named("4m", fresh()), b = named("4m", fresh()), c = named("4m", fresh()),
                    d = named("4m", fresh());
  device_close(open("stripe:" + a + ";" + b));
  device_close(open("stripe:" + c + ";" + d));
  int error = 0;
  CHECK(has(refusal("stripe:" + b + ";" + a, &error), "number 2"));
  CHECK(error == -EINVAL);
  CHECK(has(refusal("stripe:" + a + ";" + d, &error), "another set"));
  CHECK(error == -EEXIST);
  CHECK(has(refusal("stripe:" + a + ";" + a, &error), "twice"));
  CHECK(has(refusal("stripe:" + a + ";" + b + ";" + c, &error), "of 2 members"));
  CHECK(
      refusal("stripe:" + a + ";" + named("4m", fresh()), &error, Format::kIfBlank).find("blank") !=
      std::string::npos);
  CHECK(error == -EINVAL);
  const std::string e = named("4m", fresh()), f = named("4m", fresh());
  CHECK(has(refusal("stripe:" + e + ";" + f, &error), "blank"));
  CHECK(error == -ENODEV);
  ErrorText why;
  Device* device = nullptr;
  REQUIRE(device_open(e.c_str(), kRaw, &device, &why) == 0);
  strcpy(sim(device).memory() + 5000, "somebody's data");
  CHECK(has(refusal("stripe:" + e + ";" + f, &error, Format::kIfBlank), "data"));
  CHECK(error == -EEXIST);
  CHECK(sim(device).memory()[0] == 0);
  device_close(device);
  device_close(open("stripe:" + e + ";" + f, Format::kForce));
  device_close(open("stripe:" + e + ";" + f, Format::kNever));
  CHECK(has(refusal("stripe:" + a, &error), "one member"));
  CHECK(refusal("stripe:(" + a + ";" + b, &error).find("parentheses") != std::string::npos);
  CHECK(has(refusal("stripe:;" + b, &error), "empty member"));
  CHECK(has(refusal("stripe:(stripe:" + a + ";" + b + ");" + c, &error), "cannot be a member"));
  CHECK(has(refusal("warp:1;2", &error), "unknown scheme"));
}

TEST_CASE(
    "labels: of any prefix of the writes of a label, torn anywhere, one is sound, and the new one "
    "once it is whole") {
  MemberLabel label;
  const std::string a = named("4m", fresh()), b = named("4m", fresh());
  Device* device = open("stripe:" + a + ";" + b);
  Device* one = member(device, 0);
  char* memory = sim(one).memory();
  REQUIRE(label_read(one, &label) == 0);
  const uint64_t before = label.created_s;
  std::vector<char> old(memory, memory + 16 * kKiB);
  label.created_s = before + 1;
  REQUIRE(label_write(one, &label) == 0);
  const std::vector<char> fresh_head(memory, memory + 16 * kKiB);
  for (unsigned copy = 0; copy < 2; ++copy) {
    // of this copy; the one before is whole, the one after untouched
    for (size_t sectors = 0; sectors <= 8; ++sectors) {
      memcpy(memory, old.data(), old.size());
      if (copy == 1) memcpy(memory, fresh_head.data(), 4096);
      memcpy(memory + kLabelCopyOffset[copy], fresh_head.data() + kLabelCopyOffset[copy],
             sectors * 512);
      REQUIRE(label_read(one, &label) == 0);
      CHECK((label.created_s == before || label.created_s == before + 1));
      if (copy == 1 || sectors == 8) CHECK(label.created_s == before + 1);
    }
  }
  device_close(device);
}

TEST_CASE(
    "labels: a member of a mirror of earlier versions is refused by a line that says what to do, "
    "and formatted by "
    "force only") {
  const std::string a = named("4m", fresh()), b = named("4m", fresh()),
                    stripe = "stripe:" + a + ";" + b;
  Device *first = nullptr, *second = nullptr;  // keep the memory
  ErrorText why;
  REQUIRE(device_open(a.c_str(), kRaw, &first, &why) == 0);
  REQUIRE(device_open(b.c_str(), kRaw, &second, &why) == 0);
  device_close(open(stripe));
  MemberLabel label;
  for (Device* one : {first, second}) {
    REQUIRE(label_read(one, &label) == 0);
    label.type = static_cast<uint32_t>(SetType::kFormerMirror);
    label.chunk_bytes = 0;
    label.reserved1 = 7;  // their count of changes, and their states
    label.reserved[0] = 2;
    REQUIRE(label_write(one, &label) == 0);
  }
  const std::vector<char> before(sim(first).memory(), sim(first).memory() + 4 * kMiB);
  int error = 0;
  for (const Format format : {Format::kNever, Format::kIfBlank}) {
    const std::string line = refusal(stripe, &error, format);
    CHECK(error == -EOPNOTSUPP);
    CHECK(has(line, a));
    CHECK(has(line, "mdadm"));
    CHECK(has(line, "from 1 MiB on"));
    PhysicalLun* physical = nullptr;
    CHECK(physical_open(a.c_str(), format, &physical, &why) == -EOPNOTSUPP);
    CHECK(has(why.text, "mdadm"));
  }
  DeviceContent content = DeviceContent::kBlank;
  char what[64];
  REQUIRE(device_content(first, &content, what, sizeof what) == 0);
  CHECK(content == DeviceContent::kMember);
  CHECK(has(what, "mirror"));
  CHECK(memcmp(sim(first).memory(), before.data(), before.size()) == 0);
  device_close(open(stripe, Format::kForce));
  REQUIRE(label_read(first, &label) == 0);
  CHECK((label.type == static_cast<uint32_t>(SetType::kStripe) && label.reserved1 == 1 &&
         label.reserved[0] == 0));
  device_close(first);
  device_close(second);
}

TEST_CASE("labels: no mutated image is accepted as anything but what was written") {
  Device* device = open("stripe:sim:4m;sim:4m");
  MemberLabel good, out;
  REQUIRE(label_read(member(device, 1), &good) == 0);
  device_close(device);
  std::mt19937_64 random(seed());
  unsigned accepted = 0;
  for (int i = 0; i < 30000; ++i) {
    MemberLabel image = good;
    auto* bytes = reinterpret_cast<unsigned char*>(&image);
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes; ++c)
      bytes[random() % (random() % 2 ? 128 : sizeof image)] ^=
          static_cast<unsigned char>(1 + random() % 255);
    if (label_parse(&image, &out) == 0 && memcmp(&image, &good, sizeof good) != 0) ++accepted;
  }
  CHECK(accepted == 0);
}
