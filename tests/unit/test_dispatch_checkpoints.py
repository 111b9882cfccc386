"""Checkpoints: what a task has saved is kept by its owner and by other peers, and goes along when
the task is started again."""

from dataclasses import replace

import cbor2
import pytest

from formation_p2p.assembly import PeerEffect, PeerEvent
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Leaving
from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.jobs.core.checkpoints import MAX_AHEAD, MAX_PER_S, RENEWED_S, WANTED
from formation_p2p.jobs.core.fetch import (
    CheckpointKept,
    CheckpointSpread,
    DropCheckpoints,
    KeepCheckpoint,
    SpreadCheckpoint,
)
from formation_p2p.jobs.core.job_events import JobEnded, TaskSaved, TaskSucceeded
from formation_p2p.leases.core.messages import Notice, TaskCheckpoint
from formation_p2p.leases.core.session import Received
from formation_p2p.peer.core.events import Vacate
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import (
    MAX_CHECKPOINT_BYTES,
    MAX_PACKED_BYTES,
    MAX_SEQUENCE,
    Checkpoint,
    inline,
)
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.executor import Run, Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import ALICE, job, only, passed, peer_of, town, worker_of, workers_of

RUNS_S = 30.0
FOUR = {"alice": 1, "carol": 1, "dave": 1, "erin": 1}


def long(running: Running) -> tuple[float, Outcome]:
    return RUNS_S, Succeeded(b"done")


def content(text: bytes, *sources: Contact) -> Blob:
    return Blob(Cid(RAW, digest_of(text)), len(text), sources)


def begun(run: Run = long, /, **cores: int) -> tuple[World, SimNode, SimNode, list[PeerEffect]]:
    """A job of bob's runs: the world, bob, the worker, and what bob asks for from now on."""
    world = town(7, run, **cores)
    bob = world.nodes["bob"]
    asked: list[PeerEffect] = []

    def see(node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if node.name == "bob":
            asked.extend(effects)

    world.witness = see
    bob.submit(job())
    world.elapse(2)
    (worker,) = [node for node in world.nodes.values() if node.running]
    return world, bob, worker, asked


def saves(world: World, worker: SimNode, text: bytes) -> None:
    (key,) = worker.running
    world.deliver(worker, ExecutionSaved(*key, content(text, worker.contact)))


def until_asked(world: World, asked: list[PeerEffect]) -> None:
    """Until bob is about to fetch something."""
    for _ in range(1000):
        if only(asked, KeepCheckpoint):
            return
        world.elapse(0.001)
    raise AssertionError("nothing is fetched")


def test_a_task_that_fails_goes_on_from_what_its_worker_has() -> None:
    ways: list[Outcome] = [Succeeded(b"done"), Failed(FailureKind.EXIT, "exit 1")]
    world, bob, alice, asked = begun(lambda running: (5.0, ways.pop()), alice=1)
    world.elapse(2.9)
    saves(world, alice, b"the last words")
    world.elapse(0.2)
    assert len(only(asked, KeepCheckpoint)) == 1
    (running,) = alice.running.values()
    assert running.work.restored is not None
    assert running.work.restored.cid == content(b"the last words").cid
    world.elapse(6)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def test_a_task_goes_on_elsewhere_from_what_it_had_saved() -> None:
    world, bob, first, asked = begun(alice=1, carol=1)
    assert [each.work.restored for each in first.running.values()] == [None]
    saves(world, first, b"half of it")
    world.elapse(1)
    (keep,) = only(asked, KeepCheckpoint)
    assert keep.checkpoint == Checkpoint(1, content(b"half of it", first.contact))
    (second,) = (world.nodes[name] for name in ("alice", "carol") if name != first.name)
    (spread,) = only(asked, SpreadCheckpoint)
    assert [each.peer_id for each in spread.others] == [second.identity.peer_id]
    world.kill(first)
    world.elapse(20)
    assert workers_of(bob) == [first.name, second.name]
    (running,) = second.running.values()
    restored = running.work.restored
    assert restored is not None
    assert restored == content(b"half of it", *restored.sources)
    assert [each.peer_id for each in restored.sources] == [
        second.identity.peer_id,
        bob.identity.peer_id,
    ]
    # The chain goes on with the next number, and what it held before is replaced.
    saves(world, second, b"more of it")
    world.elapse(1)
    told = only(passed(world, second.name, "bob"), TaskCheckpoint)
    assert [each.checkpoint.sequence for each in told] == [2]
    assert [each.up_to for each in only(asked, DropCheckpoints)] == [0, 1]
    world.elapse(RUNS_S)
    assert len(only(bob.reported, TaskSucceeded)) == 1
    counted = only(bob.reported, TaskSaved)
    known = [(each.checkpoint.sequence, len(each.holders)) for each in counted]
    assert known == [(1, 1), (2, 0)]
    assert [each.up_to for each in only(asked, DropCheckpoints)] == [0, 1, MAX_SEQUENCE]


def test_a_task_goes_on_from_what_another_had_saved() -> None:
    world, bob, first, asked = begun(alice=1, carol=1)
    saves(world, first, b"half of it")
    world.elapse(1)
    assert peer_of(bob).scheduler.saved() == {"job/0": 1}
    asked.clear()
    follows = replace(job(job_id="next").tasks[0], goes_on_from="job/0")
    anew = replace(job(job_id="anew").tasks[0], goes_on_from="none/0")
    bob.submit(replace(job(job_id="next"), tasks=(follows,)))
    bob.cancel("job")
    world.elapse(2)
    assert [each.task_id for each in only(asked, KeepCheckpoint)] == ["next/0"]
    assert {(each.task_id, each.up_to) for each in only(asked, DropCheckpoints)} == {
        ("next/0", 0),
        ("job/0", MAX_SEQUENCE),
    }
    (running,) = (each for node in world.nodes.values() for each in node.running.values())
    assert running.work.restored is not None
    assert running.work.restored.cid == content(b"half of it").cid
    assert peer_of(bob).scheduler.saved() == {"next/0": 1}
    bob.submit(replace(job(job_id="anew"), tasks=(anew,)))
    world.elapse(2)
    works = [each.work for node in world.nodes.values() for each in node.running.values()]
    assert sorted(work.restored is None for work in works) == [False, True]


def test_of_those_that_come_while_one_is_fetched_the_newest_is_next() -> None:
    world, _, alice, asked = begun(alice=1)
    for text in (b"one", b"two", b"three"):
        saves(world, alice, text)
    world.elapse(1)
    assert [each.checkpoint.sequence for each in only(asked, KeepCheckpoint)] == [1, 3]
    assert only(asked, SpreadCheckpoint) == []


def test_what_could_not_be_fetched_does_not_count() -> None:
    world, bob, first, asked = begun(alice=1, carol=1)
    saves(world, first, b"lost with it")
    until_asked(world, asked)
    world.kill(first)
    world.elapse(20)
    (running,) = (each for node in world.nodes.values() for each in node.running.values())
    assert running.work.restored is None
    world.elapse(RUNS_S)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def test_only_an_attempt_in_flight_under_its_fence_is_heard_and_only_what_is_newer() -> None:
    world, bob, alice, asked = begun(alice=1)
    (lease_id, attempt_id) = next(iter(alice.running))
    (active,) = peer_of(bob).scheduler.leases()
    fence = active.lease.fence
    blob = content(b"x", alice.contact)

    def told(fence: int, attempt_id: str, sequence: int, sender: Contact) -> int:
        message = TaskCheckpoint(lease_id, fence, attempt_id, Checkpoint(sequence, blob))
        world.deliver(bob, Received(sender, message))
        world.elapse(1)
        count = len(only(asked, KeepCheckpoint))
        asked.clear()
        return count

    over = ExecutionSaved(lease_id, "job/0#9", blob)
    assert worker_of(alice).executions.handle_report(over) == []
    assert told(fence - 1, attempt_id, 5, alice.contact) == 0
    assert told(fence, "job/0#9", 5, alice.contact) == 0
    assert told(fence, attempt_id, 5, ALICE) == 0
    assert told(fence, attempt_id, 5, alice.contact) == 1
    assert told(fence, attempt_id, 5, alice.contact) == 0
    assert told(fence, attempt_id, 4, alice.contact) == 0
    assert told(fence, attempt_id, 6, alice.contact) == 1
    # No honest worker is so far ahead, and the last number would be the end of the chain.
    assert told(fence, attempt_id, 2 * MAX_AHEAD, alice.contact) == 0
    assert told(fence, attempt_id, MAX_SEQUENCE, alice.contact) == 0
    bob.cancel("job")
    world.elapse(1)
    assert [each.up_to for each in only(asked, DropCheckpoints)] == [MAX_SEQUENCE]
    assert told(fence, attempt_id, 7, alice.contact) == 0


@pytest.mark.at_length
def test_a_worker_does_not_use_up_the_numbers_of_a_task() -> None:
    """Whatever it sends meanwhile, the next worker's checkpoints have numbers left."""
    world, bob, alice, _ = begun(alice=1)
    (lease_id, attempt_id) = next(iter(alice.running))
    (active,) = peer_of(bob).scheduler.leases()
    fence, seconds = active.lease.fence, 10
    for _ in range(seconds):
        for _ in range(100):
            newest = peer_of(bob).scheduler.saved().get("job/0", 0)
            for ahead in (MAX_AHEAD, MAX_PER_S, 1):
                number = Checkpoint(newest + ahead, inline(b"x"), b"x")
                message = TaskCheckpoint(lease_id, fence, attempt_id, number)
                world.deliver(bob, Received(alice.contact, message))
        world.elapse(1)
    newest = peer_of(bob).scheduler.saved()["job/0"]
    assert MAX_AHEAD < newest <= 2 * MAX_AHEAD + MAX_PER_S * seconds


def test_what_comes_once_the_task_has_ended_has_no_effect() -> None:
    world, bob, alice, asked = begun(alice=1)
    (key,) = alice.running
    world.elapse(RUNS_S)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert only(asked, DropCheckpoints) == []
    late = ExecutionSaved(*key, content(b"late", alice.contact))
    assert worker_of(alice).executions.handle_report(late) == []
    world.deliver(bob, CheckpointKept("job/0", 1, bob.contact))
    world.elapse(1)
    assert only(asked, KeepCheckpoint) == []


def holders_told(bob: SimNode) -> list[list[str]]:
    names = {node.identity.peer_id: name for name, node in bob.world.nodes.items()}
    return [[names[x] for x in each.holders] for each in only(bob.reported, TaskSaved)]


@pytest.mark.at_length
def test_two_others_hold_it_and_are_asked_again_before_they_may_forget() -> None:
    world, bob, alice, asked = begun(lambda running: (9999.0, Succeeded(b"done")), **FOUR)
    saves(world, alice, b"half")
    world.elapse(1)
    (first,) = only(asked, SpreadCheckpoint)
    assert first.wanted == WANTED
    assert alice.identity.peer_id not in {each.peer_id for each in first.others}
    (two,) = holders_told(bob)
    assert len(two) == WANTED
    world.elapse(RENEWED_S + 1)
    _, again = only(asked, SpreadCheckpoint)
    assert again.checkpoint.sequence == 1
    assert [each.peer_id for each in again.others[:WANTED]] == [
        each.peer_id for each in first.others[:WANTED]
    ]
    assert holders_told(bob) == [two]
    # What is newer goes to those that hold the one before: it takes the place of that.
    saves(world, alice, b"more")
    world.elapse(1)
    assert holders_told(bob) == [two, two]


def leaves(world: World, bob: SimNode, name: str) -> None:
    """A machine that may hold something of bob's, and of which he has no lease."""
    world.deliver(world.nodes[name], Vacate(30.0, (bob.contact,)))
    world.elapse(1)


def test_a_holder_that_leaves_is_replaced_at_once() -> None:
    world, bob, alice, asked = begun(lambda running: (9999.0, Succeeded(b"done")), **FOUR)
    saves(world, alice, b"half")
    world.elapse(1)
    (two,) = holders_told(bob)
    (third,) = FOUR.keys() - {alice.name, *two}
    leaves(world, bob, third)  # it holds nothing
    assert len(only(asked, SpreadCheckpoint)) == 1
    leaves(world, bob, two[0])
    leaves(world, bob, two[0])
    assert len(only(asked, SpreadCheckpoint)) == 2
    assert sorted(holders_told(bob)[-1]) == sorted((two[1], third))
    # It may have come back when there is more to hold.
    saves(world, alice, b"more")
    world.elapse(1)
    *_, last = only(asked, SpreadCheckpoint)
    assert len(last.others) == 3


def test_one_that_leaves_while_it_is_asked_to_hold_is_replaced_at_once() -> None:
    world, bob, alice, asked = begun(lambda running: (9999.0, Succeeded(b"done")), **FOUR)
    first, second, third = sorted(FOUR.keys() - {alice.name})
    notice = Received(world.nodes[first].contact, Notice("", 0, 30_000, Leaving()))
    saves(world, alice, b"half")
    world.deliver(bob, notice)
    while not only(asked, SpreadCheckpoint):
        world.elapse(0.001)
    world.deliver(bob, notice)
    held = tuple(world.nodes[name].contact for name in (first, second))
    world.deliver(bob, CheckpointSpread("job/0", 1, held))
    _, again = only(asked, SpreadCheckpoint)
    left = {world.nodes[name].identity.peer_id for name in (second, third)}
    assert {each.peer_id for each in again.others} == left


def test_what_is_small_is_with_its_owner_whoever_leaves() -> None:
    world, bob, alice, asked = begun(lambda running: (9999.0, Succeeded(b"done")), **FOUR)
    (key,) = alice.running
    (active,) = peer_of(bob).scheduler.leases()
    small = Checkpoint(1, inline(b"half"), b"half")
    message = TaskCheckpoint(key[0], active.lease.fence, key[1], small)
    world.deliver(bob, Received(alice.contact, message))
    assert only(bob.reported, TaskSaved)
    leaves(world, bob, min(FOUR.keys() - {alice.name}))
    assert not only(asked, SpreadCheckpoint)


def test_a_worker_that_was_sent_the_last_number_saves_no_more() -> None:
    _, _, alice, _ = begun(alice=1)
    (key,) = alice.running
    run = worker_of(alice).executions.runs[key[0]]
    run.saved[key[1]] = MAX_SEQUENCE
    over = ExecutionSaved(*key, content(b"one too many", alice.contact))
    assert worker_of(alice).executions.handle_report(over) == []


@pytest.mark.parametrize("sequence", [0, MAX_SEQUENCE + 1, True])
def test_a_number_is_one_of_a_chain(sequence: int) -> None:
    with pytest.raises(InvalidInput, match="its number is not from 1"):
        Checkpoint(sequence, content(b"x"))


def test_what_is_too_large_or_none_is_refused() -> None:
    large = Blob(Cid(0x71, bytes(32)), MAX_CHECKPOINT_BYTES + 1)
    with pytest.raises(InvalidInput, match="has more than"):
        Checkpoint(1, large)
    saved = Checkpoint(3, content(b"x", ALICE))
    assert Checkpoint.unpack(saved.pack()) == saved
    wrong = [cbor2.dumps(each) for each in (None, [], ["1", 1], [1, [b"", 1, []]])]
    for each in (None, b"", bytes(MAX_PACKED_BYTES + 1), *wrong):
        with pytest.raises(InvalidInput):
            Checkpoint.unpack(each)
