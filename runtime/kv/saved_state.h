// SPDX-License-Identifier: Apache-2.0
// The saved state of a store that is kept: reading and writing its parts. The form: store_format.h.
// Threading: one thread. Blocks for the device.
#pragma once
#include "base/error.h"
#include "kv/record_log.h"
#include "kv/store_format.h"

namespace lunar::kv {

// The sound one of the two. -ENOENT: there is none; -EPROTONOSUPPORT: of a later version; -EBADMSG; -errno of the
// device.
[[nodiscard]] int superblock_read(Device* device, media::Superblock* out, ErrorText* why);

// Whether the copy at `at` is that superblock; else *fault says what is wrong.
[[nodiscard]] bool superblock_is_copy(Device* device, uint64_t at, const media::Superblock& super, const char** fault);

// Appends to a chain of links in segments of the log, which it takes. Pre: the cleaner's frame is the caller's.
class StateWriter {
 public:
  StateWriter(Log& log, uint64_t life) : log_(log), life_(life), frame_(log.cleaners_frame()) {}
  [[nodiscard]] int put(const void* data, uint64_t bytes);
  [[nodiscard]] int finish();  // all of it is written, not flushed
  uint64_t first() const { return first_; }
  uint64_t bytes() const { return bytes_; }

 private:
  int write_link(uint64_t next);
  Log& log_;
  const uint64_t life_;
  char* frame_;
  uint64_t first_ = 0, segment_ = 0, number_ = 0, fill_ = 0, bytes_ = 0;  // segments + 1
};

// Reads it again. -EBADMSG: it is not what was written.
class StateReader {
 public:
  StateReader(Log& log, const media::Root& root)
      : log_(log), life_(root.life), left_(root.bytes), frame_(log.cleaners_frame()), next_(root.first) {}
  [[nodiscard]] int take(void* data, uint64_t bytes);
  bool at_end() const { return left_ == 0; }
  // The link that was read last: its number, and the segment that it lies in, or should.
  uint64_t part() const { return number_; }
  uint64_t segment() const { return segment_; }

 private:
  int read_link();
  Log& log_;
  const uint64_t life_;
  uint64_t left_;
  char* frame_;
  uint64_t next_, segment_ = 0, number_ = 0, at_ = 0, end_ = 0;
};

}  // namespace lunar::kv
