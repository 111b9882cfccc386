"""The plugin for pytest, in a session of a user's own tests."""

import sys
from pathlib import Path

from tests.support.programs import running

USERS_TESTS = """
import os

def pid(_):
    return os.getpid()

def test_calls_run_in_other_processes(formation_network):
    with formation_network.join() as node:
        assert os.getpid() not in node.map(pid, range(4))

def test_the_network_is_the_same_for_all_tests(formation_network):
    with formation_network.join() as node:
        assert len(node.workers()) == 1
"""


def test_a_network_is_a_fixture_of_a_users_tests(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nformation_workers = 1\n")
    plugin = ("-p", "formation_demo.pytest_plugin", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", *plugin, str(tmp_path), "--rootdir", str(tmp_path))
    # Which plugins this environment installs decides nothing.
    with running(*command, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1") as session:
        assert session.ended() == 0, session.output
    assert "2 passed" in session.output
