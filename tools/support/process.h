// SPDX-License-Identifier: Apache-2.0
// A child process that cannot outlive its starter, started inside a cgroup, with its input and
// output where the caller wants them; and the signals that ask a tool to stop.
// Threading: start and stop from one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace lunar::tools {

struct StartOptions {
  int standard_input = -1;  // descriptors to use, -1: as ours (input: /dev/null)
  int standard_output = -1;
  int standard_error = -1;
  std::string cgroup_procs;  // "" or the file to write "0" to
};

class Process {
 public:
  Process() = default;
  // Throws std::runtime_error when it cannot be forked or the program cannot be executed.
  Process(const std::vector<std::string>& arguments, const StartOptions& options);
  ~Process() { kill_and_wait(); }
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  pid_t pid() const { return pid_; }
  bool running();  // reaps when it has ended
  // Waits up to `seconds` for it to end by itself. True when it ended.
  bool wait(double seconds);
  // SIGTERM, then SIGKILL after `seconds`.
  void stop(double seconds);
  void kill_and_wait();
  std::string how_it_ended() const;  // "exit code 1", "signal 9"; "" while running

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// The program of that name in PATH or the usual places, "" when there is none.
std::string find_in_path(const std::string& name);

struct Interrupted {};  // thrown by check_interrupted, so that destructors put everything back

// SIGINT, SIGTERM and SIGHUP set a flag; blocking calls return EINTR. Call once.
void catch_interrupts();
bool interrupted();
inline void check_interrupted() {
  if (interrupted()) throw Interrupted{};
}

}  // namespace lunar::tools
