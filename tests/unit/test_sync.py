"""`SyncNode`, `SyncJob` and `SyncGang` have all that `Node`, `JobHandle` and `Gang` have, with the
same signatures."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import re
import subprocess
import sys
import textwrap
import threading
import types
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from formation_p2p import (
    CallKwargs,
    Gang,
    Hints,
    JobHandle,
    Node,
    Requirements,
    SyncGang,
    SyncJob,
    SyncNode,
    TaskOptionKwargs,
    TaskOptions,
)
from formation_p2p.api.bridge import JobObserver
from formation_p2p.features.gangs.api.store import GangStore
from formation_p2p.features.gangs.api.sync import SyncGangStore
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS

PAIRS: list[tuple[type, type]] = [
    (Node, SyncNode),
    (JobHandle, SyncJob),
    (Gang, SyncGang),
    (GangStore, SyncGangStore),
]
# How the node tells a handle what happens; not for the person who holds it.
FOR_THE_NODE = {"notify", "flush", "fail"}
# How a gang's own parts use it; and what gives streams of asyncio, where a script has `forward`.
OF_GANGS = {"begin_part", "check_lives", "connect", "form", "saved", "watched", "watching"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - FOR_THE_NODE - OF_GANGS


def test_what_a_handle_hides_is_for_the_node() -> None:
    assert {name for name in vars(JobObserver) if not name.startswith("_")} - {
        "is_over"
    } == FOR_THE_NODE


@pytest.mark.parametrize(("kind", "sync"), PAIRS)
def test_every_public_name_is_there(kind: type, sync: type) -> None:
    assert public(sync) == public(kind)


def parameters_of(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize(
    ("kind", "sync", "name"),
    [(kind, sync, name) for kind, sync in PAIRS for name in sorted(public(kind))],
)
def test_every_signature_is_the_same(kind: type, sync: type, name: str) -> None:
    its, ours = inspect.getattr_static(kind, name), inspect.getattr_static(sync, name)
    assert type(its) is type(ours)
    if isinstance(its, property):
        assert isinstance(ours, property)
        assert its.fget is not None
        assert ours.fget is not None
        assert typing.get_type_hints(ours.fget) == typing.get_type_hints(its.fget)
    else:
        assert parameters_of(getattr(sync, name)) == parameters_of(getattr(kind, name))
        assert getattr(sync, name).__doc__, "it says what it does"
        assert isinstance(ours, types.FunctionType | classmethod)
        assert not inspect.iscoroutinefunction(getattr(sync, name))


@pytest.mark.parametrize("method", [Node.map, SyncNode.map, SyncNode.executor, Node.submit])
def test_help_lists_the_options_on_one_screen(method: Callable[..., object]) -> None:
    found = inspect.signature(method)
    kind = TaskOptionKwargs if method is Node.submit else CallKwargs
    assert kind.__annotations__.keys() <= found.parameters.keys()
    assert found.parameters["options"].default.attempts == found.parameters["attempts"].default
    text = pydoc.plain(pydoc.render_doc(method))
    assert "needs: 'Needs' = Requirements()" in text
    assert "gpu_memory_bytes" not in text
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize(("kind", "sync"), PAIRS)
def test_what_waits_does_not_speak_of_await(kind: type, sync: type) -> None:
    told = {name: getattr(sync, name).__doc__ or "" for name in public(sync) - {"join"}}  # of both
    assert [name for name in told if re.search(r"\bawait|\basync", told[name])] == []


def test_options_are_shown_as_far_as_they_say_something() -> None:
    assert repr(DEFAULT_OPTIONS) == "TaskOptions()"
    needs, hints = Requirements(cpu_milli=2000), Hints(region="eu", required={"region"})
    assert repr(needs) == "Requirements(cpu_milli=2000)"
    text = "TaskOptions(needs=Requirements(cpu_milli=2000), attempts=1)"
    assert repr(TaskOptions(needs=needs, attempts=1)) == text
    assert repr(hints) == "Hints(region='eu', required=frozenset({'region'}))"


TYPED = """
    from collections.abc import Callable
    from concurrent.futures import Future

    from formation_p2p import Hardware, Reference, SyncJob, SyncNode, TaskResult, ProcessSpec
    from formation_p2p.workload.core.blob import Blob

    def half(n: int) -> float:
        return n / 2

    def uses(node: SyncNode) -> None:
        a: list[float] = node.map(half, [1, 2], needs="cpu=1", speculate=True, buffersize=5)
        g: list[float] = node.map(half, [f := node.put(1)])
        job: SyncJob = node.submit(ProcessSpec(("true",)), deadline_s=5.0, learn=False)
        b: tuple[TaskResult, ...] = job.results()
        c: TaskResult | None = job.result("x")
        d: Hardware = node.worker(price_micro=3)
        e: Blob = node.put("x")
        l: Reference[int] = f
        node.get(e, "y")
        node.run(["true"], inputs={"e": e}, outputs=["f"], attempts=2)
        jobs: tuple[SyncJob, ...] = node.jobs()
        node.job("x").cancel()
        with node.executor() as executor:
            h: Future[float] = executor.submit(half, 1)
            i: Future[float] = executor.submit(half, f)
            j: Future[int] = executor.submit(sum, node.put([1]))
            k: Future[str] = executor.submit(lambda row, n: row[n], node.put(["a"]), 0)
            half_of: Callable[[int], float] = lambda n: n / 2
            m: list[float] = node.map(half_of, [f])
        o: list[float] = node.map(lambda n: n / 2, [f, f])
        p: list[int] = node.map(sum, [node.put([1])])
        q: list[int] = node.map(len, (node.put((n,)) for n in range(3)))
        r: list[int] = node.map(lambda text: len(text), ["a"])
        s: list[int] = node.map(pow, [2, 3], [5, 2])
"""
REFUSED = """
    from formation_p2p import ProcessSpec, SyncNode

    def half(n: int) -> float:
        return n / 2

    async def uses(node: SyncNode) -> None:
        node.map(half, ["a"])
        node.map(half, [node.put("a")])
        node.map(lambda n: n / 2, [node.put("a")])
        node.map(half, [1], deadline_s=5.0)
        node.submit(ProcessSpec(("true",)), atempts=2)
        node.run(["true"], timeout_s="5m")
        node.executor(learn=False)
        node.executor().submit(half, "a")
        node.executor().submit(half, node.put("a"))
        await node.submit(ProcessSpec(("true",)))
"""


def checked(folder: Path, source: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(source))
    root = Path(__file__).parents[2]
    # With the configuration of the project, so that what `make lint` has checked is not again.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(root / ".mypy_cache")]
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, cwd=root, timeout=300, check=False
    )
    return [line for line in done.stdout.splitlines() if "script.py" in line and "error:" in line]


@pytest.mark.at_length
def test_options_are_checked_by_mypy(tmp_path: Path) -> None:
    assert checked(tmp_path, TYPED) == []
    wrong = {n for n, line in enumerate(REFUSED.splitlines(), 1) if "node." in line}
    assert {int(error.split(":")[1]) for error in checked(tmp_path, REFUSED)} == wrong


def test_a_node_that_cannot_be_entered_leaves_no_thread_and_no_loop(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="no network"), SyncNode.join(home=tmp_path / "empty"):
        raise AssertionError("it was entered")
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
