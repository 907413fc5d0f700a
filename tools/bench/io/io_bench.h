// SPDX-License-Identifier: Apache-2.0
// `lunar bench superpipe`, `stripe` and `window`. 0: measured; 1: failed (and said why); 2: bad usage; 130:
// interrupted.
#pragma once

namespace lunar::tools {
int superpipe_bench_main(int argc, char** argv);  // superpipe_bench.cpp
int stripe_bench_main(int argc, char** argv);     // stripe_bench.cpp
int window_bench_main(int argc, char** argv);     // window_bench.cpp
}  // namespace lunar::tools
