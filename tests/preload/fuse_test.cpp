// SPDX-License-Identifier: Apache-2.0
// Reads of a FUSE file that its server opens with direct_io: the kernel pins the program's buffer
// while the server writes into it, and no flag of the descriptor tells. Nothing of what was read is
// lost while the buffer is evicted: the program opens the file itself, or inherits it, and its
// first thread has ended, or it does not see the mount. As root: it mounts in a mount namespace of
// its own, and plays the server in a child.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>

#include "preload_test.h"

namespace {

constexpr size_t kPage = 4096, kFile = 256 << 20, kBuffer = 8 << 20, kCold = 40 << 20,
                 kOnce = 1 << 20;
constexpr unsigned kRounds = 6, kDelayUs = 3000;
constexpr uint64_t kRootNode = 1, kFileNode = 2;

struct Reply {
  fuse_out_header header;
  char body[256 * 1024];
};
Reply g_reply;

void send(int device, const fuse_in_header& request, int error, const void* body, size_t bytes) {
  g_reply.header = {static_cast<uint32_t>(sizeof g_reply.header + bytes), -error, request.unique};
  if (body != g_reply.body && bytes != 0) memcpy(g_reply.body, body, bytes);
  (void)!write(device, &g_reply, g_reply.header.len);
}

fuse_attr attributes(uint64_t node) {
  fuse_attr about = {};
  about.ino = node;
  about.mode = node == kRootNode ? S_IFDIR | 0755 : S_IFREG | 0644;
  about.size = node == kRootNode ? 0 : kFile;
  about.nlink = 1;
  return about;
}

void send_content(int device, const fuse_in_header& request, const fuse_read_in& read) {
  usleep(kDelayUs);
  REQUIRE(read.size <= sizeof g_reply.body);
  auto* words = reinterpret_cast<unsigned long*>(g_reply.body);
  for (size_t i = 0; i < read.size / sizeof(long); ++i)
    words[i] = stamp(9, read.offset / sizeof(long) + i);
  send(device, request, 0, g_reply.body, read.size);
}

void answer(int device, const fuse_in_header& request) {
  const void* body = &request + 1;
  if (request.opcode == FUSE_INIT) {
    fuse_init_out out = {};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = 31;
    out.max_write = 128 * 1024;
    return send(device, request, 0, &out, sizeof out);
  }
  if (request.opcode == FUSE_LOOKUP) {
    fuse_entry_out out = {};
    out.nodeid = kFileNode;
    out.entry_valid = out.attr_valid = 100;
    out.attr = attributes(kFileNode);
    return send(device, request, 0, &out, sizeof out);
  }
  if (request.opcode == FUSE_GETATTR) {
    fuse_attr_out out = {};
    out.attr_valid = 100;
    out.attr = attributes(request.nodeid);
    return send(device, request, 0, &out, sizeof out);
  }
  if (request.opcode == FUSE_OPEN) {
    fuse_open_out out = {};
    out.open_flags = FOPEN_DIRECT_IO;
    return send(device, request, 0, &out, sizeof out);
  }
  if (request.opcode == FUSE_READ)
    return send_content(device, request, *static_cast<const fuse_read_in*>(body));
  if (request.opcode == FUSE_FORGET || request.opcode == FUSE_BATCH_FORGET ||
      request.opcode == FUSE_INTERRUPT)
    return;
  const bool agrees = request.opcode == FUSE_RELEASE || request.opcode == FUSE_FLUSH;
  send(device, request, agrees ? 0 : ENOSYS, nullptr, 0);
}

[[noreturn]] void serve(int device) {
  alignas(8) static char request[1 << 20];
  for (;;) {
    const ssize_t n = read(device, request, sizeof request);
    if (n < 0 && (errno == EINTR || errno == ENOENT)) continue;
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) _exit(0);  // unmounted
    answer(device, *reinterpret_cast<fuse_in_header*>(request));
  }
}

void read_all() {
  auto* cold = map_any(kCold);
  auto* buffer = map_any(kBuffer);
  REQUIRE(tiered(cold) && tiered(buffer));
  fill(cold, kCold, 1);
  const char* inherited = getenv("FUSE_TEST_DESCRIPTOR");
  const int file =
      inherited != nullptr ? atoi(inherited) : open(getenv("FUSE_TEST_FILE"), O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  Meanwhile pressing([=] {
    for (size_t at = 0; at < kCold; at += kPage) __atomic_fetch_add(cold + at, 0, __ATOMIC_RELAXED);
  });
  size_t wrong = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    const size_t from = round * kBuffer;
    for (size_t at = 0; at < kBuffer; at += kOnce)
      REQUIRE(pread(file, buffer + at, kOnce, static_cast<off_t>(from + at)) ==
              static_cast<ssize_t>(kOnce));
    for (size_t at = 0; at < kBuffer; at += kPage)
      wrong += !holds(buffer + at, kPage, 9, (from + at) / sizeof(long));
  }
  pressing.end();
  if (wrong != 0)
    fprintf(stderr, "%zu of %zu pages are not what was read\n", wrong, kRounds * kBuffer / kPage);
  REQUIRE(wrong == 0 && holds(cold, kCold, 1));
}

[[noreturn]] void skip_without(const char* what) {
  SKIP("fuse", (std::string(what) + ": " + strerror(errno)).c_str());
}

void body() {
  if (getenv("FUSE_TEST_FIRST_THREAD") == nullptr) return read_all();
  std::thread([] { exit((read_all(), 0)); }).detach();  // another thread does the work
  pthread_exit(nullptr);
}

int with_server(int argc, char** argv) {
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) skip_without("/dev/fuse");
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    skip_without("a mount namespace");
  char place[] = "/tmp/lunar-fuse-XXXXXX";
  REQUIRE(mkdtemp(place) != nullptr);
  const std::string options =
      "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0";
  if (mount("lunar-test", place, "fuse", 0, options.c_str()) != 0) {
    const int error = errno;
    (void)rmdir(place);
    errno = error;
    skip_without("mount");
  }
  const pid_t server = fork();
  REQUIRE(server >= 0);
  if (server == 0) serve(device);
  close(device);
  const std::string name = std::string(place) + "/file";
  setenv("FUSE_TEST_FILE", name.c_str(), 1);
  const auto run = [&] {
    return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"}, {{"read", body}});
  };
  int result = run();
  const int file = open(name.c_str(), O_RDONLY);
  REQUIRE(file >= 0);
  setenv("FUSE_TEST_DESCRIPTOR", std::to_string(file).c_str(), 1);
  setenv("FUSE_TEST_FIRST_THREAD", "ends", 1);
  if (result == 0) result = run();
  unsetenv("FUSE_TEST_FIRST_THREAD");
  REQUIRE(unshare(CLONE_NEWNS) == 0);  // with mounts of its own
  if (result == 0) result = run();
  (void)umount2(place, MNT_DETACH);
  (void)rmdir(place);
  kill(server, SIGKILL);
  REQUIRE(waitpid(server, nullptr, 0) == server);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  return inside() ? run_cases(argc, argv, {}, {{"read", body}}) : with_server(argc, argv);
}
