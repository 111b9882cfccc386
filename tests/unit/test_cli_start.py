"""What a command imports before it does anything: each module costs time that a person waits."""

import contextlib
import io
import re
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import cbor2
import click
import pytest

from formation_p2p.command.main import app
from formation_p2p.command.start import program_of
from formation_p2p.command.task_flags import FLAGS
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS
from formation_p2p.placement.policies import options_of
from formation_p2p.rpc.wire import LENGTH, VERSION, encoded, socket_of

# The network stack, its event loop, the cryptography of grants, tables, metrics, databases: of a
# command's start, nearly all of it.
HEAVY = {
    "biscuit_auth",
    "cloudpickle",
    "formation_p2p.api.node",
    "formation_p2p.peer.core.peer",
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
from formation_p2p.rpc.wire import LENGTH, VERSION, encoded, socket_of
from formation_p2p.command.main import app
from formation_p2p.command.start import program_of
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
    assert "formation_p2p.command.submit" not in imported  # nor the other commands


def test_a_second_ctrl_c_while_the_command_ends_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(io.StringIO):
        def flush(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", Interrupted())
    with pytest.raises(SystemExit) as ended:
        app(["version", "--json"])
    assert ended.value.code == 130


def test_a_list_of_the_commands_imports_none_of_them(tmp_path: Path) -> None:
    assert not HEAVY & (imported := _imported(tmp_path, "--help"))
    assert "formation_p2p.command.run" not in imported


@pytest.mark.parametrize("command", ["sizes", "usage", "charter", "doctor", "worker", "status"])
def test_the_help_of_a_command_imports_no_node(tmp_path: Path, command: str) -> None:
    imported = _imported(tmp_path, command, "--help")
    assert not {"formation_p2p.assembly", "formation_p2p.api.node", "rich"} & imported


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
import formation_p2p.command.main, formation_p2p.command.run
import formation_p2p.command.local.client
assert "formation_p2p.jobs.core.job_events" not in sys.modules, "not before it asks"
import formation_p2p.command.outcomes
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    node_s = {
        "cryptography",
        "formation_p2p.placement.core.task_options",
        "formation_p2p.machine.core.requirements",
        "formation_p2p.workload.core.plan",
        "pydantic",
    }
    assert not {*HEAVY, *node_s} & set(done.stdout.split())


@pytest.mark.parametrize("command", ["submit", "look"])
def test_what_a_node_that_is_there_answers_is_shown_without_one(command: str) -> None:
    script = f"""
import sys
import formation_p2p.command.main, formation_p2p.command.{command}
import formation_p2p.command.local.client, formation_p2p.command.outcomes
import formation_p2p.command.as_json, formation_p2p.command.tables
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(done.stdout.split())
    assert not {*HEAVY - {"rich"}, "formation_p2p.assembly", "importlib.metadata"} & imported
    assert not [name for name in imported if name.startswith("formation_p2p.features.")]


def test_run_without_options_asks_and_passes_on_with_few_modules() -> None:
    script = """
import sys
before = {*sys.modules}
import formation_p2p.command.start, formation_p2p.command.words, formation_p2p.workload.core.learnt
import formation_p2p.rpc.wire
import formation_p2p.machine.home_path, formation_p2p.machine.unix_socket
print(*(name for name in {*sys.modules} - before if name.startswith("formation_p2p.")))
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    ours, every = (set(line.split()) for line in done.stdout.splitlines())
    assert ours == {
        "formation_p2p.command",
        "formation_p2p.command.start",
        "formation_p2p.command.words",
        "formation_p2p.core",
        "formation_p2p.core.cbor",
        "formation_p2p.core.errors",
        "formation_p2p.core.units",
        "formation_p2p.core.version",
        "formation_p2p.workload.core",
        "formation_p2p.workload.core.learnt",
        "formation_p2p.workload",
        "formation_p2p.machine",
        "formation_p2p.machine.home_path",
        "formation_p2p.machine.unix_socket",
        "formation_p2p.rpc",
        "formation_p2p.rpc.wire",
    }
    slow = {"asyncio", "click", "dataclasses", "decimal", "inspect", "json", "logging", "ssl"}
    assert not slow & every


def test_run_without_options_asks_what_the_command_does(tmp_path: Path) -> None:
    """Which takes the answers of the question that has been asked."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asked: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        """As a node that greets, and ends when it is asked."""
        with contextlib.suppress(OSError, struct.error):
            while True:
                connection, _ = listener.accept()
                with connection, connection.makefile("rwb") as stream:
                    stream.read(LENGTH.unpack(stream.read(LENGTH.size))[0])
                    stream.write(encoded({"formation": VERSION, "has": True}))
                    stream.flush()
                    if head := stream.read(LENGTH.size):
                        asked.append(stream.read(LENGTH.unpack(head)[0]))

    with socket.socket(socket.AF_UNIX) as listener:
        with reachable(socket_of(home)) as name:
            listener.bind(name)
        listener.listen()
        answering = threading.Thread(target=answer, args=[listener])
        answering.start()
        for module, entry in (("start", "main"), ("main", "app")):
            words = ("run", "--", "echo", "a b", "-n")
            script = f"from formation_p2p.command.{module} import {entry}; {entry}()"
            done = subprocess.run(
                [sys.executable, "-c", f"import sys; sys.argv[1:] = {words}; {script}"],
                env={"FORMATION_HOME": str(home)},
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert b"the node of this machine ended meanwhile" in done.stderr
        listener.shutdown(socket.SHUT_RDWR)
        answering.join()
    plain, full = map(cbor2.loads, asked)
    assert options_of(plain.pop("kwargs")) == options_of(full.pop("kwargs"))
    assert plain == full


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["run", "--", "true"], ["true"]),
        (["run", "uname", "-a"], ["uname", "-a"]),
        (["run", "--", "echo", "a b"], ["echo", "a b"]),
        (["run"], None),
        (["run", "--"], None),
        (["run", "--help"], None),
        (["run", "--", "-a"], None),
        (["run", "--", "a", "--", "b"], None),
        (["run", "--needs", "cpu=2", "true"], None),
        (["run", "train.py"], None),
        (["run", "python3", "train.py"], None),
        (["run", "a b"], None),
        (["run", "echo", "\n"], None),
        (["run", "echo", "\udcff"], None),
        (["run", "echo", "x" * 20_000], None),
        (["submit", "job.toml"], None),
        ([], None),
    ],
)
def test_what_is_not_plain_is_left_to_the_command(
    words: list[str], program: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORMATION_JOIN", "FORMATION_STATE", "FORMATION_METRICS"):
        monkeypatch.delenv(name, raising=False)
    assert program_of(words) == program
    monkeypatch.setenv("FORMATION_STATE", "jobs.db")
    assert program_of(words) is None


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
