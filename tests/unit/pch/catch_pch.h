// SPDX-License-Identifier: Apache-2.0
// Compiled once for all unit tests.
#include "tests/catch.h"
