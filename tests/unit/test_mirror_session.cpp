// SPDX-License-Identifier: Apache-2.0
// Who takes part in a mirror: forked children, killed ones, those who only read; and who is the last.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "composite.hpp"
#include "lun/member_label.h"
#include "lun/mirror_device.h"
#include "sys/file.h"

using namespace lunar;
using namespace composite;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

MirrorDevice& mirror(Device* device) { return *static_cast<MirrorDevice*>(device); }

Device* open_mirror(const std::string& uri, Format format = Format::kIfBlank, uint64_t probe_ns = 20'000'000) {
  Device* device = open(uri, format);
  mirror(device).set_probe_interval(probe_ns);
  return device;
}

int64_t io(Device* device, Op op, uint64_t page, void* buffer, size_t bytes = kPage) {
  const iovec part = {buffer, bytes};
  Command command;
  command.op = op;
  command.offset = DeviceOffset{page * kPage};
  command.iov = &part;
  command.iov_count = 1;
  return device->transfer(command);
}

std::string status(Device* device, unsigned i) {
  PathInfo out[4];
  REQUIRE(device_paths(device, out, 4) > static_cast<int>(i));
  return out[i].status;
}

MemberLabel label_of(Device* device, unsigned i) {
  MemberLabel out;
  REQUIRE(label_read(member(device, i), &out) == 0);
  return out;
}

struct Page {
  char* at = static_cast<char*>(aligned_alloc(4096, 4096));
  ~Page() { free(at); }
};

// Two files, and a mirror of them.
struct Files {
  std::string paths[2], uri = "mirror:";
  Files() {
    const char* given = getenv("LUNAR_TEST_DIR");
    for (unsigned i = 0; i < 2; ++i) {
      paths[i] = std::string(given ? given : "/var/tmp") + "/lunar-mirror-" + std::to_string(getpid()) + "-f" + std::to_string(i);
      const int fd = sys::open_file(paths[i].c_str(), O_RDWR | O_CREAT, 0600);
      REQUIRE(fd >= 0);
      REQUIRE(sys::allocate_space(fd, 0, 3 * kMiB) == 0);
      sys::close_file(fd);
      uri += (i ? ";" : "") + paths[i];
    }
    Device* device = open(uri);
    REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
    device_close(device);
  }
  ~Files() {
    for (const std::string& path : paths) unlink(path.c_str());
  }
  // The first member refuses writes while this lives, by the descriptor of one device.
  struct Refusal {
    Device* device;
    int good, bad;
    Refusal(Device* of, const std::string& path) : device(of), good(of->fd(0)), bad(sys::open_file(path.c_str(), O_RDONLY | O_DIRECT)) {
      device->reopen(0, bad);
    }
    ~Refusal() {
      device->reopen(0, good);
      sys::close_file(bad);
    }
  };
};

std::string session_file(Device* device) {
  char path[64];
  const uint64_t session = mirror(device).state().shared().session;
  snprintf(path, sizeof path, "/dev/shm/lunar-mirror-%08x%08x", static_cast<unsigned>(session >> 32), static_cast<unsigned>(session));
  return path;
}

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

char first_of(Device* device, uint64_t page) {
  Page in;
  return io(device, Op::kRead, page, in.at) == kPage ? in.at[0] : '!';
}

void fill(Device* device, uint64_t page, char with) {
  Page out;
  memset(out.at, with, kPage);
  CHECK(io(device, Op::kWrite, page, out.at) == kPage);
}

Device* open_reader(const std::string& uri) {
  Device* device = nullptr;
  DeviceOptions look = raw();
  look.read_only = true;
  ErrorText why;
  const int status = raw_open(uri.c_str(), look, Format::kNever, &device, &why);
  INFO(why.text);
  REQUIRE(status == 0);
  return device;
}

// A child that says 'r' when it is ready, then does as it is told until it is told to end (by a byte 'q', or by being killed).
struct Child {
  pid_t pid;
  int order[2], answer[2];
  template <class Work>
  explicit Child(Work work) {
    REQUIRE(pipe2(order, O_CLOEXEC) == 0);
    REQUIRE(pipe2(answer, O_CLOEXEC) == 0);
    pid = fork();
    if (pid != 0) return;
    close(order[1]);   // so that it ends with its parent
    for (char what = 'r'; what != 'q';) {
      char out = what == 'r' ? 'r' : work(what);
      if (write(answer[1], &out, 1) != 1 || read(order[0], &what, 1) != 1) _exit(3);
    }
    _exit(0);
  }
  char hear() const {
    char out = 0;
    return read(answer[0], &out, 1) == 1 ? out : '!';
  }
  char ask(char what) const {
    if (write(order[1], &what, 1) != 1) return '!';
    return hear();
  }
  int end(bool killed) const {
    int how = 0;
    if (killed) kill(pid, SIGKILL);
    else if (write(order[1], "q", 1) != 1) return -1;
    waitpid(pid, &how, 0);
    for (int fd : {order[0], order[1], answer[0], answer[1]}) close(fd);
    return how;
  }
};

}  // namespace

TEST_CASE("mirror: a child that was killed while it did nothing is not waited for: closed clean, nothing left") {
  Files files;
  Device* device = open_mirror(files.uri, Format::kNever);
  const std::string session = session_file(device);
  Context* context = nullptr;
  const Child child([&](char) -> char {
    if (device->attach({}, &context) != 0) return 'e';
    fill(device, 1, 'c');   // a slot for its context, one for transfers
    return 'a';
  });
  CHECK(child.hear() == 'r');
  CHECK(child.ask('a') == 'a');
  (void)child.end(true);
  CHECK(is_there(session));
  CHECK(label_of(device, 0).dirty == 1);
  device_close(device);
  CHECK_FALSE(is_there(session));
  device = open_mirror(files.uri, Format::kNever, 100 * kSecond);
  CHECK(status(device, 1) == "Enabled");   // nothing to copy
  CHECK(first_of(device, 1) == 'c');
  device_close(device);
}

TEST_CASE("mirror: it stays open while a forked child has it, used or not; the child's close is the last") {
  Files files;
  Device* device = open_mirror(files.uri, Format::kNever, 100 * kSecond);
  const std::string session = session_file(device);
  fill(device, 1, 'p');
  const Child child([&](char what) -> char {
    if (what == 'w') return fill(device, 2, 'w'), first_of(device, 2);
    if (what == 'f') {   // the first member fails a write of the child's: said on the labels, and in memory
      const Files::Refusal refusal(device, files.paths[0]);
      return fill(device, 1, 'f'), first_of(device, 1);
    }
    if (what == 'c') return device_close(device), 'c';
    return '?';
  });
  CHECK(child.hear() == 'r');
  device_close(device);   // the child has done nothing yet
  CHECK(is_there(session));
  Device* second = open_mirror(files.uri, Format::kNever, 100 * kSecond);   // joins the child
  CHECK(session_file(second) == session);
  CHECK(label_of(second, 0).dirty == 1);
  CHECK(child.ask('w') == 'w');
  CHECK(first_of(second, 2) == 'w');
  CHECK(child.ask('f') == 'f');
  CHECK(first_of(second, 1) == 'f');
  CHECK(status(second, 0) == "Failed");
  device_close(second);
  CHECK(is_there(session));
  CHECK(child.ask('c') == 'c');
  CHECK_FALSE(is_there(session));
  CHECK(child.end(false) == 0);
  device = open_mirror(files.uri, Format::kNever, 20'000'000);
  CHECK(label_of(device, 1).states[0] == static_cast<uint8_t>(MemberState::kStale));
  CHECK(first_of(device, 1) == 'f');
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  device_close(device);
  MemberLabel label;
  Device* member = open(files.paths[0], Format::kNever);
  CHECK(label_read(member, &label) == 0);
  CHECK(label.dirty == 0);
  device_close(member);
}

TEST_CASE("mirror: of parent and child who close at the same time, exactly one is the last") {
  Files files;
  for (unsigned round = 0; round < 20; ++round) {
    Device* device = open_mirror(files.uri, Format::kNever);
    CHECK(status(device, 1) == "Enabled");   // was closed clean in the round before
    const std::string session = session_file(device);
    const Child child([&](char) -> char { return device_close(device), 'c'; });
    CHECK(child.hear() == 'r');
    REQUIRE(write(child.order[1], "c", 1) == 1);
    device_close(device);
    CHECK(child.hear() == 'c');
    CHECK(child.end(false) == 0);
    CHECK_FALSE(is_there(session));
  }
}

TEST_CASE("mirror: who reads only follows those who write, whoever came first, and however they went") {
  Files files;
  Device* reader = open_reader(files.uri);   // nobody writes yet
  const std::string session = session_file(reader);
  CHECK(is_there(session));
  char expected = 'a';
  for (unsigned round = 0; round < 4; ++round) {
    const bool killed = round % 2 == 1;
    const Child writer([&](char) -> char {
      Device* device = nullptr;
      ErrorText why;
      if (raw_open(files.uri.c_str(), raw(), Format::kNever, &device, &why) < 0) return 'e';
      mirror(device).set_probe_interval(100 * kSecond);
      if (mirror(device).wait_in_sync(20 * kSecond) != 0) return 't';
      {
        const Files::Refusal refusal(device, files.paths[0]);
        fill(device, 1, expected);
      }
      if (!killed) device_close(device);
      return expected;
    });
    CHECK(writer.hear() == 'r');
    CHECK(writer.ask('w') == expected);
    CHECK(status(reader, 0) == "Failed");
    CHECK(first_of(reader, 1) == expected);
    (void)writer.end(killed);
    CHECK(first_of(reader, 1) == expected);   // the first member still has what was before
    Device* other = open_reader(files.uri);
    CHECK(session_file(other) == session);
    CHECK(first_of(other, 1) == expected);
    device_close(other);
    ++expected;
  }
  // It reads from a member that was copied to, too.
  Device* device = open_mirror(files.uri, Format::kNever);
  CHECK(session_file(device) == session);
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  CHECK(status(reader, 0) == "Enabled");
  device_close(reader);
  CHECK(is_there(session));
  reader = open_reader(files.uri);   // beside one who writes
  device_close(device);
  CHECK(first_of(reader, 1) == expected - 1);
  device_close(reader);
  CHECK_FALSE(is_there(session));
  MemberLabel label;
  Device* member = open(files.paths[0], Format::kNever);
  CHECK(label_read(member, &label) == 0);
  CHECK(label.dirty == 0);
  device_close(member);
}

TEST_CASE("mirror: who reads only follows later writers of the same process") {
  const std::string uri = "mirror:" + named("2m", fresh()) + ";" + named("2m", fresh());
  Device* device = open_mirror(uri);
  REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
  device_close(device);
  Device* reader = open_reader(uri);
  device = open_mirror(uri, Format::kNever, 100 * kSecond);
  sim(member(device, 0)).set_failing(false, true);
  fill(device, 1, 'n');
  CHECK(first_of(reader, 1) == 'n');
  CHECK(status(reader, 0) == "Failed");
  device_close(device);
  CHECK(first_of(reader, 1) == 'n');
  device_close(reader);
}
