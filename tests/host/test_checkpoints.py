"""What a submitter holds of its tasks, and has others hold: through its own restart, from hostile
workers and holders, and within bounds."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.core.messages import Chunk, Keep, Open, Opened, Want, parse_request
from formation_p2p.content.data_stream import _framed
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import MIB
from formation_p2p.jobs.checkpoints import WORKER_SHARE, CheckpointKeeper, job_of
from formation_p2p.jobs.core.fetch import (
    CheckpointEvent,
    CheckpointKept,
    CheckpointSpread,
    DropCheckpoints,
    KeepCheckpoint,
    SpreadCheckpoint,
)
from formation_p2p.net.transport.frames import read_frame
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.state.journal import Journal
from formation_p2p.state.state import State
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import MAX_SEQUENCE, Checkpoint
from tests.support.data_world import Holder, Liar, content, from_
from tests.support.stacks import run, running
from tests.support.state_world import job_of as a_job
from tests.support.waiting import in_trio

JOB = "a" * 16
TASK = f"{JOB}/0"


class Submitter:
    """A node that keeps checkpoints, and what it was told."""

    def __init__(self, node: Holder, journal: Journal | None = None) -> None:
        self.told: list[CheckpointEvent] = []
        self.keeper = CheckpointKeeper(node.stack, node.exchange, journal, self.told.append)

    async def keep(self, blob: Blob, sequence: int = 1, task_id: str = TASK) -> bool:
        checkpoint = Checkpoint(sequence, blob)
        await self.keeper.perform(KeepCheckpoint(task_id, JOB, checkpoint, cause="test"))
        told = self.told.pop()
        assert isinstance(told, CheckpointKept)
        assert (told.task_id, told.sequence) == (task_id, sequence)
        return told.holder is not None

    async def spread(self, blob: Blob, *others: Holder | Liar, wanted: int = 2) -> int:
        asked = tuple(each.contact for each in others)
        ask = SpreadCheckpoint(TASK, Checkpoint(1, blob), asked, wanted, cause="test")
        await self.keeper.perform(ask)
        told = self.told.pop()
        assert isinstance(told, CheckpointSpread)
        return len(told.holders)

    async def drop(self, up_to: int) -> None:
        await self.keeper.perform(DropCheckpoints(TASK, JOB, up_to, cause="test"))


def working(*nodes: Holder) -> None:
    for each in nodes:
        each.exchange.server.hold = each.exchange.held_for_others.hold


@in_trio
async def test_others_hold_what_they_fetch_from_here(tmp_path: Path) -> None:
    alice, bob, carol, dave = (Holder(tmp_path / x) for x in ("alice", "bob", "carol", "dave"))
    working(carol)
    submitter = Submitter(bob)
    async with running(alice, bob, carol, dave):
        blob = alice.put(content(2))
        assert await submitter.keep(blob)
        assert bob.store.holds(blob.cid)
        # Dave works for no other.
        assert await submitter.spread(blob, dave, carol) == 1
        assert carol.store.holds(blob.cid)
        assert not dave.store.holds(blob.cid)
        await submitter.drop(MAX_SEQUENCE)
        assert await submitter.spread(blob, carol) == 0  # its task has ended


@in_trio
async def test_a_stranger_has_a_node_hold_nothing(tmp_path: Path) -> None:
    carol = Holder(tmp_path / "carol")
    mallory = Holder(tmp_path / "mallory", root=Identity.from_seed(bytes(32)))
    working(carol)
    submitter = Submitter(mallory)
    async with running(carol, mallory):
        blob = from_(mallory.store.add(content(1), "x"), mallory)
        assert await submitter.keep(blob)
        assert await submitter.spread(blob, carol) == 0
        assert not carol.store.holds(blob.cid)


async def _hold_and_lie(muxed: MuxedStream) -> None:
    """Says that it holds what it has not, and serves other bytes."""
    request = parse_request(await read_frame(muxed, 4096))
    await muxed.write(_framed(Opened()))
    if isinstance(request, Keep):
        return
    assert isinstance(request, Open)
    while isinstance(want := parse_request(await read_frame(muxed, 4096)), Want):
        await muxed.write(_framed(Chunk(want.index, MIB)) + bytes(MIB))


@in_trio
async def test_a_holder_that_serves_wrong_bytes_costs_nothing(tmp_path: Path) -> None:
    alice, bob, carol = (Holder(tmp_path / name) for name in ("alice", "bob", "carol"))
    mallory = Liar(_hold_and_lie)
    submitter = Submitter(bob)
    data = content(1)
    async with running(alice, bob, carol, mallory):
        blob = alice.put(data)
        assert await submitter.keep(blob)
        assert await submitter.spread(blob, mallory) == 1
        assert await carol.get(from_(blob, mallory, bob)) == data
        # And a worker that lies of what it has saved brings nothing here.
        other = alice.put(content(1), "other")
        assert not await submitter.keep(from_(other, mallory), 2)
        assert not bob.store.holds(other.cid)


@in_trio
async def test_what_tasks_on_one_worker_save_keeps_to_its_share(tmp_path: Path) -> None:
    alice, carol = Holder(tmp_path / "alice"), Holder(tmp_path / "carol")
    bob = Holder(tmp_path / "bob", limit_bytes=8 * MIB)
    submitter = Submitter(bob)
    share = 8 // WORKER_SHARE
    async with running(alice, bob, carol):
        for number in range(share):
            assert await submitter.keep(alice.put(content(1), f"{number}"), 1, f"{number}")
        assert not await submitter.keep(alice.put(content(1), "more"), 1, "more")
        assert await submitter.keep(carol.put(content(1)), 1, "other")
        # What has ended makes room.
        await submitter.keeper.perform(DropCheckpoints("0", JOB, MAX_SEQUENCE, cause="test"))
        assert await submitter.keep(alice.put(content(1), "again"), 1, "more")


@contextmanager
def a_state(folder: Path) -> Iterator[Journal]:
    with closing(State(folder / "jobs.db")) as state:
        if not state.is_in_flight(JOB):
            state.save_job(a_job(1, JOB))
        journal = Journal(state, lambda error: None)
        try:
            yield journal
        finally:
            journal.close()


def test_the_newest_of_a_job_that_is_kept_outlives_the_node(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    old, new = content(1), content(1)
    names: list[frozenset[str]] = []

    async def story(journal: Journal) -> None:
        submitter = Submitter(bob, journal)
        async with running(alice, bob):
            assert await submitter.keep(alice.put(old, "old"), 1)
            assert await submitter.keep(alice.put(new, "new"), 2)
            names.append(bob.store.durable_holders)

    with a_state(tmp_path) as journal:
        run(lambda: story(journal))
    assert len(names[0]) == 2  # it was killed before the first was dropped
    assert {job_of(name) for name in names[0]} == {JOB}
    assert job_of("for-others-0") is None
    again = Holder(tmp_path / "bob")
    blob = Manifest.of(new).blob

    async def next_life(journal: Journal) -> None:
        submitter = Submitter(again, journal)
        async with running(again):
            # Its worker is gone: what it is kept from is this node's own disk.
            assert await submitter.keep(from_(blob, again), 2)
            await submitter.drop(1)
            assert len(again.store.durable_holders) == 1
            assert again.store.is_holder(min(again.store.durable_holders))
            await submitter.drop(MAX_SEQUENCE)
            assert again.store.durable_holders == frozenset()

    with a_state(tmp_path) as journal:
        run(lambda: next_life(journal))


@in_trio
async def test_one_that_is_dropped_while_it_comes_leaves_nothing(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    submitter = Submitter(bob)
    async with running(alice, bob):
        blob = alice.put(content(1))
        gone = replace(blob, sources=())
        assert not await submitter.keep(gone)  # from no peer
        await submitter.drop(MAX_SEQUENCE)  # of a task of which nothing is held
        assert await submitter.keep(blob)
