# SPDX-License-Identifier: Apache-2.0
import os
import subprocess

import pytest


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("root: the test is of a user's rights, or of devices")


@pytest.fixture
def attach(as_root):
    """attach(FILE, OPTION...): a loop device on it, which is detached after the test."""
    devices = []

    def attached(backing, *options):
        done = subprocess.run(["losetup", *options, "-f", "--show", backing], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            pytest.skip(f"loop: {done.stderr.strip()}")
        devices.append(done.stdout.strip())
        return devices[-1]
    yield attached
    for device in devices:
        subprocess.run(["losetup", "-d", device], check=False)
