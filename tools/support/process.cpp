// SPDX-License-Identifier: Apache-2.0
// See process.h. The child reports a failed exec through a close-on-exec pipe.
#include "tools/support/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace lunar::tools {

namespace {
volatile sig_atomic_t g_interrupted = 0;

// Runs in the child between fork and exec, so it only makes system calls and does not allocate.
[[noreturn]] void become(char* const* arguments, const StartOptions& options, pid_t parent,
                         int report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int error = 0;
  if (getppid() != parent) _exit(127);
  if (!options.cgroup_procs.empty()) {
    const int fd = open(options.cgroup_procs.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1) error = errno;
  }
  const int input = options.standard_input >= 0 ? options.standard_input
                                                : open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (error == 0 && (input < 0 || dup2(input, 0) < 0)) error = errno;
  if (error == 0 && options.standard_output >= 0 && dup2(options.standard_output, 1) < 0)
    error = errno;
  if (error == 0 && options.standard_error >= 0 && dup2(options.standard_error, 2) < 0)
    error = errno;
  if (error == 0) {
    // Ctrl-C at a terminal goes to the whole group, but the starter ends its children itself.
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    execv(arguments[0], arguments);
    error = errno;
  }
  (void)!write(report, &error, sizeof error);
  _exit(127);
}
}  // namespace

Process::Process(const std::vector<std::string>& arguments, const StartOptions& options) {
  std::vector<char*> raw;
  for (const std::string& one : arguments) raw.push_back(const_cast<char*>(one.c_str()));
  raw.push_back(nullptr);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0)
    throw std::runtime_error(fmt::format("pipe: {}", strerror(errno)));
  const pid_t self = getpid();
  pid_ = fork();
  if (pid_ == 0) become(raw.data(), options, self, report[1]);
  const int fork_error = errno;
  close(report[1]);
  int error = 0;
  ssize_t got = 0;
  if (pid_ > 0) {
    do got = read(report[0], &error, sizeof error);
    while (got < 0 && errno == EINTR);
  }
  close(report[0]);
  if (pid_ < 0) throw std::runtime_error(fmt::format("fork: {}", strerror(fork_error)));
  if (got == sizeof error) {
    kill_and_wait();
    throw std::runtime_error(
        fmt::format("{} cannot be started: {}", arguments[0], strerror(error)));
  }
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), ended_(other.ended_), status_(other.status_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    kill_and_wait();
    pid_ = std::exchange(other.pid_, -1);
    ended_ = other.ended_;
    status_ = other.status_;
  }
  return *this;
}

bool Process::running() {
  if (pid_ <= 0 || ended_) return false;
  const pid_t got = waitpid(pid_, &status_, WNOHANG);
  if (got == pid_ || (got < 0 && errno == ECHILD)) ended_ = true;
  return !ended_;
}

bool Process::wait(double seconds) {
  for (double waited = 0; running(); waited += 0.01) {
    if (waited >= seconds) return false;
    usleep(10'000);
  }
  return true;
}

void Process::stop(double seconds) {
  if (running()) kill(pid_, SIGTERM);
  if (!wait(seconds)) kill_and_wait();
}

void Process::kill_and_wait() {
  if (!running()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {}
  ended_ = true;
}

std::string Process::how_it_ended() const {
  if (!ended_) return {};
  if (WIFSIGNALED(status_))
    return fmt::format("signal {} ({})", WTERMSIG(status_), strsignal(WTERMSIG(status_)));
  return fmt::format("exit code {}", WEXITSTATUS(status_));
}

std::string find_in_path(const std::string& name) {
  const char* set = getenv("PATH");
  std::string path = set != nullptr ? set : "";
  path += ":/usr/bin:/usr/sbin:/usr/local/bin";
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    const std::string candidate = path.substr(at, end - at) + "/" + name;
    if (candidate[0] == '/' && access(candidate.c_str(), X_OK) == 0) return candidate;
    at = end + 1;
  }
  return {};
}

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = [](int) { g_interrupted = 1; };
  sigemptyset(&action.sa_mask);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP})
    sigaction(signal_number, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

bool interrupted() { return g_interrupted != 0; }

}  // namespace lunar::tools
