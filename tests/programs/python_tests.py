# SPDX-License-Identifier: Apache-2.0
"""`python_tests.py TEST`: one module of CPython's test suite, next to memory that does not fit into
the DRAM budget, so that what the tests use is evicted too. The closing table of `lunar run --stats`
is this process' alone: tests look at their children's errors. Children of multiprocessing that are
spawned import this file, and must not begin anew."""
import os
import sys


def run_module(name):
    os.environ.pop("LUNAR_STATS", None)
    ballast = [os.urandom(4096) for _ in range(24576)]   # 96 MiB
    from test.libregrtest import main   # after the environment is as it has to be
    # hang in containers
    sys.argv = ["test", "-v", "-u", "all,-largefile,-network,-cpu,-gui", "-i", "*VSOCK*", name]
    try:
        main()
    finally:
        del ballast


if __name__ == "__main__":
    run_module(sys.argv[1])
