"""What a worker keeps of its callers' private blobs: for how long, and how much of it."""

import os
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.private import FetchedBlobs
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import KIB
from formation_p2p.workload.core.blob import PrivateBlob
from tests.support.drivers_world import open_descriptors
from tests.support.waiting import told_by

ALICE, BOB = (Contact(Identity.from_seed(bytes([n]) * 32).peer_id) for n in (1, 2))


def blob(number: int, owner: Contact = ALICE) -> PrivateBlob:
    return PrivateBlob(number.to_bytes(16, "big"), 10 * KIB, owner)


class World:
    """Blobs come once `go` is set; those that are `gone` never do."""

    def __init__(self) -> None:
        self.asked: list[PrivateBlob] = []
        self.gone: set[PrivateBlob] = set()
        self.go = trio.Event()
        self.go.set()
        self.fetched = FetchedBlobs(self.fetch, limit_bytes=45 * KIB, max_blobs=6)

    async def fetch(self, blob: PrivateBlob) -> tuple[Lent, float]:
        self.asked.append(blob)
        await self.go.wait()
        if blob in self.gone:
            raise RemoteError("it does not have it")
        file = os.memfd_create("blob", os.MFD_CLOEXEC)
        os.write(file, blob.owner.peer_id.encode() + blob.name)
        return Lent(file, blob.size_bytes, lambda clean: None), 10.0

    async def read(self, blob: PrivateBlob) -> None:
        lent = await self.fetched.lend(blob)
        assert os.pread(lent.file, 1000, 0) == blob.owner.peer_id.encode() + blob.name
        lent.done(clean=True)


def story(scenario: Callable[[World, trio.testing.MockClock], Awaitable[None]]) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        world = World()
        await scenario(world, clock)
        world.fetched.close()
        assert (len(world.fetched), world.fetched.kept_bytes) == (0, 0)

    before = open_descriptors()
    trio.run(main, clock=clock)
    assert open_descriptors() == before


in_world = told_by(story)


@in_world
async def test_one_is_fetched_once_for_all_that_ask_for_it(
    world: World, clock: trio.testing.MockClock, /
) -> None:
    world.go = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(world.read, blob(1))
        await trio.testing.wait_all_tasks_blocked()
        world.go.set()
    await world.read(blob(1))
    assert world.asked == [blob(1)]
    lent = world.fetched.lend_kept(blob(1))
    assert lent is not None
    lent.done(clean=True)
    assert world.fetched.lend_kept(blob(2)) is None
    assert world.fetched.lend_kept(blob(1, BOB)) is None


@in_world
async def test_the_name_is_its_owners_own(world: World, clock: trio.testing.MockClock, /) -> None:
    await world.read(blob(1, ALICE))
    world.gone.add(blob(1, BOB))
    with pytest.raises(RemoteError, match="does not have it"):
        await world.read(blob(1, BOB))
    assert len(world.fetched) == 1


@in_world
async def test_a_fetch_that_is_given_up_is_taken_over_by_the_next(
    world: World, clock: trio.testing.MockClock, /
) -> None:
    world.go = trio.Event()
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def given_up() -> None:
            with first:
                await world.read(blob(1))

        nursery.start_soon(given_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.read, blob(1))
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        world.go.set()
    assert world.asked == [blob(1), blob(1)]


@in_world
async def test_those_that_were_used_the_longest_ago_go_first(
    world: World, clock: trio.testing.MockClock, /
) -> None:
    for number in (1, 2, 3, 4, 1, 5):
        await world.read(blob(number))
    assert world.fetched.kept_bytes == 40 * KIB
    world.asked.clear()
    for number in (1, 3, 4, 5, 2):
        await world.read(blob(number))
    assert world.asked == [blob(2)]
    large = PrivateBlob(bytes(16), 900 * KIB, ALICE)
    lent = await world.fetched.lend(large)  # which a call waits for
    assert len(world.fetched) == 1
    await world.read(blob(1))
    assert world.fetched.kept_bytes == 10 * KIB
    assert os.fstat(lent.file).st_size > 0  # it is read still
    lent.done(clean=False)


@in_world
async def test_so_many_are_kept(world: World, clock: trio.testing.MockClock, /) -> None:
    for number in range(20):
        await world.read(PrivateBlob(number.to_bytes(16, "big"), 1, ALICE))
    assert len(world.fetched) == 6


@in_world
async def test_one_that_is_not_used_for_long_goes(
    world: World, clock: trio.testing.MockClock, /
) -> None:
    await world.read(blob(1))
    lent = await world.fetched.lend(blob(2))
    clock.jump(9)
    await world.read(blob(3))
    clock.jump(2)
    world.fetched.trim()
    assert world.fetched.kept_bytes == 20 * KIB  # one of them is in use
    lent.done(clean=True)
    world.fetched.trim()
    assert world.fetched.kept_bytes == 10 * KIB
