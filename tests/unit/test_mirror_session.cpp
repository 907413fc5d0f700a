// SPDX-License-Identifier: Apache-2.0
// Who takes part in a mirror: forked children, killed ones, those who only read; and who is the last.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "lun/mirror_memory.h"
#include "mirrors.hpp"
#include "sys/file.h"
#include "sys/mem.h"

using namespace lunar;
using namespace composite;

namespace {

struct Page {
  char* at = static_cast<char*>(aligned_alloc(4096, 4096));
  ~Page() { free(at); }
};

// Two files, and a mirror of them.
struct Files : MemberFiles {
  Files() : MemberFiles("mirror:", 3 * kMiB) {
    Device* device = open(uri);
    REQUIRE(mirror(device).wait_in_sync(20 * kSecond) == 0);
    device_close(device);
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

std::string session_file(uint64_t session) {
  char path[64];
  session_path(session, path, sizeof path);
  return path;
}
std::string session_file(Device* device) { return session_file(mirror(device).state().shared().session); }

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool is_mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos && line.find("deleted") == std::string::npos) return true;
  }
  return false;
}

char first_of(Device* device, uint64_t page) {
  Page in;
  return io(device, Op::kRead, page, in.at) == kPage ? in.at[0] : '!';
}

void fill(Device* device, uint64_t page, char with) {
  Page out;
  memset(out.at, with, kPage);
  CHECK(io(device, Op::kWrite, page, out.at) == kPage);
}

int try_open(const std::string& uri, bool read_only, Device** device, ErrorText* why) {
  DeviceOptions options = raw();
  options.read_only = read_only;
  return raw_open(uri.c_str(), options, Format::kNever, device, why);
}

Device* open_reader(const std::string& uri) {
  Device* device = nullptr;
  ErrorText why;
  const int status = try_open(uri, true, &device, &why);
  INFO(why.text);
  REQUIRE(status == 0);
  return device;
}

void check_refused(const std::string& uri, bool read_only, int expected, const std::string& says) {
  Device* device = nullptr;
  ErrorText why;
  CHECK(try_open(uri, read_only, &device, &why) == expected);
  INFO(why.text);
  CHECK(std::string(why.text).find(says) != std::string::npos);
  if (device) device_close(device);
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

MemberLabel closed_label(const std::string& path) {
  MemberLabel out;
  Device* member = open(path, Format::kNever);
  CHECK(label_read(member, &out) == 0);
  device_close(member);
  return out;
}

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
  CHECK(closed_label(files.paths[0]).dirty == 0);
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
  CHECK(closed_label(files.paths[0]).dirty == 0);
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

TEST_CASE("mirror: several who only read open and close it at once: all by one memory, which nobody empties under another") {
  Files files;
  Device* device = open_mirror(files.uri, Format::kNever);
  fill(device, 1, 'd');
  device_close(device);
  const std::string session = session_file(closed_label(files.paths[0]).session);
  pid_t readers[3];
  for (pid_t& reader : readers) {
    reader = fork();
    if (reader != 0) continue;
    for (unsigned round = 0; round < 120; ++round) {
      Device* mine = nullptr;
      ErrorText why;
      if (try_open(files.uri, true, &mine, &why) != 0) _exit(2);
      if (!is_there(session)) _exit(3);   // a mirror of its own
      if (!is_mapped(session)) _exit(5);
      for (unsigned looks = 0; looks < 200; ++looks) {
        if (mirror(mine).state().states() != 0) _exit(4);   // all in sync
      }
      device_close(mine);
    }
    _exit(0);
  }
  for (pid_t reader : readers) {
    int how = 0;
    waitpid(reader, &how, 0);
    CHECK(how == 0);
  }
  CHECK_FALSE(is_there(session));
}

TEST_CASE("mirror: who only reads leaves a memory that is in use as it is, and goes on without it when it is not to be used") {
  Files files;
  const uint64_t session = closed_label(files.paths[0]).session;
  SessionFile file{SessionRights()};
  REQUIRE(file.open(session, true) == 0);
  REQUIRE(file.clear() == 0);
  MirrorShared* memory = nullptr;
  REQUIRE(file.map(false, &memory) == 0);
  memory->events.store(77);
  file.close();   // in use, and never made ready
  Device* reader = open_reader(files.uri);
  struct stat status;
  REQUIRE(stat(session_file(session).c_str(), &status) == 0);
  REQUIRE(static_cast<size_t>(status.st_size) >= sizeof(MirrorShared));
  CHECK(memory->events.load() == 77);
  device_close(reader);
  CHECK(is_there(session_file(session)));
  CHECK(memory->ready.load() == 0);
  CHECK(sys::unmap(memory, sizeof(MirrorShared)) == 0);
  Device* device = open_mirror(files.uri, Format::kNever);   // and nobody has it now
  device_close(device);
}

TEST_CASE("mirror: who changed the user meanwhile closes it clean all the same") {
  if (geteuid() != 0) return;
  Files files;
  for (const std::string& path : files.paths) REQUIRE(chmod(path.c_str(), 0644) == 0);
  const Child child([&](char) -> char {
    Device* device = nullptr;
    ErrorText why;
    if (try_open(files.uri, false, &device, &why) != 0) return 'e';
    fill(device, 1, 'u');
    if (setgid(65534) != 0 || setuid(65534) != 0) return 's';
    device_close(device);
    return 'c';
  });
  CHECK(child.hear() == 'r');
  CHECK(child.ask('c') == 'c');
  CHECK(child.end(false) == 0);
  const MemberLabel label = closed_label(files.paths[0]);
  CHECK(label.dirty == 0);
  unlink(session_file(label.session).c_str());   // nobody cannot
}

TEST_CASE("mirror: who may not write to the members leaves no memory for those who may; beside one who writes he follows") {
  if (geteuid() != 0) return;
  Files files;
  for (const std::string& path : files.paths) REQUIRE(chmod(path.c_str(), 0644) == 0);
  const auto look = [&](char) -> char {
    Device* reader = nullptr;
    ErrorText why;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 's';
    if (try_open(files.uri, true, &reader, &why) != 0) return 'e';
    const char out = is_mapped("/dev/shm/lunar-mirror-") ? 'm' : 'p';
    device_close(reader);
    return out;
  };
  const Child child(look);
  CHECK(child.hear() == 'r');
  CHECK(child.ask('l') == 'p');
  CHECK_FALSE(is_there(session_file(closed_label(files.paths[0]).session)));
  Device* device = open_mirror(files.uri, Format::kNever);
  CHECK(child.ask('l') == 'm');
  const std::string session = session_file(device);
  device_close(device);
  CHECK_FALSE(is_there(session));
  CHECK(child.end(false) == 0);
}

TEST_CASE("mirror: closed under another root directory it stays dirty, and is copied at the next open") {
  if (geteuid() != 0) return;
  Files files;
  const Child child([&](char) -> char {
    Device* device = nullptr;
    ErrorText why;
    if (try_open(files.uri, false, &device, &why) != 0) return 'e';
    if (chroot("/var") != 0) return 's';
    device_close(device);
    return 'c';
  });
  CHECK(child.hear() == 'r');
  CHECK(child.ask('c') == 'c');
  CHECK(child.end(false) == 0);
  const MemberLabel label = closed_label(files.paths[0]);
  CHECK(label.dirty == 1);
  Device* device = open_mirror(files.uri, Format::kNever);
  CHECK(mirror(device).wait_in_sync(20 * kSecond) == 0);
  device_close(device);
  CHECK(closed_label(files.paths[0]).dirty == 0);
  CHECK_FALSE(is_there(session_file(label.session)));
}

TEST_CASE("mirror: its shared memory has the rights of the members") {
  Files files;   // 0600
  for (const mode_t mode : {0600, 0640}) {
    for (const std::string& path : files.paths) REQUIRE(chmod(path.c_str(), mode) == 0);
    for (const bool read_only : {false, true}) {
      Device* device = read_only ? open_reader(files.uri) : open_mirror(files.uri, Format::kNever);
      struct stat file;
      REQUIRE(stat(session_file(device).c_str(), &file) == 0);
      CHECK((file.st_mode & 07777) == mode);
      device_close(device);
    }
  }
}

TEST_CASE("mirror: what somebody else put in the place of its shared memory is refused by name") {
  Files files;
  const std::string path = session_file(closed_label(files.paths[0]).session);
  SECTION("a FIFO") { REQUIRE(mkfifo(path.c_str(), 0666) == 0); }
  SECTION("a link") { REQUIRE(symlink(files.paths[0].c_str(), path.c_str()) == 0); }
  SECTION("a file of another user, of the right content") {
    if (geteuid() != 0) return;
    Device* reader = open_reader(files.uri);
    REQUIRE(session_file(reader) == path);
    REQUIRE(chown(path.c_str(), 65534, 65534) == 0);
    check_refused(files.uri, false, -EPERM, path);
    check_refused(files.uri, true, -EPERM, path);
    REQUIRE(chown(path.c_str(), 0, 0) == 0);
    device_close(reader);
    const int fd = sys::open_file(path.c_str(), O_RDWR | O_CREAT, 0666);
    REQUIRE(fd >= 0);
    sys::close_file(fd);
    REQUIRE(chown(path.c_str(), 65534, 65534) == 0);
  }
  check_refused(files.uri, false, -EPERM, path);
  check_refused(files.uri, true, -EPERM, path);
  REQUIRE(unlink(path.c_str()) == 0);
  Device* device = open_mirror(files.uri, Format::kNever);
  device_close(device);
}

TEST_CASE("mirror: nobody writes beside one who reads by a memory that is not here any more") {
  Files files;
  Device* reader = open_reader(files.uri);
  const std::string path = session_file(reader);
  REQUIRE(rename(path.c_str(), (path + ".away").c_str()) == 0);   // as in a container with another /dev/shm
  check_refused(files.uri, false, -EBUSY, "/dev/shm");
  REQUIRE(rename((path + ".away").c_str(), path.c_str()) == 0);
  Device* device = open_mirror(files.uri, Format::kNever);
  CHECK(session_file(device) == path);
  device_close(device);
  REQUIRE(unlink(path.c_str()) == 0);
  device_close(reader);
  device = open_mirror(files.uri, Format::kNever);
  device_close(device);
}

TEST_CASE("mirror: a child forked while its memory is opened does not keep it locked when its parent is killed") {
  const uint64_t session = 0x6c6f636b00000000 + static_cast<uint64_t>(getpid());
  int answer[2];
  REQUIRE(pipe(answer) == 0);
  const pid_t parent = fork();
  if (parent == 0) {
    SessionFile file{SessionRights()};
    if (file.open(session, true) != 0 || file.clear() != 0) _exit(2);
    MirrorShared* memory = nullptr;
    if (file.look(&memory) != 0) _exit(3);
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    if (write(answer[1], &child, sizeof child) != sizeof child) _exit(4);
    kill(getpid(), SIGKILL);
  }
  pid_t child = 0;
  REQUIRE(read(answer[0], &child, sizeof child) == sizeof child);
  waitpid(parent, nullptr, 0);
  SessionFile file{SessionRights()};
  const int status = file.open(session, false);   // -EBUSY after 10 s
  CHECK(status == 0);
  if (status == 0) CHECK_FALSE(file.used());
  unlink(session_file(session).c_str());
  kill(child, SIGKILL);   // an orphan: init waits for it
  close(answer[0]);
  close(answer[1]);
}
