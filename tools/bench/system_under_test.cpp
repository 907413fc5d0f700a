// SPDX-License-Identifier: Apache-2.0
// See system_under_test.h. Two pipes connect the bench with the child.
#include "tools/bench/system_under_test.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace lunar::tools {

namespace {
constexpr double kStartSecondsMax = 60;

// The ends of the pipes for the child, until it has started.
struct ChildEnds {
  int in = -1, out = -1;
  ~ChildEnds() {
    if (in >= 0) close(in);
    if (out >= 0) close(out);
  }
};

// Returns the end for reading and the end for writing.
std::pair<int, int> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error(fmt::format("pipe: {}", strerror(errno)));
  return {ends[0], ends[1]};
}
}  // namespace

SystemUnderTest::SystemUnderTest(const Setup& setup, SetupJournal& journal)
    : system_(setup.system), journal_(journal) {
  try {
    start(setup);
  } catch (...) {
    end();
    throw;
  }
}

void SystemUnderTest::start(const Setup& setup) {
  StartOptions start;
  if (setup.cgroup) {
    cgroup_.emplace(journal_, *setup.cgroup, system_, setup.limit_bytes, setup.swap);
    start.cgroup_procs = cgroup_->group.procs_path();
  }
  {
    ChildEnds child;
    std::tie(child.in, to_child_) = make_pipe();
    std::tie(from_child_, child.out) = make_pipe();
    start.standard_input = child.in;
    start.standard_output = child.out;
    std::vector<std::string> arguments{"/proc/self/exe", setup.child};
    arguments.insert(arguments.end(), setup.arguments.begin(), setup.arguments.end());
    process_ = Process(arguments, start);
  }
  const std::string line = read_line(kStartSecondsMax);
  if (line != "ready")
    throw std::runtime_error(line.compare(0, 6, "error ") == 0 ? line.substr(6) : line);
}

SystemUnderTest::~SystemUnderTest() { end(); }

void SystemUnderTest::end() {
  if (to_child_ >= 0) close(to_child_);  // the child ends at the end of its input
  if (!interrupted()) (void)process_.wait(5);
  process_.kill_and_wait();
  if (from_child_ >= 0) close(from_child_);
  cgroup_.reset();
}

RunResult SystemUnderTest::order(const std::string& line, double seconds_max) {
  const std::string whole = line + "\n";
  if (write(to_child_, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) {
    process_.wait(1);
    throw std::runtime_error(
        fmt::format("{}: the child ended: {}", system_, process_.how_it_ended()));
  }
  RunResult run;
  const std::string answer = read_line(seconds_max);
  if (parse_run(answer, &run)) return run;
  throw std::runtime_error(
      fmt::format("{}: {}", system_, answer.substr(answer.compare(0, 6, "error ") == 0 ? 6 : 0)));
}

std::string SystemUnderTest::read_line(double seconds_max) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_max);
  for (;;) {
    if (const size_t at = pending_.find('\n'); at != std::string::npos) {
      const std::string line = pending_.substr(0, at);
      pending_.erase(0, at + 1);
      return line;
    }
    check_interrupted();
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error(fmt::format("{}: no answer within {:.0f} s", system_, seconds_max));
    }
    pollfd wait{from_child_, POLLIN, 0};
    if (poll(&wait, 1, 200) <= 0) continue;
    char chunk[4096];
    const ssize_t got = read(from_child_, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      process_.wait(1);
      const bool out_of_memory = cgroup_ && cgroup_->group.oom_kills() > 0;
      throw std::runtime_error(
          fmt::format("{}: the child ended: {}{}", system_, process_.how_it_ended(),
                      out_of_memory ? ", killed for passing its memory limit" : ""));
    }
    pending_.append(chunk, static_cast<size_t>(got));
  }
}

static void say(const std::string& line) {
  const std::string whole = line + "\n";
  if (write(STDOUT_FILENO, whole.data(), whole.size()) < 0) _exit(1);  // the bench is gone
}

int answer_orders(Flags& flags, int argc, char** argv, const std::function<OrderTaker()>& open) {
  try {
    flags.parse(argc, argv);
    const OrderTaker take = open();
    say("ready");
    for (std::string line, verb; std::getline(std::cin, line);) {
      std::istringstream words(line);
      words >> verb;
      say(format_run(take(verb, words)));
    }
  } catch (const FlagsError& error) {
    return flags.refuse(error);
  } catch (const std::exception& error) {
    say(std::string("error ") + error.what());
    return 1;
  }
  return 0;
}

}  // namespace lunar::tools
