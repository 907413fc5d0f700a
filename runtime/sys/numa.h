// SPDX-License-Identifier: Apache-2.0
// NUMA topology, by libnuma (loaded only where there is more than one node). A host without NUMA
// has one node, 0. Threading: called at start-up only, except node_of_cpu: any thread, also on the
// fault path.
#pragma once
#include <cstddef>

namespace lunar::sys {

int numa_nodes();          // nodes with CPUs this process may use, >= 1
int node_of_cpu(int cpu);  // dense index 0..numa_nodes()-1; table look-up
// preferred, not strict; no-op with one node
void bind_to_node(void* address, size_t bytes, int node);

// calling thread onto the CPUs of one node; 0 or -errno
[[nodiscard]] int set_affinity_node(int node);
// For tests: pretend `nodes` nodes, CPU c on node c % nodes; memory is bound nowhere. Before the
// first other call.
void pretend_nodes(int nodes);

}  // namespace lunar::sys
