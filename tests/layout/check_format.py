#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_format.py ROOT`: the sources are as `tools/lint --fix` leaves them. Skips where
clang-format 19 is not installed."""
import os
import subprocess
import sys

if not os.path.exists(os.path.join(sys.argv[1], ".git")):
    print("skip: clang-format: this is no checkout")
    sys.exit(77)
done = subprocess.run([os.path.join(sys.argv[1], "tools", "lint")], capture_output=True, text=True,
                      check=False)
if done.returncode == 77:
    print("skip: clang-format: version 19 is not installed")
    sys.exit(77)
print("\n".join((done.stdout + done.stderr).splitlines()[:40]))
sys.exit(1 if done.returncode else 0)
