"""Small checkpoints: they go along with what is told of them, and count at once."""

import pytest

from formation_p2p.assembly import PeerEffect
from formation_p2p.core.errors import InvalidInput
from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.jobs.core.fetch import DropCheckpoints, KeepCheckpoint, SpreadCheckpoint
from formation_p2p.jobs.core.job_events import TaskSaved
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import MAX_INLINE_BYTES, Checkpoint, inline
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import job, only, town, workers_of


def long(running: Running) -> tuple[float, Outcome]:
    return 30.0, Succeeded(b"done")


def begun() -> tuple[World, SimNode, SimNode, list[PeerEffect]]:
    """A job of bob's runs: the world, bob, the worker, and what bob asks for from now on."""
    world = town(7, long, alice=1, carol=1)
    bob = world.nodes["bob"]
    asked: list[PeerEffect] = []
    world.witness = lambda node, event, effects: asked.extend(effects if node is bob else ())
    bob.submit(job())
    world.elapse(2)
    (worker,) = [node for node in world.nodes.values() if node.running]
    return world, bob, worker, asked


def saves(worker: SimNode, content: bytes) -> None:
    (key,) = worker.running
    worker.world.deliver(worker, ExecutionSaved(*key, inline(content), content))


def saves_much(worker: SimNode, text: bytes) -> None:
    (key,) = worker.running
    blob = Blob(inline(text).cid, len(text), (worker.contact,))
    worker.world.deliver(worker, ExecutionSaved(*key, blob))


def test_it_is_fetched_by_none_and_goes_along_where_the_task_is_placed_again() -> None:
    world, bob, first, asked = begun()
    saves(first, b"a little")
    world.elapse(0.1)
    (told,) = only(bob.reported, TaskSaved)
    assert told.checkpoint == Checkpoint(1, inline(b"a little"), b"a little")
    assert told.holders == ()
    assert not only(asked, KeepCheckpoint)
    assert not only(asked, SpreadCheckpoint)
    world.kill(first)
    world.elapse(20)
    assert len(workers_of(bob)) == 2
    (running,) = [x for node in world.nodes.values() for x in node.running.values()]
    assert running.work.content == b"a little"
    assert running.work.restored == inline(b"a little")
    world.elapse(31)
    assert not only(asked, DropCheckpoints)


def test_one_that_is_large_may_follow_and_another_small_one_then_counts_before_it() -> None:
    world, bob, first, asked = begun()
    saves(first, b"a little")
    saves_much(first, b"much")
    saves(first, b"less again")
    world.elapse(0.015)
    (keep,) = only(asked, KeepCheckpoint)
    assert keep.checkpoint.sequence == 2
    world.elapse(2)
    assert [each.checkpoint.sequence for each in only(bob.reported, TaskSaved)] == [1, 3]
    # What was held in the cache may go.
    assert [each.up_to for each in only(asked, DropCheckpoints)] == [2]
    world.elapse(40)
    assert only(asked, DropCheckpoints)[-1].up_to > 3


@pytest.mark.parametrize("content", [b"x" * (MAX_INLINE_BYTES + 1), "text", b"other"])
def test_content_that_is_too_large_or_another_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="its content is not what its name says"):
        Checkpoint(1, inline(b"x" * (MAX_INLINE_BYTES + 1)), content)


def test_it_is_read_as_it_was_written() -> None:
    for content in (b"", b"a little", bytes(MAX_INLINE_BYTES)):
        checkpoint = Checkpoint(7, inline(content), content)
        assert Checkpoint.unpack(checkpoint.pack()) == checkpoint
