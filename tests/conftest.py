# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all Python tests (a directory for a test's files, root's rights, loop devices), and
the report of skips to tests/support/watch.py.

A test skips by `pytest.skip("CAPABILITY: reason")`. Where every test skipped, the exit code is 77.
"""
import os
import subprocess
import tempfile

import pytest

from build_tree import TEST_DIR


@pytest.fixture
def directory():
    """A new, empty directory on a disk, open to all users; removed after the test."""
    with tempfile.TemporaryDirectory(prefix="lunar-test-", dir=TEST_DIR,
                                     ignore_cleanup_errors=True) as path:
        os.chmod(path, 0o755)
        yield path


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("root: the test needs root for another user's rights, or for devices")


@pytest.fixture
def attach(as_root):
    """attach(FILE, OPTION...) makes a loop device on FILE, which is detached after the test."""
    devices = []

    def attached(backing, *options):
        done = subprocess.run(["losetup", *options, "-f", "--show", backing], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"loop: {done.stderr.strip()}")
        devices.append(done.stdout.strip())
        return devices[-1]
    yield attached
    for device in devices:
        subprocess.run(["losetup", "-d", device], check=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Sets item.failed."""
    item.failed = (yield).get_result().failed or getattr(item, "failed", False)


def pytest_runtest_logreport(report):
    if report.skipped:
        print("\nskip: " + report.longrepr[2].removeprefix("Skipped: "))


def pytest_sessionfinish(session, exitstatus):
    ran = session.config.pluginmanager.getplugin("terminalreporter").stats
    if exitstatus == 0 and "skipped" in ran and "passed" not in ran:
        session.exitstatus = 77
