// SPDX-License-Identifier: Apache-2.0
// NUMA topology by libnuma, read once before threads; node_of_cpu is a table look-up afterwards. If
// there is more than one node, dlopen loads libnuma. As a dependency of a module that a server
// loads with RTLD_DEEPBIND (Valkey), libnuma would call a free that does not match the malloc that
// libc uses for it.
#include "sys/numa.h"

#include <dlfcn.h>
#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "base/host_guard.h"
#include "sys/file.h"
#include "sys/log.h"

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

struct Libnuma {
  decltype(&::numa_available) available;
  decltype(&::numa_num_configured_cpus) configured_cpus;
  decltype(&::numa_node_of_cpu) node_of_cpu;
  decltype(&::mbind) bind;
};
constinit Libnuma g_libnuma{};

template <class F>
bool look_up(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

bool load_libnuma() {
  char online[16];
  const int n = read_text("/sys/devices/system/node/online", online, sizeof online);
  if (n < 0 || (online[0] == '0' && (online[1] == '\n' || online[1] == '\0')))
    return false;   // one node
  HostGuard guard;  // dlopen and libnuma allocate
  void* library = dlopen("libnuma.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr && look_up(library, "numa_available", &g_libnuma.available) &&
      look_up(library, "numa_num_configured_cpus", &g_libnuma.configured_cpus) &&
      look_up(library, "numa_node_of_cpu", &g_libnuma.node_of_cpu) &&
      look_up(library, "mbind", &g_libnuma.bind))
    return g_libnuma.available() >= 0;
  log_warning(
      "NUMA: this host's nodes are treated as one, because libnuma.so.1 cannot be loaded; install "
      "libnuma1");
  return false;
}

Topology read_topology() {
  Topology topology;
  if (g_pretend > 1) {
    topology.nodes = std::min(g_pretend, kMaxNodes);
    for (int& node : topology.kernel_node) node = -1;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu)
      topology.node_of[cpu] = static_cast<unsigned char>(cpu % topology.nodes);
    return topology;
  }
  if (!load_libnuma()) return topology;
  HostGuard guard;
  int dense[1024];
  for (int& node : dense) node = -1;
  int count = 0;
  int cpus = g_libnuma.configured_cpus();
  for (int cpu = 0; cpu < cpus && cpu < kMaxCpus; ++cpu) {
    int node = g_libnuma.node_of_cpu(cpu);
    if (node < 0 || node >= 1024) continue;
    if (dense[node] < 0 && count < kMaxNodes) {
      topology.kernel_node[count] = node;
      dense[node] = count++;
    }
    topology.node_of[cpu] = static_cast<unsigned char>(std::max(dense[node], 0));
  }
  topology.nodes = std::max(count, 1);
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
  (void)g_libnuma.bind(address, bytes, MPOL_PREFERRED, mask, sizeof mask * 8, 0);
}

int set_affinity_node(int node) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  int count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (topology().node_of[cpu] != node || cpu >= static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)))
      continue;
    CPU_SET(cpu, &cpus);
    ++count;
  }
  if (count == 0) return -EINVAL;
  return sched_setaffinity(0, sizeof cpus, &cpus) == 0 ? 0 : -errno;
}

void pretend_nodes(int nodes) { g_pretend = nodes; }

}  // namespace lunar::sys
