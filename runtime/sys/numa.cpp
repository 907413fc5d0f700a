// SPDX-License-Identifier: Apache-2.0
// NUMA topology by libnuma, read once before threads; node_of_cpu is a table look-up afterwards.
#include "sys/numa.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <unistd.h>

#include "base/host_guard.h"
#include "sys/mem.h"

namespace lunar::sys {
namespace {

constexpr int kMaxCpus = 4096;
constexpr int kMaxNodes = 64;

struct Topology {
  int nodes = 1;
  int kernel_node[kMaxNodes] = {};
  unsigned char node_of[kMaxCpus] = {};
};

int g_pretend = 0;

Topology read_topology() {
  HostGuard guard;   // libnuma allocates
  Topology topology;
  if (g_pretend > 1) {
    topology.nodes = g_pretend > kMaxNodes ? kMaxNodes : g_pretend;
    for (int& node : topology.kernel_node) node = -1;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) topology.node_of[cpu] = static_cast<unsigned char>(cpu % topology.nodes);
    return topology;
  }
  if (numa_available() < 0) return topology;
  int dense[1024];
  for (int& node : dense) node = -1;
  int count = 0;
  int cpus = numa_num_configured_cpus();
  for (int cpu = 0; cpu < cpus && cpu < kMaxCpus; ++cpu) {
    int node = numa_node_of_cpu(cpu);
    if (node < 0 || node >= 1024) continue;
    if (dense[node] < 0 && count < kMaxNodes) {
      topology.kernel_node[count] = node;
      dense[node] = count++;
    }
    topology.node_of[cpu] = static_cast<unsigned char>(dense[node] < 0 ? 0 : dense[node]);
  }
  topology.nodes = count > 0 ? count : 1;
  return topology;
}

const Topology& topology() {
  static const Topology instance = read_topology();
  return instance;
}

}  // namespace

int numa_nodes() { return topology().nodes; }

int node_of_cpu(int cpu) { return cpu < 0 || cpu >= kMaxCpus ? 0 : topology().node_of[cpu]; }

void bind_to_node(void* address, size_t bytes, int node) {
  if (numa_nodes() < 2 || node < 0 || node >= numa_nodes()) return;
  if (topology().kernel_node[node] < 0) return;
  unsigned long mask[16] = {};
  int kernel_node = topology().kernel_node[node];
  mask[kernel_node / 64] = 1UL << (kernel_node % 64);
  (void)mbind(address, bytes, MPOL_PREFERRED, mask, sizeof mask * 8, 0);
}

int set_affinity_node(int node) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  int count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (topology().node_of[cpu] != node || cpu >= static_cast<int>(sysconf(_SC_NPROCESSORS_CONF))) continue;
    CPU_SET(cpu, &cpus);
    ++count;
  }
  if (count == 0) return -EINVAL;
  return sched_setaffinity(0, sizeof cpus, &cpus) == 0 ? 0 : -errno;
}

void pretend_nodes(int nodes) { g_pretend = nodes; }

}  // namespace lunar::sys
