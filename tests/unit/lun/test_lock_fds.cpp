// SPDX-License-Identifier: Apache-2.0
// lock_fds: however many lock descriptors a process has, a forked child keeps none.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "lun/volume/lock_fds.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

// How many of them a forked child has, or -1.
int kept_by_child(const std::vector<int>& fds) {
  const pid_t child = fork();
  if (child == 0) {
    int kept = 0;
    for (const int fd : fds) kept += fcntl(fd, F_GETFD) >= 0;
    _exit(kept);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status)
                                                                               : -1;
}

}  // namespace

TEST_CASE("a forked child closes all registered descriptors and no other") {
  constexpr int kMany = 200;
  std::vector<int> registered, others;
  for (int i = 0; i < kMany; ++i) {
    registered.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    REQUIRE(registered.back() >= 0);
    REQUIRE(register_lock_fd(registered.back()) == 0);
  }
  for (int i = 0; i < 3; ++i) {  // from among them
    others.push_back(registered.back());
    unregister_lock_fd(registered.back());
    registered.pop_back();
  }
  CHECK(kept_by_child(registered) == 0);
  CHECK(kept_by_child(others) == 3);
  for (const int fd : registered) {
    CHECK(fcntl(fd, F_GETFD) >= 0);  // the parent's stay
    unregister_lock_fd(fd);
  }
  CHECK(kept_by_child(registered) == static_cast<int>(registered.size()));
  for (const int fd : registered) close(fd);
  for (const int fd : others) close(fd);
}
