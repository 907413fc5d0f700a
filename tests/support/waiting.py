# SPDX-License-Identifier: Apache-2.0
"""Waits with a bound, which TEST_TIMEOUT_SCALE multiplies like the time limits of tests."""
import time

from watch import slowness

PATIENCE_S = 120 * slowness()


def wait_until(what, true, patience_s=120, every_s=0.02):
    """Until `true()` is; `what` is the failure's text."""
    until = time.monotonic() + patience_s * slowness()
    while not true():
        assert time.monotonic() < until, f"{what}: not in {patience_s * slowness()} s"
        time.sleep(every_s)
