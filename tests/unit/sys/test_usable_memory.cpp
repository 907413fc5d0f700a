// SPDX-License-Identifier: Apache-2.0
// The memory controller in use, and the memory that the groups of a process leave it. The test
// makes files in the layout of /proc and /sys/fs/cgroup.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/units.h"
#include "sys/usable_memory.h"
#include "tests/catch.h"

namespace {

using namespace lunar;

constexpr const char* kNoLimitInVersion1 = "9223372036854771712";

// A process in /proc, and what is mounted there.
class Tree {
 public:
  Tree() {
    char path[] = "/tmp/lunar-test-XXXXXX";
    root_ = mkdtemp(path);
    write("mountinfo", "");
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::app) << text;
  }
  void mount(const std::string& name, const std::string& root, const std::string& type) const {
    write("mountinfo", "31 25 0:27 " + root + " " + path(name) + " rw shared:9 - " + type + "\n");
    std::filesystem::create_directories(path(name));
  }
  void group1(const std::string& name, const std::string& limit, uint64_t usage,
              uint64_t cache = 0) const {
    write(name + "/memory.limit_in_bytes", limit + "\n");
    write(name + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(name + "/memory.stat", "cache 7\nactive_file 999999999\ntotal_inactive_anon 5000\n");
    write(name + "/memory.stat", "total_active_file " + std::to_string(cache / 4) +
                                     "\ntotal_inactive_file " + std::to_string(cache / 4 * 3) +
                                     "\n");
  }
  void group2(const std::string& name, const std::string& limit, uint64_t usage,
              uint64_t cache = 0) const {
    write(name + "/memory.max", limit + "\n");
    write(name + "/memory.current", std::to_string(usage) + "\n");
    write(name + "/memory.stat", "anon 5\nactive_file " + std::to_string(cache / 4) +
                                     "\ninactive_file " + std::to_string(cache / 4 * 3) + "\n");
  }
  std::string path(const std::string& name) const { return root_ + "/" + name; }
  sys::MemoryHierarchy hierarchy() const { return sys::memory_hierarchy(root_.c_str()); }
  sys::UsableMemory usable() const { return sys::usable_memory(root_.c_str()); }

 private:
  std::string root_;
};

std::string bytes_of(uint64_t bytes) { return std::to_string(bytes); }

}  // namespace

TEST_CASE("memory controller: version 1 next to an empty version 2") {
  const Tree tree;
  tree.mount("unified", "/", "cgroup2 cgroup2 rw");
  tree.mount("cpu", "/", "cgroup cgroup rw,cpu");
  tree.mount("memory", "/", "cgroup cgroup rw,memory");
  tree.write("unified/cgroup.controllers", "\n");
  CHECK(tree.hierarchy().version == 1);
  CHECK(tree.hierarchy().mount == tree.path("memory"));
}

TEST_CASE("memory controller: version 2") {
  const Tree tree;
  tree.mount("top", "/", "cgroup2 cgroup2 rw,nsdelegate");
  CHECK(tree.hierarchy().version == 0);
  tree.write("top/cgroup.controllers", "cpuset cpu io memory pids\n");
  CHECK(tree.hierarchy().version == 2);
  CHECK(tree.hierarchy().mount == tree.path("top"));
}

TEST_CASE("memory controller: none") {
  const Tree tree;
  CHECK(tree.hierarchy().version == 0);
  tree.mount("", "/", "ext4 /dev/vda rw");
  tree.mount("cpu", "/", "cgroup cgroup rw,cpu,memory_of_another_name");
  tree.write("mountinfo", "a line - cgroup\n - cgroup cgroup rw,memory\n\n");
  CHECK(tree.hierarchy().version == 0);
  CHECK(tree.usable().limit_bytes == UINT64_MAX);
  CHECK(tree.usable().bytes > 0);
}

TEST_CASE("usable memory: version 1, the least of all levels, page cache is usable") {
  const Tree tree;
  tree.mount("memory", "/", "cgroup cgroup rw,memory");
  tree.write("cgroup", "9:name=systemd:/other\n4:cpu,memory:/a/b\n0::/\n");
  tree.group1("memory", kNoLimitInVersion1, 900 * kMiB);
  tree.group1("memory/a", bytes_of(64 * kMiB), 60 * kMiB, 16 * kMiB);
  tree.group1("memory/a/b", bytes_of(48 * kMiB), 8 * kMiB, 4 * kMiB);
  const sys::UsableMemory usable = tree.usable();
  CHECK(usable.cgroup_version == 1);
  CHECK(usable.bytes == 20 * kMiB);        // of a
  CHECK(usable.limit_bytes == 48 * kMiB);  // of b
  CHECK(usable.used_bytes == 4 * kMiB);
  CHECK(usable.limit_file == tree.path("memory/a/b/memory.limit_in_bytes"));
}

TEST_CASE("usable memory: version 2, a group without a limit") {
  const Tree tree;
  tree.mount("top", "/", "cgroup2 cgroup2 rw");
  tree.write("top/cgroup.controllers", "memory\n");
  tree.write("cgroup", "0::/a/b\n");
  tree.group2("top/a/b", "max", 3 * kMiB);
  SECTION("and none above") {
    CHECK(tree.usable().cgroup_version == 2);
    CHECK(tree.usable().limit_bytes == UINT64_MAX);
  }
  SECTION("but the one above") {
    tree.group2("top/a", bytes_of(32 * kMiB), 30 * kMiB, 8 * kMiB);
    CHECK(tree.usable().bytes == 10 * kMiB);
  }
  SECTION("and a full one above") {
    tree.group2("top/a", bytes_of(32 * kMiB), 33 * kMiB);
    CHECK(tree.usable().bytes == 0);
    CHECK(tree.usable().limit_bytes == 32 * kMiB);
  }
}

TEST_CASE("usable memory: a container sees its own group as the root of the mount") {
  const Tree tree;
  tree.mount("memory", "/docker/abc", "cgroup cgroup rw,memory");
  tree.group1("memory", bytes_of(40 * kMiB), 8 * kMiB);
  tree.group1("memory/sub", bytes_of(20 * kMiB), 0);
  SECTION("itself") {
    tree.write("cgroup", "4:memory:/docker/abc\n");
    CHECK(tree.usable().bytes == 32 * kMiB);
  }
  SECTION("a group below it") {
    tree.write("cgroup", "4:memory:/docker/abc/sub\n");
    CHECK(tree.usable().bytes == 20 * kMiB);
  }
  SECTION("a group that cannot be seen, with a name that begins alike") {
    tree.write("cgroup", "4:memory:/docker/abcd/sub\n");
    CHECK(tree.usable().bytes == 32 * kMiB);
  }
}
