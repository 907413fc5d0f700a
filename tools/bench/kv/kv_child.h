// SPDX-License-Identifier: Apache-2.0
// `lunar bench kv-child`: one store of `lunar bench kv`, in a process of its own.
#pragma once
namespace lunar::tools {
int kv_child_main(int argc, char** argv);
}  // namespace lunar::tools
