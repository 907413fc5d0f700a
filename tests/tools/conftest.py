# SPDX-License-Identifier: Apache-2.0
import subprocess

import pytest

from build_tree import LUNAR
from subcommand import NOBODY


@pytest.fixture
def nobody(as_root):
    """The options of a subprocess that runs as the user `nobody`, who can reach the build."""
    reach = subprocess.run(["/usr/bin/test", "-x", LUNAR], check=False, **NOBODY)
    if reach.returncode != 0:
        pytest.skip("reachable: the user `nobody` cannot reach the build")
    return NOBODY
