"""What others have this node fetch, from sources of their choice: one whose sources bring nothing
has nothing else wait."""

from pathlib import Path

import trio
import trio.testing

from formation_p2p.content.core.messages import MAX_REPLY_BYTES, Open, Opened, Want, pack_request
from formation_p2p.content.data_stream import PROTOCOL, _framed
from formation_p2p.content.exchange import MAX_FETCHES, MAX_FETCHES_OF_OWNER
from formation_p2p.content.held_for_others import MAX_COMING_OF_PEER, is_held
from formation_p2p.content.places import Places
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.jobs.checkpoints import MAX_KEEPING, CheckpointKeeper
from formation_p2p.jobs.core.fetch import CheckpointEvent, KeepCheckpoint
from formation_p2p.net.limits import MAX_DATA_STREAMS
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import Checkpoint
from tests.support.data_world import Holder, Liar, content, from_
from tests.support.stacks import running
from tests.support.waiting import HANGS_S, in_trio, until

# Far below what a source may be silent for.
SOON_S = 40.0


class Silent(Liar):
    """Says that it has what it is asked for, and brings nothing."""

    def __init__(self) -> None:
        super().__init__(self._serve)
        self.opened = 0

    async def _serve(self, stream: MuxedStream) -> None:
        await read_frame(stream, 4096)
        self.opened += 1
        await stream.write(_framed(Opened()))
        await trio.sleep_forever()

    def named(self, name: str) -> Blob:
        """Of content that nobody has."""
        return from_(Blob(Cid(RAW, digest_of(name.encode())), MIB), self)


async def ask(who: Holder, other: Holder, blob: Blob, number: int) -> bool:
    return await is_held(
        who.stack, who.exchange, other.contact, blob, number.to_bytes(16, "big"), blob.sources
    )


@in_trio
async def test_what_a_member_has_held_keeps_no_fetch_waiting(tmp_path: Path) -> None:
    alice, bob, carol, mallory = (
        Holder(tmp_path / x) for x in ("alice", "bob", "carol", "mallory")
    )
    silent = Silent()
    bob.exchange.server.hold = bob.exchange.held_for_others.hold
    async with running(alice, bob, carol, mallory, silent), trio.open_nursery() as nursery:
        for number in range(2 * MAX_FETCHES):
            blob = silent.named(f"{number}")
            nursery.start_soon(ask, mallory, bob, blob, number)
        await until(lambda: silent.opened == MAX_COMING_OF_PEER)
        with trio.fail_after(SOON_S):
            await bob.fetch(alice.put(content(1)))
            # Nor what others have held.
            kept = carol.put(content(1))
            assert await ask(carol, bob, kept, 0)
        assert bob.store.holds(kept.cid)
        assert silent.opened == MAX_COMING_OF_PEER
        nursery.cancel_scope.cancel()


@in_trio
async def test_who_does_not_read_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    alice, carol = Holder(tmp_path / "alice"), Holder(tmp_path / "carol")
    mallories = [Holder(tmp_path / f"mallory-{number}") for number in range(3)]
    async with running(alice, carol, *mallories):
        blob = alice.put(content(1))
        for each in mallories:
            for _ in range(MAX_DATA_STREAMS):
                stream = await each.stack.open(alice.contact, PROTOCOL, timeout_s=HANGS_S)
                opening = Open(each.exchange.grant, blob.cid, manifest=False)
                for request in (opening, Want(0)):
                    await stream.write(encode_frame(pack_request(request)))
                await read_frame(stream, MAX_REPLY_BYTES)
        with trio.fail_after(SOON_S):
            await carol.fetch(blob)


@in_trio
async def test_what_one_owner_s_tasks_read_keeps_no_other_s_waiting(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    silent, mallory, others = Silent(), PeerId("mallory"), PeerId("carol")
    async with running(alice, bob, silent), trio.open_nursery() as nursery:
        for number in range(2 * MAX_FETCHES):
            read = [(tmp_path / f"{number}", silent.named(f"{number}"))]
            nursery.start_soon(bob.exchange.copies, read, mallory)
        await until(lambda: silent.opened == MAX_FETCHES_OF_OWNER)
        blob, data = alice.put(content(1)), tmp_path / "data"
        with trio.fail_after(SOON_S):
            await bob.exchange.copies([(data, blob)], others)
            await bob.get(alice.put(content(1), "another"))  # as this node's own
        assert data.stat().st_size == blob.size_bytes
        nursery.cancel_scope.cancel()


@in_trio
async def test_who_reads_what_comes_for_another_brings_his_own_sources(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    silent, mallory, carol = Silent(), PeerId("mallory"), PeerId("carol")
    async with running(alice, bob, silent), trio.open_nursery() as nursery:
        blob = alice.put(content(1))
        hanging = from_(blob, silent)
        for number in range(2):
            read = [(tmp_path / f"{number}", hanging)]
            nursery.start_soon(bob.exchange.copies, read, mallory)
        await until(lambda: silent.opened == 1)
        with trio.fail_after(SOON_S):
            await bob.exchange.copies([(tmp_path / "data", blob)], carol)
        await until(lambda: (tmp_path / "1").exists())
        nursery.cancel_scope.cancel()


@in_trio
async def test_what_is_to_be_held_gives_way_to_a_fetch_of_the_same(tmp_path: Path) -> None:
    alice, bob, mallory = (Holder(tmp_path / name) for name in ("alice", "bob", "mallory"))
    silent = Silent()
    bob.exchange.server.hold = bob.exchange.held_for_others.hold
    async with running(alice, bob, mallory, silent), trio.open_nursery() as nursery:
        blob = alice.put(content(1))

        async def fetch() -> None:
            await until(lambda: silent.opened == 1)
            await bob.fetch(blob)

        nursery.start_soon(fetch)
        with trio.fail_after(SOON_S):  # then it is here for that as well
            assert await ask(mallory, bob, from_(blob, silent), 0)


@in_trio
async def test_what_one_worker_does_not_send_keeps_no_other_s_checkpoint_waiting(
    tmp_path: Path,
) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    silent = Silent()
    told: list[CheckpointEvent] = []
    keeper = CheckpointKeeper(bob.stack, bob.exchange, None, told.append)

    def kept(blob: Blob, task_id: str) -> KeepCheckpoint:
        return KeepCheckpoint(task_id, "job", Checkpoint(1, blob), cause="test")

    async with running(alice, bob, silent), trio.open_nursery() as nursery:
        for number in range(2 * MAX_KEEPING):
            name = f"{number}"
            nursery.start_soon(keeper.perform, kept(silent.named(name), name))
        await until(lambda: silent.opened > 0)
        with trio.fail_after(SOON_S):
            blob = alice.put(content(1))
            await keeper.perform(kept(blob, "alice's"))
            await bob.get(alice.put(content(1), "a result"))
        assert bob.store.holds(blob.cid)
        nursery.cancel_scope.cancel()


@in_trio
async def test_places_are_shared_by_those_who_want_some() -> None:
    alice, bob = PeerId("alice"), PeerId("bob")
    places = Places(3, 2)
    inside: list[PeerId] = []

    async def work(peer: PeerId) -> None:
        async with places.of(peer):
            inside.append(peer)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for peer in (alice, alice, alice, bob, bob):
            nursery.start_soon(work, peer)
            await trio.testing.wait_all_tasks_blocked()
        assert inside == [alice, alice, bob]
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_holder_that_brings_nothing_delays_who_goes_on_from_it_by_seconds(
    tmp_path: Path,
) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    silent = Silent()
    async with running(alice, bob, silent):
        with trio.fail_after(SOON_S):
            await bob.fetch(from_(alice.put(content(1)), silent, alice))
