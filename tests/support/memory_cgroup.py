# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups of tests."""
import os
import signal
import time

import pytest

PREFIX = "lunar-test-group-"


class Cgroup:
    """A memory cgroup: version 1's own hierarchy, or version 2's with the memory controller."""

    def __init__(self):
        for root, version in (("/sys/fs/cgroup/memory", 1), ("/sys/fs/cgroup", 2)):
            known = os.path.join(root, "memory.stat" if version == 1 else "cgroup.controllers")
            if not os.path.exists(known) or (version == 2
                                             and "memory" not in open(known).read().split()):
                continue
            try:
                self.sweep(root)
                # as systemd has it; elsewhere the root's children do not count their memory
                if version == 2:
                    with open(os.path.join(root, "cgroup.subtree_control"), "w") as control:
                        control.write("+memory")
                self.path = os.path.join(root, PREFIX + str(os.getpid()))
                os.mkdir(self.path)
            except OSError as error:
                self.refusal = f"{root}: {error.strerror}"
                continue
            self.key = b"\ntotal_rss " if version == 1 else b"anon "
            self.procs = os.path.join(self.path, "cgroup.procs")
            self.stat = os.open(os.path.join(self.path, "memory.stat"), os.O_RDONLY)
            total = "memory.usage_in_bytes" if version == 1 else "memory.current"
            self.limits = [os.path.join(self.path, name) for name in (
                ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version == 1
                else ("memory.max", "memory.swap.max"))]
            self.total = os.open(os.path.join(self.path, total), os.O_RDONLY)
            return
        pytest.skip("memory-cgroup: " + str(getattr(self, "refusal",
                                                    "no memory controller is mounted")))

    @staticmethod
    def sweep(root):
        """Removes the groups that a killed run has left."""
        for name in os.listdir(root):
            if name.startswith(PREFIX) and not os.path.exists("/proc/" + name[len(PREFIX):]):
                try:
                    os.rmdir(os.path.join(root, name))
                except OSError:
                    pass

    def anonymous(self):
        before = int(os.pread(self.total, 64, 0))
        text = b"\n" + os.pread(self.stat, 8192, 0)
        after = int(os.pread(self.total, 64, 0))
        at = text.index(self.key) + len(self.key)
        return min(int(text[at:text.index(b"\n", at)]), max(before, after))

    def limit(self, size):
        """Memory beyond the limit, with page cache and the kernel's, ends a process; no swap."""
        for path in self.limits:
            if os.path.exists(path):   # else the kernel does not count swap
                with open(path, "w", encoding="utf-8") as file:
                    file.write("0" if "swap.max" in path else str(size))

    def processes(self):
        with open(self.procs) as file:
            return [int(line) for line in file.read().split()]

    def end(self):
        for _ in range(100):
            left = self.processes()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.05)
        os.close(self.stat)
        os.close(self.total)
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)
