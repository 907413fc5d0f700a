// SPDX-License-Identifier: Apache-2.0
// The benches, and the processes that they start. They return the exit code. 0: measured; 1:
// failed, with the reason on standard error; 2: wrong use; 130: interrupted.
#pragma once

namespace lunar::tools {

int fault_bench_main(int argc, char** argv);      // fault/fault_bench.cpp
int fits_bench_main(int argc, char** argv);       // fault/fits_bench.cpp
int redis_bench_main(int argc, char** argv);      // redis/redis_bench.cpp
int kv_bench_main(int argc, char** argv);         // kv/kv_bench.cpp
int superpipe_bench_main(int argc, char** argv);  // io/superpipe_bench.cpp

int fault_child_main(int argc, char** argv);  // touches memory (fault/fault_child.cpp)
int fits_child_main(int argc, char** argv);   // a pointer chase: MIB STEPS (fault/fits_bench.cpp)
int kv_child_main(int argc, char** argv);     // drives one store (kv/kv_child.cpp)

}  // namespace lunar::tools
