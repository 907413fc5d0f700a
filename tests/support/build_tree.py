# SPDX-License-Identifier: Apache-2.0
"""Where the sources are, and what was built from them."""
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TESTED_BUILD", os.path.join(ROOT, "build"))
LUNAR = os.path.join(BUILD, "tools/lunar")
MODULE = os.path.join(BUILD, "adapters/redis/liblunar-redis.so")
