// SPDX-License-Identifier: Apache-2.0
// See start.h.
#include "heap/start.h"

#include <errno.h>
#include <fcntl.h>

#include "pager/pager.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar {

int start_log(const Options& options, ErrorText* why) {
  int fd = -1;
  if (options.log_file != nullptr && options.log_file[0] != '\0') {
    // O_NONBLOCK: does not wait for a FIFO, neither now nor when it is full.
    fd = sys::open_file(options.log_file, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0644);
    if (fd < 0)
      return why->set(fd, "log file %s: %s; name one that can be written", options.log_file,
                      errno_text(fd));
    fd = sys::move_high(fd);  // programs and shells give the low numbers a meaning
  }
  log_configure(log_level_from(options.log), fd);
  return 0;
}

int start_tier(const Options& options, ErrorText* why) {
  if (pager_created()) return why->set(-EEXIST, "the tier is started already");
  int rc = start_log(options, why);
  if (rc < 0) return rc;
  return pager_create(options, why);
}

}  // namespace lunar
