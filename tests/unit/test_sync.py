"""`SyncNode`, `SyncJob` and `SyncGang` have all that `Node`, `JobHandle` and `Gang` have, with the
same signatures."""

import asyncio
import inspect
import pydoc
import re
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
FOR_THE_NODE = {"heeds", "notify", "flush", "fail"}
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


def test_a_node_that_cannot_be_entered_leaves_no_thread_and_no_loop(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="no network"), SyncNode.join(home=tmp_path / "empty"):
        raise AssertionError("it was entered")
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
