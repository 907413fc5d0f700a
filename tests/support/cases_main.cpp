// SPDX-License-Identifier: Apache-2.0
// main() of the programs of cases.h.
#include "tests/support/cases.h"

using namespace lunar_test;

int main(int argc, char** argv) {
  g_argc = argc;
  g_argv = argv;
  const bool only = g_cases != nullptr && g_cases->next == nullptr;
  for (const Case* one = g_cases; one != nullptr; one = one->next) {
    if (!only && (argc < 2 || strcmp(one->name, argv[1]) != 0)) continue;
    one->body();
    fflush(nullptr);
    return 0;
  }
  fprintf(stderr, "usage: %s CASE [OPTIONS], of\n", argv[0]);
  for (const Case* one = g_cases; one != nullptr; one = one->next)
    fprintf(stderr, "  %s\n", one->name);
  return 2;
}
