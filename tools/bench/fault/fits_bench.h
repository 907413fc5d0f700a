// SPDX-License-Identifier: Apache-2.0
// `lunar bench fits`, see fits_bench.cpp. 0: measured; 1: failed (and said why); 2: bad usage; 130: interrupted.
#pragma once

namespace lunar::tools {
int fits_bench_main(int argc, char** argv);
int fits_child_main(int argc, char** argv);  // the pointer chase that it runs: MIB STEPS
}  // namespace lunar::tools
