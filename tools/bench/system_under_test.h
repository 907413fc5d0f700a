// SPDX-License-Identifier: Apache-2.0
// The system under test as a bench sees it: a child process in a memory cgroup that makes one run
// on command; and the child's side. Threading: one thread. May not be used by runtime/ (it
// allocates).
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
    std::vector<std::string> arguments;  // of the child
    uint64_t limit_bytes = 0;
    bool swap = false;                  // its cgroup may swap
    std::optional<CgroupPlace> cgroup;  // none: no limit but its own
    std::string child = "child";        // the `lunar bench` command that it is
  };
  // Starts the child and waits until it is ready. Throws std::runtime_error with the child's
  // reason.
  SystemUnderTest(const Setup& setup, SetupJournal& journal);
  ~SystemUnderTest();
  SystemUnderTest(const SystemUnderTest&) = delete;
  SystemUnderTest& operator=(const SystemUnderTest&) = delete;

  const std::string& system() const { return system_; }
  // Sends one order and waits for its result, at most `seconds_max`. Throws std::runtime_error:
  // none, or "error".
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

// Carries out an order, whose first word is the verb; throws std::exception.
using OrderTaker = std::function<RunResult(const std::string& verb, std::istringstream& words)>;
// The main() of a child: what `open` gives takes the orders of standard input; one line on standard
// output says "ready", and one each the result, or "error TEXT", which ends it. The exit code.
int answer_orders(Flags& flags, int argc, char** argv, const std::function<OrderTaker()>& open);

}  // namespace lunar::tools
