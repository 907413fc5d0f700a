# SPDX-License-Identifier: Apache-2.0
"""What tests of subcommands from outside share: checks that go on after one has failed, in a
directory that is gone at the end."""
import shutil
import tempfile

problems = []


def check(held, what):
    if not held:
        problems.append(what)
    return held


def run_checks(*checks):
    """Each is called with the directory. The exit code: 77 when one returns 77, having said why it
    cannot be done here."""
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/var/tmp")
    try:
        if any(one(directory) == 77 for one in checks):
            return 77
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for problem in problems:
        print(problem)
    return 1 if problems else 0
