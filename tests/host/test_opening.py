"""Whichever step of opening a node fails, nothing of it is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from formation_p2p import Node, SyncNode
from formation_p2p.api import durable
from formation_p2p.api import opened as services
from formation_p2p.api.durable import DurableJobs
from formation_p2p.content.store import BlobStore
from formation_p2p.core.errors import LocalError, NodeClosed
from formation_p2p.machine.claim import claim
from formation_p2p.machine.home import Home
from formation_p2p.observe.observability import Observability
from formation_p2p.observe.tracing import Tracing
from formation_p2p.peer.runtime import Runtime
from formation_p2p.peer.shell import Shell
from formation_p2p.state.state import State
from tests.support.loopback import LISTEN
from tests.support.waiting import until

WITHIN_S = 30.0
POOL = 4


class Broken(Exception):
    """What the step under test fails with."""


def fails(*_: object, **__: object) -> None:
    raise Broken


def before(owner: object, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The step is not done."""
    return lambda patch: patch.setattr(owner, name, fails)


def after(owner: object, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The step is done, and fails in the end."""
    step = getattr(owner, name)

    def does_and_fails(*args: object, **kwargs: object) -> None:
        step(*args, **kwargs)
        raise Broken

    return lambda patch: patch.setattr(owner, name, does_and_fails)


# In their order. What `after` fails has something to undo by itself.
STEPS = {
    "claim": before(services, "claim"),
    "traces": before(Tracing, "open"),
    "traces, begun": after(Tracing, "open"),
    "observability": before(Observability, "open"),
    "observability, open": after(Observability, "open"),
    "blobs": before(services, "BlobStore"),
    "blobs, loaded": after(BlobStore, "load"),
    "the state": before(durable, "State"),
    "the state, not read": before(State, "load"),
    "the journal": before(durable, "Journal"),
    "trust": before(services, "TrustFile"),
    "the runtime": before(services, "Runtime"),
    "the thread": before(Runtime, "start"),
    "the thread, up": after(Runtime, "start"),
    "the stack": before(Shell, "run"),
    "what observes": before(Observability, "begin"),
    "what observes, begun": after(Observability, "begin"),
    "the jobs": before(DurableJobs, "resume"),
    "the jobs, resumed": after(DurableJobs, "resume"),
}


@dataclass(frozen=True)
class Left:
    """What a process holds that a node could have left behind."""

    threads: frozenset[str]
    files: Counter[str]
    sockets: frozenset[Path]

    @classmethod
    def of(cls, home: Path) -> Left:
        gc.collect()
        files: Counter[str] = Counter()
        for each in Path("/proc/self/fd").iterdir():
            try:
                files[str(each.readlink()).partition(":")[0]] += 1
            except FileNotFoundError:
                continue  # the one that lists them
        # trio keeps idle threads for ten seconds, whatever used them.
        threads = frozenset(
            each.name for each in threading.enumerate() if not each.name.startswith("Trio thread")
        )
        return cls(threads - {"MainThread"}, files, frozenset(home.glob("*.sock")))


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A home of which a node has been opened before, so that all is imported."""
    home = Home(tmp_path / "home")
    home.create_network()
    await filled_pool()
    async with a_node(home.path):
        pass
    return home.path


def a_node(home: Path) -> Node:
    return Node.join(
        home=home, listen=LISTEN, state=home / "jobs.db", metrics="127.0.0.1:0", traces=True
    )


async def filled_pool() -> None:
    """The loop's own threads are there before."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(POOL))
    barrier = threading.Barrier(POOL)
    waiting = (loop.run_in_executor(None, barrier.wait, WITHIN_S) for _ in range(POOL))
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_fails_leaves_nothing_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tasks = asyncio.all_tasks()
    held = Left.of(home)
    node = a_node(home)
    with monkeypatch.context() as patched:
        STEPS[step](patched)
        with pytest.raises((Broken, LocalError)):
            await node.__aenter__()
    assert Left.of(home) == held
    assert asyncio.all_tasks() <= tasks
    claim(Home(home)).release()  # its lock is free
    async with a_node(home) as again:
        assert again.addresses
    assert Left.of(home) == held


async def test_a_node_that_is_cancelled_while_it_opens_leaves_nothing_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Left.of(home)
    opening, cancelled = threading.Event(), threading.Event()
    load = BlobStore.load

    def waits(store: BlobStore) -> None:
        opening.set()
        assert cancelled.wait(WITHIN_S)
        load(store)

    monkeypatch.setattr(BlobStore, "load", waits)
    entering = asyncio.ensure_future(a_node(home).__aenter__())

    await until(lambda: opening.is_set())
    entering.cancel()
    await asyncio.sleep(0)
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert Left.of(home) == held


async def test_a_node_that_was_left_holds_nothing(home: Path) -> None:
    async with a_node(home) as node:
        await node.worker()  # its drivers keep what they make once for the process
    held = Left.of(home)
    async with a_node(home) as node:
        await node.worker()
        assert Left.of(home) != held
    assert Left.of(home) == held
    with pytest.raises(NodeClosed):
        await node.workers()


def test_a_script_whose_node_cannot_be_entered_has_no_thread_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.create_network()
    with SyncNode.join(home=home.path, listen=LISTEN):
        pass
    held = Left.of(home.path)
    after(Runtime, "start")(monkeypatch)
    with pytest.raises(Broken), SyncNode.join(home=home.path, listen=LISTEN):
        raise AssertionError("it was entered")
    assert Left.of(home.path) == held
