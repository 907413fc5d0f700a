# SPDX-License-Identifier: Apache-2.0
"""`python_tests.py TEST`: one module of CPython's test suite, beside memory that does not fit into the DRAM budget, so that what the
tests use is evicted too. The closing table of `lunar run --stats` is this process' alone: tests look at their children's errors."""
import os
import sys

os.environ.pop("LUNAR_STATS", None)
ballast = [os.urandom(4096) for _ in range(24576)]   # 96 MiB
from test.libregrtest import main  # noqa: E402  (after the environment is as it has to be)

sys.argv = ["test", "-v", "-u", "all,-largefile,-network,-cpu,-gui", "-i", "*VSOCK*", sys.argv[1]]   # VSOCK: hangs in containers
main()
