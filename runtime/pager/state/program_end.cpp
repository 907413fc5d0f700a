// SPDX-License-Identifier: Apache-2.0
// The pipe that ends with the program's last thread. See program_end.h.
#include "pager/state/program_end.h"

#include <errno.h>

#include "sys/file.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar {
namespace {

struct ProgramEnd {
  int reading = -1, writing = -1;
  sys::FileIdentity pipe;  // the program may have put something else in its place
};
constinit ProgramEnd g_end;

}  // namespace

int program_end_prepare() {
  constexpr size_t kSmallest = 4096;
  const sys::MakingDescriptor making;
  int ends[2];
  if (const int rc = sys::make_pipe(ends, kSmallest); rc < 0) return rc;
  for (int& end : ends) end = sys::move_high(end);
  g_end = {ends[0], ends[1], sys::file_identity(ends[1])};
  sys::note_own_descriptor(g_end.writing, true);
  return 0;
}

void program_end_close_reading() { sys::close_file(g_end.reading); }

int program_end_descriptor() { return g_end.reading; }

bool program_end_keeps(int fd) {
  return fd >= 0 && fd == g_end.writing && sys::is_file(fd, g_end.pipe);
}

void program_end_forget() {
  if (program_end_keeps(g_end.writing)) sys::close_file(g_end.writing);
  sys::note_own_descriptor(g_end.writing, false);
  g_end = {};
}

bool program_has_threads() {
  const int others = sys::other_live_threads();
  return others < 0 || others >= sys::service_threads();  // the caller is one of the latter
}

}  // namespace lunar
