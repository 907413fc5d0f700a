// SPDX-License-Identifier: Apache-2.0
// One look at a client's input, in two phases: pass() goes up to the first command that lacks
// something, and look_ahead() adds the pages that later commands lack.
//
//   commands that lack nothing │ input that waits
//   `good` bytes               │ kCold: a command whose pages are `missing`, and all after it
//                              │ kPart: the start of a command
//
// Threading: the main thread, inside read(). Allocates no more than client_rights.h and
// user_share.h do.
#pragma once
#include "gate_inside.h"

namespace lunar::redis {

class Look {
 public:
  enum class Time : uint8_t {
    kFirst,  // nothing of the input has been held
    kAgain,
    kLast,  // the first command has waited long enough: it goes on, even if it lacks pages
  };
  enum class Waits : uint8_t { kNothing, kPart, kCold };

  // buffer: the server's buffer, into which it is about to read.
  Look(int fd, const void* buffer);
  // Whether the descriptor is that of a client whose input can be scanned. If not, all input goes
  // on.
  bool possible() const { return client_ != nullptr; }
  // Scans the `bytes` in the buffer.
  void scan(size_t bytes, Time time);
  // Makes all input go on.
  void pass_rest();

  size_t good = 0;
  Waits waits = Waits::kNothing;
  // for kCold; empty: the look ended early
  NonresidentRanges missing;
  // of the first cold command; the caller sets it before the scan if an earlier look has one
  LookupCursor cursor;
  Share* share = nullptr;  // of the client's user; nullptr: no memory

 private:
  enum class Next : uint8_t {
    kCommand,        // the command is in Gate::command, and at_ is after it
    kPart,           // there is only its start
    kColdArguments,  // the server's part of it is not all in DRAM
    kOpaque,         // neither it nor the rest is for the gate
  };
  Next next();
  void pass();
  void look_ahead();
  bool look_up(LookupCursor* cursor);
  void follow();
  void count(bool cold, LookupCursor* cursor) const;

  const ClientView* client_ = nullptr;
  Progress progress_;  // of the server in the client's input: positions count from its text
  size_t bytes_ = 0, at_ = 0;
  Time time_ = Time::kFirst;
  Rights rights_;
  int database_ = 0;                   // at at_
  const CommandKeys* keys_ = nullptr;  // of the command before at_
};

}  // namespace lunar::redis
