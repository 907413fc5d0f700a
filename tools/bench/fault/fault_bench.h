// SPDX-License-Identifier: Apache-2.0
// `lunar bench fault`, see fault_bench.cpp. 0: measured; 1: failed (and said why); 2: bad usage; 130: interrupted.
#pragma once

namespace lunar::tools {
int fault_bench_main(int argc, char** argv);
}
