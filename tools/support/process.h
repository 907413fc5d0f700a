// SPDX-License-Identifier: Apache-2.0
// A child process that cannot outlive its starter, with redirected input and output and an optional
// cgroup; and the signals that interrupt a tool.
// Threading: start and stop from one thread.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace lunar::tools {

struct StartOptions {
  int standard_input = -1;  // descriptors; -1: those of the starter (input: /dev/null)
  int standard_output = -1;
  int standard_error = -1;
  std::string cgroup_procs;  // the child writes "0" to this file; "": it does not
};

class Process {
 public:
  Process() = default;
  // Throws std::runtime_error if fork or exec fails.
  Process(const std::vector<std::string>& arguments, const StartOptions& options);
  ~Process() { kill_and_wait(); }
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  pid_t pid() const { return pid_; }
  bool running();  // reaps the child if it has ended
  // Waits up to `seconds` for the end of the child. True: it has ended.
  bool wait(double seconds);
  // Sends SIGTERM, then SIGKILL after `seconds`.
  void stop(double seconds);
  void kill_and_wait();
  std::string how_it_ended() const;  // "exit code 1", "signal 9"; "" while running

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// The path of a program in PATH or the usual directories; "" if there is none.
std::string find_in_path(const std::string& name);

struct Interrupted {};  // check_interrupted throws it, so that destructors undo all changes

// Makes SIGINT, SIGTERM and SIGHUP set a flag; blocking calls return EINTR then. Call once.
void catch_interrupts();
bool interrupted();
inline void check_interrupted() {
  if (interrupted()) throw Interrupted{};
}

}  // namespace lunar::tools
