"""What a command imports before it does anything: each module costs time that a person waits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from formation_p2p.cli.main import app
from formation_p2p.cli.task_flags import FLAGS
from formation_p2p.core.placement.task_options import DEFAULT_OPTIONS

# The network stack, its event loop, the cryptography of grants, tables, metrics, databases: of a
# command's start, nearly all of it.
HEAVY = {
    "biscuit_auth",
    "cloudpickle",
    "formation_p2p.api.node",
    "formation_p2p.core.peer.peer",
    "formation_p2p.public",
    "google.protobuf",
    "noise",
    "multiaddr",
    "prometheus_client",
    "psutil",
    "rich",
    "sqlite3",
    "trio",
}
SCRIPT = """
import sys
from formation_p2p.cli.main import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    print(*sorted(sys.modules), file=open({out!r}, "w"))
"""


def _imported(tmp_path: Path, *arguments: str) -> set[str]:
    out = tmp_path / "modules"
    subprocess.run(
        [sys.executable, "-c", SCRIPT.format(out=str(out)), *arguments],
        env={"FORMATION_HOME": str(tmp_path / "home")},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return set(out.read_text().split())


@pytest.mark.parametrize("command", [["top", "--once", "--json"], ["logs"], ["story", "a/0"]])
def test_a_command_that_asks_a_socket_imports_no_node(tmp_path: Path, command: list[str]) -> None:
    imported = _imported(tmp_path, *command)
    assert not HEAVY & imported
    assert "formation_p2p.cli.submit" not in imported  # nor the other commands


def test_a_list_of_the_commands_imports_none_of_them(tmp_path: Path) -> None:
    assert not HEAVY & (imported := _imported(tmp_path, "--help"))
    assert "formation_p2p.cli.run" not in imported


def test_the_list_says_of_each_command_what_its_own_help_does() -> None:
    context = click.Context(app, info_name="formation")
    listed = {item.value: item.help or "" for item in app.shell_complete(context, "")}
    assert list(listed) == list(app.commands)
    assert [item.value for item in app.shell_complete(context, "st")] == ["status", "story"]
    help_text = app.get_help(context)
    for name, brief in listed.items():
        assert re.search(rf"^  {name} +{re.escape(brief)}$", help_text, re.MULTILINE), name
        assert app.commands[name].get_short_help_str(limit=100) == brief


def test_run_through_a_node_that_is_there_imports_none_of_its_own() -> None:
    script = """
import sys
import formation_p2p.cli.main, formation_p2p.cli.run
import formation_p2p.cli.local.client, formation_p2p.cli.local.link
assert "formation_p2p.core.dispatch.job_events" not in sys.modules, "not before it asks"
import formation_p2p.cli.outcomes
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    node_s = {
        "cryptography",
        "formation_p2p.core.placement.task_options",
        "formation_p2p.core.resources.requirements",
        "formation_p2p.core.workload.plan",
        "pydantic",
    }
    assert not {*HEAVY, *node_s} & set(done.stdout.split())


def test_the_package_itself_imports_nothing(tmp_path: Path) -> None:
    script = "import sys, formation_p2p; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert not [name for name in done.stdout.split() if name.startswith("formation_p2p.")]


def test_flags_show_the_defaults_of_the_options() -> None:
    for option, flag in FLAGS.items():
        default = getattr(DEFAULT_OPTIONS, option)
        assert flag.default in (None, default, str(default)), option
