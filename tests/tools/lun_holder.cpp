// SPDX-License-Identifier: Apache-2.0
// lun_holder DEVICE NAME: has a virtual LUN open until its standard input ends; an empty NAME makes
// a scratch one. For lun_cli_test.py.
// Threading: one thread.
#include <cstdio>

#include "lun/compose.h"

int main(int argc, char** argv) {
  using namespace lunar;
  if (argc != 3) return 2;
  ErrorText why;
  PhysicalLun* physical = nullptr;
  VirtualLun* lun = nullptr;
  VirtualOptions options;
  options.name = argv[2];
  if (!*argv[2]) options.size_bytes = 2 << 20;
  DeviceOptions as_it_is;
  as_it_is.scratch = false;
  Device* raw = nullptr;
  int error = raw_open(argv[1], as_it_is, Format::kNever, &raw, &why);
  if (error == 0) error = PhysicalLun::open(raw, Format::kNever, &physical, &why);
  if (error == 0) error = VirtualLun::open(physical, options, &lun, &why);
  if (error < 0) {
    fprintf(stderr, "lun_holder: %s\n", why.text);
    return 1;
  }
  puts("open");
  fflush(stdout);
  while (getchar() != EOF) {}
  lun->close();
  return 0;
}
