// SPDX-License-Identifier: Apache-2.0
// See trust.h.
#include "config/trust.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "sys/file.h"

namespace lunar {

bool environment_trusted() { return getauxval(AT_SECURE) == 0; }

const char* environment_value(const char* name) {
  return environment_trusted() ? getenv(name) : nullptr;
}

int config_file_trusted(int fd, const char* path, ErrorText* why) {
  struct stat status;
  if (int rc = sys::file_status(fd, &status); rc < 0)
    return why->set(rc, "config file %.300s: %s", path, errno_text(rc));
  if (status.st_uid != 0 && status.st_uid != geteuid())
    return why->set(-EPERM,
                    "config file %.300s: belongs to user %u, neither root nor the user of this "
                    "program (%u); chown it",
                    path, static_cast<unsigned>(status.st_uid), static_cast<unsigned>(geteuid()));
  if (S_ISREG(status.st_mode) && (status.st_mode & 022) != 0)
    return why->set(-EPERM, "config file %.300s: others may write to it; chmod go-w it", path);
  return 0;
}

}  // namespace lunar
