"""Workers and tasks with packages, by the command: all nodes but the gate are processes."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from formation_p2p import SyncNode
from formation_p2p.machine.home import Home
from formation_p2p.machine.pythons import own_name
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, started
from tests.support.loopback import LISTEN
from tests.support.packages import Index, an_index, source, wheel
from tests.support.programs import Program
from tests.support.pythons import other_pythons

SMALL = ("--needs", "cpu=0.5,memory=256MiB")
TRAIN = "import greet, sys\nprint(greet.HELLO, *sys.argv[1:])\n"
BACKEND = f"""
import os, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name, content = {wheel("built", "1.0", {"built.py": "HELLO = 'built here'"})!r}
    open(os.path.join(wheel_directory, name), "wb").write(content)
    return name
"""


@dataclass(frozen=True)
class World:
    """Two workers: `indexed` has an index and this Python, `offline` no index and another."""

    home: Path
    index: Index
    indexed: str
    offline: str
    other: str

    def formation(self, *argv: str) -> Program:
        with started(self.home, *argv) as program:
            program.ended()
            return program


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, other = tmp_path_factory.mktemp("homes"), other_pythons()[0]
    gate = Home(folder / "gate")
    gate.create_network()
    with ExitStack() as stack:
        index = stack.enter_context(an_index())
        index.add(wheel("greet", "1.0", {"greet.py": "HELLO = 'hello'\n"}))
        index.add(source("built", "1.0", BACKEND))

        def works(home: Home, *command: str) -> Program:
            return stack.enter_context(started(home.path, *command, *LOOPBACK))

        open_gate = stack.enter_context(SyncNode.join(home=gate.path, listen=LISTEN))
        gate.add_gate(open_gate.addresses[0])
        invite = gate.invite(Rights(int(time.time()) + 3600))
        alice, carol, dave = (Home(folder / name) for name in ("alice", "carol", "dave"))
        for home in (alice, carol, dave):
            home.join(parse_invite(invite))
        worker = ("worker", "--json", "--cpu", "1", "--memory", "1GiB", "--env-disk", "1GiB")
        version = other.removeprefix("cpython-")
        programs = (
            works(alice, *worker, "--index-url", index.url, "--env-sources"),
            works(carol, *worker, "--no-index", "--python", version),
        )
        indexed, offline = (json.loads(each.line_with("ready"))["peer_id"] for each in programs)
        yield World(dave.path, index, indexed, offline, other)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "requirements.txt").write_text("greet==1.0\n")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_script_runs_with_the_packages_of_a_file(world: World, project: Path) -> None:
    env = ("--env", str(project / "requirements.txt"))
    ran = world.formation(
        "run", *SMALL, *env, "--env", "A=1", "--", "python", str(project / "train.py"), "--fast"
    )
    assert ran.process.returncode == 0, ran.output
    assert ran.lines[-1] == "hello --fast\n"
    ran = world.formation("run", *SMALL, *env, "--", "python", "-c", "import built")
    assert "No module named 'built'" in ran.output


def test_a_script_runs_without_packages_too(world: World, project: Path) -> None:
    (project / "plain.py").write_text("print('plain')\n")
    ran = world.formation("run", *SMALL, "--", "python", str(project / "plain.py"))
    assert ran.lines[-1] == "plain\n", ran.output
    assert world.other.removeprefix("cpython-") in world.formation("workers").output


def test_the_workers_that_have_the_packages_are_explained(world: World, project: Path) -> None:
    env = ("--env", str(project / "requirements.txt"))
    python = f"cpu=0.5,memory=256MiB,python={own_name()}"
    told = world.formation("explain", "--json", "--needs", python, *env)
    decision = json.loads(told.lines[-1])
    assert [each["peer_id"] for each in decision["ranked"]] == [world.indexed]
    assert isinstance(decision["ranked"][0]["has_packages"], bool)
    ((_, worker, why),) = [
        [each[key] for key in ("kind", "worker", "why")] for each in decision["rejected"]
    ]
    assert worker == world.offline
    assert why.startswith(f"python: needs {own_name()}, has {world.other}")
    shown = world.formation("explain", "--needs", python, *env).output
    assert "packages " in shown
    assert "install" in shown


def test_what_has_no_wheel_is_built_where_the_worker_allows_it(world: World, project: Path) -> None:
    (project / "built.txt").write_text("built\n")
    command = ("python", "-c", "import built; print(built.HELLO)")
    env = ("--env", str(project / "built.txt"))
    ran = world.formation("run", *SMALL, *env, "--", *command)
    assert ran.lines[-1] == "built here\n", ran.output


def test_wheels_are_shipped_for_the_version_of_python_that_is_asked_for(
    world: World, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", world.index.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    version = world.other.removeprefix("cpython-")
    (project / "job.toml").write_text(
        f"""
        needs = "cpu=0.5,memory=256MiB"
        env = {{ requirements = ["greet"], wheels = "ship", python = "{version}" }}
        [[task]]
        name = "hello"
        argv = ["python", "-c", "import greet, sys; print(greet.HELLO, sys.version_info[1])"]
        """
    )
    out = project / "out"
    done = world.formation("submit", str(project / "job.toml"), "--out-dir", str(out))
    assert done.process.returncode == 0, done.output
    assert (out / "hello" / "stdout").read_text() == f"hello {version.partition('.')[2]}\n"
