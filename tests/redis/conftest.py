# SPDX-License-Identifier: Apache-2.0
import pytest

from redis_server import SEED, SERVER, Servers


def pytest_report_header():
    return f"LUNAR_SEED={SEED}, server {SERVER}"


@pytest.fixture
def servers(request, directory):
    """Makes servers for one test and ends them after it. If it failed, it shows their logs."""
    with Servers(directory) as all_of_them:
        yield all_of_them
        if request.node.failed:
            all_of_them.show()
