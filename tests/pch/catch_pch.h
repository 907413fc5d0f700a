// SPDX-License-Identifier: Apache-2.0
// Compiled once for all tests of a program.
#include "tests/catch.h"
