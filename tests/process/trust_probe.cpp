// SPDX-License-Identifier: Apache-2.0
// trust_probe: what a program takes from its environment, one `name value` a line. trust_test.py
// runs it with and without the setuid bit.
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "cblk/environment.h"
#include "config/options.h"

int main() {
  lunar::Options options;
  lunar::ErrorText why;
  const int rc = lunar::options_load(&options, environ, &why);
  const auto block = lunar::cblk::read_environment();
  lunar::cblk::trace_open();
  printf("secure %lu\nloaded %d\ndram %llu\nlog_file %s\nstats_file %s\ncache %llu\ntrace %d\n",
         getauxval(AT_SECURE), rc, static_cast<unsigned long long>(options.dram), options.log_file,
         options.stats_file, static_cast<unsigned long long>(block.cache_blocks),
         lunar::cblk::trace_active());
  return 0;
}
