// SPDX-License-Identifier: Apache-2.0
// One look at what a client has sent, in two phases: pass() goes up to the first command that lacks
// something, and look_ahead() adds what those behind it lack.
//
//   commands that lack nothing │ what waits
//   `good` bytes               │ kCold: a command whose pages are `missing`, and all behind it
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
    kLast,  // its first command has waited enough: it goes on, whatever it lacks
  };
  enum class Waits : uint8_t { kNothing, kPart, kCold };

  // buffer: what the server is about to read into.
  Look(int fd, const void* buffer);
  // Whether it is the descriptor of a client whose input can be scanned. If not, all of it goes on.
  bool possible() const { return client_ != nullptr; }
  // Looks at the `bytes` in the buffer.
  void scan(size_t bytes, Time time);
  // Nothing waits, whatever it is.
  void pass_rest();

  size_t good = 0;
  Waits waits = Waits::kNothing;
  // Of kCold; nothing missing: the look was too short.
  NonresidentRanges missing;
  LookupCursor cursor;     // of the first cold command; set before the scan if there is one from an
                           // earlier look
  Share* share = nullptr;  // of the client's user; nullptr: no memory

 private:
  enum class Next : uint8_t {
    kCommand,        // the next one is in Gate::command, and at_ is behind it
    kPart,           // its start
    kColdArguments,  // what the server has of it is not all in DRAM
    kOpaque,         // it and what follows is not for the gate
  };
  Next next();
  void pass();
  void look_ahead();
  bool look_up(LookupCursor* cursor);
  void follow();
  void count(bool cold, LookupCursor* cursor) const;

  const ClientView* client_ = nullptr;
  Progress progress_;  // the server's in the client's input: positions count from its text
  size_t bytes_ = 0, at_ = 0;
  Time time_ = Time::kFirst;
  Rights rights_;
  int database_ = 0;                   // at at_
  const CommandKeys* keys_ = nullptr;  // of the command before at_
};

}  // namespace lunar::redis
