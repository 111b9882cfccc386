"""Every command and code block of the documents, run as it stands or, where that takes minutes or
another machine, in the short form that stands here with the reason."""

import ast
import asyncio
import importlib
import inspect
import io
import json
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

import click
import dask.array
import distributed
import pytest
import trio
from click.testing import CliRunner

import formation_p2p
from formation_p2p import Node, ProcessSpec, public
from formation_p2p.command.job_file import parse_job_file
from formation_p2p.command.main import app
from formation_p2p.core.effects import Moment
from formation_p2p.features.services.core.toml_spec import services_of
from formation_p2p.peer.core.events import Tick
from simulations.simulator.world import World
from tests.support.commands import LOOPBACK, started
from tests.support.documents import Block, blocks, inline_commands
from tests.support.programs import ROOT, Program
from tests.support.waiting import HANGS_S

# The network that README.md sets up, before all else; every machine of it is a home here.
SET_UP: Final = (
    "formation network create",
    "formation gate",
    "formation network invite '>' join.txt",
    "formation network join join.txt",
    "formation worker",
)
# Their own tests start and end them.
IN_THE_BACKGROUND: Final = ("formation agent '&'",)
# Whose home a command is for, where it is not that of a person with work to do.
AT_GATE: Final = ("formation network invite",)
AT_WORKER: Final = ("formation usage",)
# What a document writes for what differs from network to network.
STANDS_FOR: Final = {"…rqiwG7ob": "worker", "0f3c…": "job"}
# Exit codes other than 0: no worker of this network has a GPU, and the command that submitted the
# task has ended.
EXITS: Final = {"formation explain --needs gpu.memory=24GB": 3, "formation story '0f3c…/0'": 2}

DISCOVERY: Final = "python -m simulations.discovery"
HOSTILE: Final = "python -m simulations.hostile"
ANNOUNCE: Final = "python -m simulations.announce"
SCORING: Final = "python -m simulations.scoring"
# Simulations and benchmarks take from minutes to hours. These run in small.
SHORT: Final = {
    f"{DISCOVERY} --nodes 1000 --churn golem --seed 7": (
        f"{DISCOVERY} --nodes 12 --churn golem --seed 7 --minutes 1 --queries 2"
    ),
    f"{DISCOVERY} --nodes 1000 --placed --minutes 9 --queries 130 --seed 7": (
        f"{DISCOVERY} --nodes 20 --placed --minutes 3 --queries 1 --seed 7"
    ),
    f"{DISCOVERY} --nodes 100000 --placed --geometry all --announcing 25 --minutes 3 --queries 0": (
        f"{DISCOVERY} --nodes 20 --placed --geometry all --announcing 2 --minutes 1 --queries 0"
    ),
    f"{DISCOVERY} --nodes 10000 --placed --churn golem --minutes 10 --queries 130 --seed 7": (
        f"{DISCOVERY} --nodes 20 --placed --churn golem --minutes 2 --queries 1 --seed 7"
    ),
    "python -m simulations.tradeoff --nodes 200 --placed --churn golem --churn-speed 20 "
    "--minutes 4 --queries 65 --ttls 60 120 240 --replicas-tried 3 8 20 --seed 7": (
        "python -m simulations.tradeoff --nodes 12 --placed --churn golem --churn-speed 20 "
        "--minutes 1 --queries 1 --ttls 60 --replicas-tried 3 --seed 7"
    ),
    "python -m simulations.chaos --seeds 1..100 --jobs 2": (
        "python -m simulations.chaos --seeds 1..1 --jobs 1"
    ),
    "python -m simulations.chaos --seeds 1..160 --nat 0.6": (
        "python -m simulations.chaos --seeds 1..1 --nat 0.6"
    ),
    f"{DISCOVERY} --nodes 200 --minutes 3 --queries 40 --nat 0.6 --json": (
        f"{DISCOVERY} --nodes 12 --minutes 1 --queries 1 --nat 0.6 --json"
    ),
    f"{ANNOUNCE} --find announce --json": f"{ANNOUNCE} --find announce --json --nodes 50 --looks 1",
    f"{SCORING} --json --seeds 1..20": f"{SCORING} --json --seeds 1..1 --tasks 50",
    f"{SCORING} --json --seeds 1..50 --tasks 4000": f"{SCORING} --json --seeds 1..2 --tasks 50",
    f"{HOSTILE} --liars 0 0.05 0.1 0.2 0.3": f"{HOSTILE} --liars 0 0.3 --nodes 30 --keys 1",
    f"{HOSTILE} --liars 0.2 --credulous --read 3 10 0 --write 20 10 0": (
        f"{HOSTILE} --liars 0.2 --credulous --read 3 10 0 --write 20 10 0 --nodes 30 --keys 1"
    ),
    f"{HOSTILE} --liars 0 0.2 --lie collude --sybils 40 --machines 2": (
        f"{HOSTILE} --liars 0.2 --lie collude --sybils 40 --machines 2 --nodes 30 --keys 1"
    ),
    f"{HOSTILE} --liars 0 0.2 0.3 --lie collude --paths 2 --read 3 10 0": (
        f"{HOSTILE} --liars 0.2 --lie collude --paths 2 --read 3 10 0 --nodes 30 --keys 1"
    ),
}
# Not run here: the options are compared with what the program takes, and targets with the Makefile.
ONLY_READ: Final = {
    "python -m simulations.realchaos": "takes a minute and root; tests/simulations runs it",
    "python -m simulations.nat": "takes minutes and root; tests/system/test_nat.py runs a part",
    "python -m benchmarks.dht.rpc": "takes minutes",
    "python -m benchmarks.data.blob": "takes minutes, and two cores",
    "python -m benchmarks.data": "takes minutes; tests/system/test_benchmarks.py runs it in small",
    "python -m benchmarks.network": "takes a minute",
    "python -m benchmarks.libp2p_host": "takes half a minute",
    "python -m benchmarks.mixed": "takes a minute; tests/system/test_benchmarks.py runs it",
    "python -m benchmarks.grants": "keeps Biscuit's engine busy for a minute",
    "python examples/worker.py": "ends with Ctrl-C; tests/system/test_examples.py runs it",
    "python -m tools.mutants": "takes an hour; tests/unit/test_mutants.py runs it in small",
    "python -m tools.repeat": "takes hours; tests/system/test_repeat.py runs it in small",
    "python3 -m venv": "makes the environment that this runs in",
    "pip install": "needs the package index",
    "make": "takes minutes; the tests run what it calls",
    "formation demo": "takes half a minute; tests/system/test_demo.py runs it",
    "python -m tools.release": "takes minutes, and needs the package index",
}


# -- a network of real nodes ---------------------------------------------------------------------


@dataclass
class Network:
    """The network of README.md; `person` has work to do, `folder` is where commands run."""

    folder: Path
    homes: dict[str, Path]
    stands_for: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> tuple[int, str]:
        """A `formation` command, in this process. Its exit code, and all that it printed."""
        who = "gate" if command.startswith(AT_GATE) else "person"
        who = "worker" if command.startswith(AT_WORKER) else who
        return formation(self.homes[who], self.as_typed(command))

    def as_typed(self, command: str) -> str:
        for written, meant in STANDS_FOR.items():
            if written in command:
                command = command.replace(written, self.stands_for[meant])
        return command


def formation(home: Path, command: str) -> tuple[int, str]:
    program, *arguments = shlex.split(command)
    assert program == "formation"
    into = None
    if ">" in arguments:
        *arguments, _, into = arguments
    done = CliRunner().invoke(app, arguments, env={"FORMATION_HOME": str(home)})
    if into is not None:
        Path(into).write_text(done.stdout)
    return done.exit_code, done.output


def serving(home: Path, command: str) -> AbstractContextManager[Program]:
    """`formation gate` or `formation worker`, on the loopback interface."""
    return started(home, *shlex.split(command)[1:], *LOOPBACK)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    create, gate, invite, join, worker = SET_UP
    folder = tmp_path_factory.mktemp("documents")
    homes = {name: folder / name for name in ("gate", "worker", "person")}
    before, root = Path.cwd(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    os.chdir(folder)
    with ExitStack() as exits:
        exits.callback(os.chdir, before)
        exits.callback(setattr, root, "level", level)
        exits.callback(setattr, root, "handlers", handlers)
        assert formation(homes["gate"], create)[0] == 0
        exits.enter_context(serving(homes["gate"], gate)).line_with("to invite others")
        assert formation(homes["gate"], invite)[0] == 0
        for name in ("worker", "person"):
            assert formation(homes[name], join)[0] == 0
        reported = exits.enter_context(serving(homes["worker"], f"{worker} --json"))
        peer_id = json.loads(reported.line_with("ready"))["peer_id"]
        made = Network(folder, homes, {"worker": f"…{peer_id[-8:]}"})
        # After which the person's home knows the worker, whichever commands are tried first.
        assert formation(homes["person"], "formation run -- true")[0] == 0
        _put_files(folder)
        yield made


def _put_files(folder: Path) -> None:
    """What the commands of the documents name."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "words.txt").write_text("b\na\n")
    (folder / "README.md").symlink_to(ROOT / "README.md")
    (folder / "a.bin").write_bytes(b"a" * 100)
    (folder / "train.py").write_text("print('trained')")
    (folder / "job.toml").write_text('[[task]]\nargv = ["true"]\n')


# -- commands ------------------------------------------------------------------------------------


def shown_blocks(language: str) -> list[Any]:
    """But those of the tutorial, which tests/system/test_tutorial.py does in their order."""
    return [
        pytest.param(each, id=f"{each.document}:{each.line}")
        for each in blocks(language)
        if each.document != "docs/tutorial.md"
    ]


@pytest.mark.parametrize("shown", shown_blocks("console"))
def test_every_command_does_what_it_is_there_for(shown: Block, network: Network) -> None:
    for command in shown.commands:
        if command in (*SET_UP, *IN_THE_BACKGROUND):
            continue
        if command.startswith(tuple(ONLY_READ)):
            check_options(command)
        elif command.startswith("formation "):
            _know_a_job(network, command)
            code, printed = network.run(command)
            assert code == EXITS.get(command, 0), f"{command}\n{printed}"
        else:
            simulate(SHORT.get(command, command))


def _know_a_job(network: Network, command: str) -> None:
    """An id of a job that the state keeps, for the command that names one."""
    if "0f3c…" in command:
        if network.run("formation jobs --state jobs.db --json")[0] != 0:
            network.run("formation run --state jobs.db -- true")  # no other test has made one yet
        _, listed = network.run("formation jobs --state jobs.db --json")
        network.stands_for["job"] = json.loads(listed)["jobs"][0]["job"][:6]


def simulate(command: str) -> None:
    python, dash_m, module, *arguments = shlex.split(command)
    assert (python, dash_m, module.split(".")[0]) == ("python", "-m", "simulations")
    where = f"{module}.__main__" if module.endswith("openb") else module
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert not importlib.import_module(where).main(arguments)
    assert printed.getvalue().strip(), f"{command} printed nothing"


@pytest.mark.parametrize(("document", "command"), sorted(set(inline_commands())))
def test_every_command_in_a_sentence_has_the_options_that_it_names(
    document: str, command: str
) -> None:
    check_options(command)


def test_what_is_shortened_or_only_read_is_still_in_a_document() -> None:
    known = [command for each in blocks("console") for command in each.commands]
    known += [command for _, command in inline_commands()]
    for command in (*SET_UP, *SHORT, *EXITS):
        assert command in known, command
    for start in (*ONLY_READ, *STANDS_FOR, *AT_GATE, *AT_WORKER):
        assert any(start in command for command in known), start


def check_options(command: str) -> None:
    """That the program takes the options, the Makefile has the target, setup.cfg the extra."""
    words = shlex.split(command)
    options = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    match words:
        case ["formation", *rest]:
            _check_formation(rest)
        case ["python", "-m", module, *_]:
            taken = _help_of(module)
            for option in options[1:]:
                assert re.search(rf"{option}\b", taken), f"{module} takes no {option}"
        case ["make", target, *_]:
            assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True).stdout
        case ["pip", "install", what]:
            extra = re.search(r"\[(\w+)\]", what)
            assert extra is None or f"\n{extra[1]} =" in (ROOT / "setup.cfg").read_text()
        case ["python", script]:
            assert (ROOT / script).is_file()
        case ["python3", "-m", "venv", *_]:
            pass
        case _:
            raise AssertionError(f"nothing is known of {command}")


def _check_formation(words: list[str]) -> None:
    command: Any = app
    while isinstance(command, click.Group):
        name = words.pop(0)
        assert name in command.commands, f"formation has no {name}"
        command = command.commands[name]
    if "--" in words:
        words = words[: words.index("--")]
    taken = {option for each in command.params for option in each.opts + each.secondary_opts}
    for word in words:
        if word.startswith("-") and word != "-":  # which is the standard input
            assert word in taken, f"formation {command.name} takes no {word}"


def _help_of(module: str) -> str:
    printed = io.StringIO()
    before = sys.argv
    sys.argv = [module, "--help"]
    try:
        with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
    finally:
        sys.argv = before
    assert ended.value.code == 0
    return printed.getvalue()


# -- programs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Around:
    """What a fragment leaves out: names that it uses, what runs after it, and what is shorter or
    real here in place of what it shows."""

    names: Callable[[], dict[str, Any]] = dict
    needs_node: bool = False
    after: str = ""
    replaced: tuple[str, str] = ("", "")


def slow(number: int) -> int:
    return sum(i * i for i in range(number))


def say_done(member: Any) -> None:
    with member.listen("progress") as listening:
        stream, _ = listening.accept()
        with stream:
            stream.sendall(b"done")


# As a program of its own has them: this file needs the whole checkout where it is imported.
slow.__module__ = say_done.__module__ = "__main__"


def _peer() -> dict[str, Any]:
    peer = World(1).add("alice").peer
    return {"peer": peer, "event": Tick(), "now": Moment(1.0, 1_700_000_000.0)}


def _work() -> dict[str, Any]:
    work = [ProcessSpec(("true",))]
    return {**vars(public), "work": work, "is_right": lambda result: False}


def train(member: Any, data: str) -> tuple[int, str]:
    return member.rank, data


train.__module__ = "__main__"


# A gateway that names one which is there, and one which is not.
NEAREST: Final = """
from formation_p2p.features.gateway.nearest import Nearest
from tests.support.browsers import served
from tests.support.gateways import MemorySource
with served(MemorySource()) as us, served(MemorySource()) as eu:
    us.restart_beside(Nearest("us", {"eu": eu.url, "ap": "http://127.0.0.1:1"}))
    assert nearest_gateway(us.url) in (us.url, eu.url)
    eu.stop()
    assert nearest_gateway(us.url) == us.url
"""
NO_SERVICE: Final = """
try:
    await {call}
except formation_p2p.ServiceError as error:
    assert "there is no service" in str(error), error
else:
    raise AssertionError("it was answered")
"""
NO_QUORUM: Final = """
try:
    await {call}
except formation_p2p.Disagreement as error:
    assert len(error.answers) == 1, error
else:
    raise AssertionError("one agreed with itself")
"""
PROGRAMS: Final = {
    "await gang.run(train": Around(
        lambda: {"train": train},
        needs_node=True,
        replaced=('3, needs="gpu=1"', '1, needs="cpu=0.5,memory=64MiB"'),
        after="assert results == [(0, 'data')]",
    ),
    "print(await node.map(slow": Around(),
    "print(await node.map(squares": Around(
        needs_node=True, after="assert await node.map(squares, [3]) == [[0, 1, 4]]"
    ),
    "def total(upto: int)": Around(after="assert total(4) == 6"),
    "checkpoint_files=": Around(lambda: {"ProcessSpec": formation_p2p.ProcessSpec}),
    "def train(last, epochs)": Around(
        replaced=("cpu=1,memory=1GiB", "cpu=0.1,memory=64MiB"),
        after="assert abs(value_of(result) - 0.9**100) < 1e-9",
    ),
    "await node.libp2p_host(": Around(
        lambda: {"chat": abs, "trio": trio},
        needs_node=True,
        replaced=("sleep_forever()", "sleep(0)"),
    ),
    "async for thumbnail in node.map": Around(
        lambda: {"shrink": abs, "pictures": lambda: iter([-1, -2])}, needs_node=True
    ),
    "as node, node.executor(needs=": Around(lambda: {**vars(public), "slow": slow}),
    "async def watch": Around(needs_node=True, after="await watch(node)"),
    'scope="org"': Around(_work, needs_node=True),
    "peer.handle(event, now)": Around(_peer),
    'blob = await node.put("a.bin")': Around(needs_node=True),
    "table = await node.put(": Around(
        needs_node=True, replaced=("5_000, 5_000", "1_000, 500"), after="assert len(found) == 1_000"
    ),
    "async with node.dask(": Around(
        lambda: {"Client": distributed.Client, "array": dask.array.ones(8, chunks=4)},
        needs_node=True,
        replaced=(
            'workers=(2, 16), needs="cpu=2,memory=8GiB"',
            'workers=1, needs="cpu=0.5,memory=320MiB", scheduler_needs="cpu=0.5,memory=320MiB"',
        ),
    ),
    "def stage(member, batches)": Around(
        lambda: {"say_done": say_done},
        needs_node=True,
        replaced=(
            "reader, writer =",
            'gang = await node.gang(1, needs="cpu=0.5,memory=64MiB")\n'
            "call = gang.call(0, say_done)\n"
            "reader, writer =",
        ),
        after="assert await reader.read() == b'done'\nawait call\nawait gang.close()",
    ),
    # Members of gangs run elsewhere; tests/system/test_gang_shared.py has them.
    "member.store.set(": Around(),
    'network="gang") as gang': Around(
        lambda: {"start_mpi": lambda member: member.rank},
        needs_node=True,
        replaced=(
            'node.gang(3, needs="cpu=1,memory=1GiB", network="gang")',
            'node.gang(1, needs="cpu=1,memory=64MiB")',
        ),
    ),
    "def nearest_gateway(": Around(after=NEAREST),
    # The network of these tests has no services; tests/system/test_services_whole.py has one.
    'node.service("llm-inference")': Around(
        needs_node=True, after=NO_SERVICE.format(call="ask(node)")
    ),
    'node.service("redis")': Around(needs_node=True, after=NO_SERVICE.format(call="speak(node)")),
    'frames, find="announce")': Around(
        lambda: {"render": abs, "frames": [-1, -2]},
        needs_node=True,
        after="assert results == [1, 2]",
    ),
    # One worker agrees with none: tests/system/test_examples.py has three.
    "async def sure(node": Around(
        lambda: {"score": abs, "inputs": [-1]},
        needs_node=True,
        after=NO_QUORUM.format(call="sure(node)"),
    ),
    "async def scores(node": Around(
        lambda: {"score": abs, "inputs": [-1]},
        needs_node=True,
        after=NO_QUORUM.format(call="scores(node)"),
    ),
    "def busiest": Around(replaced=("range(50)", "range(2)")),
    'Node.join(state="jobs.db")': Around(_work),
    "plan = derive(": Around(after="await main()"),
    "two_stages = derive(": Around(after="assert len(two_stages.tasks) == 4"),
    "hints=Hints(near=(blob,)": Around(_work, needs_node=True, replaced=("bafyr4i…:2GiB", "{cid}")),
    "policy = Trusted(": Around(after="assert formation_p2p.parse_policy(str(policy)) == policy"),
    "class Greenest(Policy)": Around(),
    "rank_by_xor(": Around(needs_node=True),
    "report_wrong": Around(_work),
    "error.load_trusted()": Around(
        lambda: {"train": lambda _: object(), "seeds": [1]},
        needs_node=True,
        after="assert type(model) is object",
    ),
    "node.fetch_result(": Around(
        lambda: {"simulate": lambda _: "x" * 2000, "seeds": [1]},
        needs_node=True,
        replaced=("100MiB", "1KiB"),
        after="assert large == 'x' * 2000",
    ),
    "await job.story(0)": Around(_work, needs_node=True),
    "scores = await node.map(fit": Around(
        lambda: {"Env": formation_p2p.Env, "fit": abs, "grid": [1]},
        needs_node=True,
        replaced=("await node.map", "node.map"),  # which begins when it is awaited
    ),
    "await node.close()": Around(lambda: {"Node": Node}),
    "show_output=True, progress=True": Around(
        lambda: {"slow": slow}, needs_node=True, after="assert len(results) == 20"
    ),
    "progress=progress": Around(
        lambda: {"slow": slow}, needs_node=True, after="assert len(results) == 20"
    ),
    "partial(pow, 2)": Around(
        dict,
        needs_node=True,
        after="assert [*powers, *towers] == [*(2**n for n in range(10)), 2**10, 3**20]",
    ),
    "function=slow": Around(lambda: {"slow": slow}, needs_node=True),
    "async def lifespan(app)": Around(
        lambda: {
            "asynccontextmanager": asynccontextmanager,
            "Node": Node,
            "app": SimpleNamespace(state=SimpleNamespace()),
        },
        after="async with lifespan(app):\n    assert await app.state.node.workers()",
    ),
    "def test_squares(formation_network)": Around(
        lambda: {"SimpleNamespace": SimpleNamespace, "SyncNode": formation_p2p.SyncNode},
        after="def square(n):\n    return n * n\n\n"
        "test_squares(SimpleNamespace(join=lambda: SyncNode.join(listen=())))",
    ),
    "import formation_p2p.joblib": Around(lambda: {"SyncNode": formation_p2p.SyncNode}),
    "loop.run_in_executor(": Around(
        lambda: {"asyncio": asyncio, "slow": slow},
        needs_node=True,
        after="assert (first, second) == (slow(1000), slow(2000))",
    ),
}


def around(block: Block) -> Around:
    (found,) = [each for text, each in PROGRAMS.items() if text in block.text]
    return found


@pytest.mark.parametrize("shown", shown_blocks("python"))
def test_every_program_runs(
    shown: Block, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORMATION_HOME", str(network.homes["person"]))
    monkeypatch.chdir(tmp_path)
    _put_files(tmp_path)
    left_out = around(shown)
    # As a script: what it defines is pickled by value.
    names: dict[str, Any] = {"__name__": "__main__", "formation_p2p": formation_p2p}
    names |= left_out.names()
    if not left_out.needs_node:
        run_all(shown, left_out, names)
        return

    async def in_node() -> None:
        async with Node.join(listen=()) as node:
            profiles = await node.workers()
            blob = await node.put("a.bin")
            names.update(node=node, profiles=profiles, blob=blob)
            await execute(shown, left_out, names)

    asyncio.run(asyncio.wait_for(in_node(), HANGS_S))


def source_of(shown: Block, left_out: Around, names: dict[str, Any]) -> CodeType:
    old, new = left_out.replaced
    text = shown.text.replace(old, new.format(cid=getattr(names.get("blob"), "cid", "")))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    where = f"{shown.document}:{shown.line}"
    source = f"{text}\n{left_out.after}\n"
    code: CodeType = compile(source, where, "exec", flags=flags, dont_inherit=True)
    return code


async def execute(shown: Block, left_out: Around, names: dict[str, Any]) -> None:
    done = eval(source_of(shown, left_out, names), names)
    if inspect.isawaitable(done):
        await done


def run_all(shown: Block, left_out: Around, names: dict[str, Any]) -> None:
    code = source_of(shown, left_out, names)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(asyncio.wait_for(eval(code, names), HANGS_S))
    else:
        eval(code, names)


def test_every_program_around_a_fragment_is_still_there() -> None:
    shown = [each for (each,) in (given.values for given in shown_blocks("python"))]
    for text in PROGRAMS:
        assert sum(text in each.text for each in shown) == 1, text


# -- files and everything else -------------------------------------------------------------------


def test_every_toml_file_is_a_catalog_or_a_job_file_or_names_an_extension(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    for program in ("prepare.sh", "train.py", "compare.py"):
        (tmp_path / program).touch()
    for (shown,) in (each.values for each in shown_blocks("toml")):
        project = tomllib.loads(shown.text).get("project")
        if shown.document == "docs/how-to/services.md":
            assert services_of(shown.text).specs
        elif project is None:
            assert parse_job_file(shown.text, tmp_path).plan().tasks
        else:
            assert set(project["entry-points"]) <= {
                "formation_p2p.drivers",
                "formation_p2p.policies",
            }


def test_every_block_says_what_it_is() -> None:
    """`text` is a picture, a formula or what a program prints; `sh` is for people who set a machine
    up, as its administrators, or run services, or what a task runs; there is one YAML file, for
    Prometheus, which nothing here reads."""
    for shown in blocks():
        assert shown.language in ("console", "python", "toml", "yaml", "text", "sh"), shown
        assert shown.language != "sh" or shown.document.startswith("docs/")
        if shown.language == "yaml":
            assert shown.document == "docs/reference/metrics.md"
            assert 'targets: ["127.0.0.1:9464"]' in shown.text
    indented = [each.document for each in blocks("text") if re.search(r"^\$ ", each.text, re.M)]
    assert indented == [], "commands stand in blocks of `console`"
