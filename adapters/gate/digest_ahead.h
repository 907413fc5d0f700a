// SPDX-License-Identifier: Apache-2.0
// Reads ahead of DEBUG DIGEST, which goes through all databases as a save does (save_ahead.h), but calls nothing while
// it does so: its beginning and its end have to be noticed in another way.
//
//   read(): "DEBUG DIGEST"    put off to the next round of events, which ends with an event of the gate (ahead.h)
//   that round, read()        the command goes to the server, and nothing of what its client sent behind it
//   strcasecmp(, "digest")    DEBUG compares its word: evictions are done, the walk is next            ──► starts
//   malloc()                  each time the walk waits until it is behind the reader
//   the next read of any descriptor, the gate's event, or the next wait: before anything else     ──► stopped and
//                             can change what is read                                                      joined
//
// The calls are redirected (program_got.h) for that command alone. A digest inside a transaction or script is not
// read ahead.
//
// Threading: the main thread. Allocates nothing, except in the loader.
#pragma once
#include <utility>

#include "resp.h"

namespace lunar::redis {

class DigestAhead {
 public:
  static bool is_digest(const Command& command);
  // Whether there are rounds that end with an event of the gate, and the call can be redirected.
  bool possible() const;

  void defer() { deferred_ = true; }
  bool is_deferred() const { return deferred_; }
  void round_begins() { in_its_round_ = std::exchange(deferred_, false); }
  bool in_its_round() const { return in_its_round_; }
  void round_ends() {
    in_its_round_ = false;
    over();
  }

  // The read at hand returns the command.
  void goes() { goes_ = true; }
  void does_not_go() { goes_ = false; }  // or not alone
  // It returns now.
  void watch() {
    if (__builtin_expect(goes_, 0)) redirect();
  }
  // Before anything is done that is not part of a digest.
  void over() {
    if (__builtin_expect(watched_, 0)) stop();
  }

 private:
  void redirect();
  void stop();
  bool deferred_ = false, in_its_round_ = false, goes_ = false;
  bool watched_ = false;
};

}  // namespace lunar::redis
