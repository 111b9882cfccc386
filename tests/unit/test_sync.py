"""`SyncNode`, `SyncJob` and `SyncGang` have all that `Node`, `JobHandle` and `Gang` have, with the
same signatures."""

import asyncio
import inspect
import pydoc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from formation_p2p import (
    CallKwargs,
    Hints,
    JobHandle,
    Node,
    Requirements,
    SyncJob,
    SyncNode,
    TaskOptionKwargs,
    TaskOptions,
)
from formation_p2p.api.bridge import JobObserver
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS
from tests.support.synchronous import FOR_THE_NODE, check_signature, public, told_of_await

PAIRS: list[tuple[type, type]] = [
    (Node, SyncNode),
    (JobHandle, SyncJob),
]


def test_what_a_handle_hides_is_for_the_node() -> None:
    assert {name for name in vars(JobObserver) if not name.startswith("_")} - {
        "is_over"
    } == FOR_THE_NODE


@pytest.mark.parametrize(("kind", "sync"), PAIRS)
def test_every_public_name_is_there(kind: type, sync: type) -> None:
    assert public(sync) == public(kind)


@pytest.mark.parametrize(
    ("kind", "sync", "name"),
    [(kind, sync, name) for kind, sync in PAIRS for name in sorted(public(kind))],
)
def test_every_signature_is_the_same(kind: type, sync: type, name: str) -> None:
    check_signature(kind, sync, name)


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


@pytest.mark.parametrize("sync", [sync for _, sync in PAIRS])
def test_what_waits_does_not_speak_of_await(sync: type) -> None:
    assert told_of_await(sync) == []


def test_options_are_shown_as_far_as_they_say_something() -> None:
    assert repr(DEFAULT_OPTIONS) == "TaskOptions()"
    needs, hints = Requirements(cpu_milli=2000), Hints(region="eu", required={"region"})
    assert repr(needs) == "Requirements(cpu_milli=2000)"
    text = "TaskOptions(needs=Requirements(cpu_milli=2000), attempts=1)"
    assert repr(TaskOptions(needs=needs, attempts=1)) == text
    assert repr(hints) == "Hints(region='eu', required=frozenset({'region'}))"


def test_a_node_that_cannot_be_entered_leaves_no_thread_and_no_loop(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="no network"), SyncNode.join(home=tmp_path / "empty"):
        raise AssertionError("it was entered")
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
