# SPDX-License-Identifier: Apache-2.0
"""Where the sources are, what was built from them, and where tests make files."""
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TESTED_BUILD", os.path.join(ROOT, "build"))
LUNAR = os.path.join(BUILD, "tools/lunar")
MODULE = os.path.join(BUILD, "adapters/redis/liblunar-redis.so")
TEST_DIR = os.environ.get("LUNAR_TEST_DIR", "/var/tmp")   # on a disk
