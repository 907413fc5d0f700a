// SPDX-License-Identifier: Apache-2.0
// NUMA topology as sysfs has it, read once before threads; node_of_cpu is a table look-up afterwards. Not by libnuma: a server that loads
// modules with RTLD_DEEPBIND (Valkey) would give such a library another free than the malloc that libc uses.
#include "sys/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/format.h"
#include "sys/file.h"

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

// Numbers of a list such as "0-3,8".
template <class See>
void each_of_list(const char* text, See see) {
  auto number = [&] {
    int value = 0;
    for (; *text >= '0' && *text <= '9' && value < 100000; ++text) value = value * 10 + (*text - '0');
    return value;
  };
  while (*text >= '0' && *text <= '9') {
    const int first = number();
    int last = first;
    if (*text == '-') ++text, last = number();
    for (int i = first; i <= last; ++i) see(i);
    if (*text == ',') ++text;
  }
}

Topology read_topology() {
  Topology topology;
  if (g_pretend > 1) {
    topology.nodes = g_pretend > kMaxNodes ? kMaxNodes : g_pretend;
    for (int& node : topology.kernel_node) node = -1;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) topology.node_of[cpu] = static_cast<unsigned char>(cpu % topology.nodes);
    return topology;
  }
  char nodes[4096];
  if (read_text("/sys/devices/system/node/online", nodes, sizeof nodes) < 0) return topology;
  int count = 0;
  each_of_list(nodes, [&](int node) {
    char path[64], cpus[4096];
    format_to(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    if (count == kMaxNodes || read_text(path, cpus, sizeof cpus) < 0) return;
    bool any = false;
    each_of_list(cpus, [&](int cpu) {
      any = true;
      if (cpu < kMaxCpus) topology.node_of[cpu] = static_cast<unsigned char>(count);
    });
    if (any) topology.kernel_node[count++] = node;
  });
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
  (void)syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask, sizeof mask * 8, 0);
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
