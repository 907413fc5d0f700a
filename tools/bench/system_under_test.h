// SPDX-License-Identifier: Apache-2.0
// A system under test: a child process in a memory cgroup that makes one run per order; and the
// child's side of it.
// Threading: one thread.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tools/bench/run_result.h"
#include "tools/bench/setup_journal.h"
#include "tools/support/flags.h"
#include "tools/support/process.h"

namespace lunar::tools {

class SystemUnderTest {
 public:
  struct Setup {
    std::string system;                  // "lunar", "swap"
    std::vector<std::string> arguments;  // for the child
    uint64_t limit_bytes = 0;
    bool swap = false;                  // its cgroup may swap
    std::optional<CgroupPlace> cgroup;  // none: it has no cgroup
    std::string child = "fault-child";  // its word after `lunar bench`
  };
  // Starts the child and waits until it is ready. Throws std::runtime_error with the child's
  // reason.
  SystemUnderTest(const Setup& setup, SetupJournal& journal);
  ~SystemUnderTest();
  SystemUnderTest(const SystemUnderTest&) = delete;
  SystemUnderTest& operator=(const SystemUnderTest&) = delete;

  const std::string& system() const { return system_; }
  // Sends one order and waits for its result. Throws std::runtime_error after `seconds_max`, or if
  // the child answers "error TEXT" or ends.
  RunResult order(const std::string& line, double seconds_max);
  uint64_t peak_bytes() const { return cgroup_ ? cgroup_->group.peak_bytes() : 0; }

 private:
  void start(const Setup& setup);
  void end();
  std::string read_line(double seconds_max);
  std::string system_;
  SetupJournal& journal_;
  std::optional<RecordedCgroup> cgroup_;
  Process process_;
  int to_child_ = -1, from_child_ = -1;
  std::string pending_;
};

// Executes an order, whose first word is the verb. Throws std::exception.
using OrderTaker = std::function<RunResult(const std::string& verb, std::istringstream& words)>;
// The main() of a child. `open` returns the function that executes the orders of standard input.
// The child prints "ready", then one result per order, or "error TEXT", after which it ends.
// Returns the exit code.
int answer_orders(Flags& flags, int argc, char** argv, const std::function<OrderTaker()>& open);

}  // namespace lunar::tools
