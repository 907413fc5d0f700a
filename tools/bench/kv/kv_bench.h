// SPDX-License-Identifier: Apache-2.0
// `lunar bench kv`: Lunar's key/value store against RocksDB, LMDB and the bare disk.
#pragma once
namespace lunar::tools {
int kv_bench_main(int argc, char** argv);
}  // namespace lunar::tools
