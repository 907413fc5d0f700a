// SPDX-License-Identifier: Apache-2.0
// former_lun FILE: makes of an empty file a LUN of 256 MiB that a former process tree had to
// itself: libblkid looks at it whenever it is opened.
// Threading: one thread.
#include <fcntl.h>
#include <unistd.h>

#include "superpipe/signature.h"

int main(int argc, char** argv) {
  const int file = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
  return file >= 0 && fallocate(file, 0, 0, 256 << 20) == 0 && lunar::signature_write(file, 0) == 0
             ? 0
             : 1;
}
