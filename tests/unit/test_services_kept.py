"""Streams to replicas that are full go from one request to the next."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from formation_p2p.features.services.api.kept import MAX_KEPT, REUSE_S, Kept, Wanted
from formation_p2p.features.services.core.messages import ServiceError, ServiceRefusal

ECHO = Wanted("echo")
BOBS = Wanted("echo", b"bob's grant")


@dataclass(eq=False)
class Stream:
    replica: str = "alice"
    of: World | None = None
    opened_s: float = field(default_factory=time.monotonic)
    is_used: bool = False
    kept_s: float = 0.0
    is_closed: bool = False
    has_broken: bool = False

    def has_ended(self) -> bool:
        return self.has_broken

    def give_up(self) -> None:
        assert not self.is_closed, "once"
        self.is_closed = True
        if self.of is not None:
            self.of.free()


@dataclass
class World:
    """A replica with places, and a node that asks for them in the order in which it was asked. It
    says that there is none to each at first, and to the first in line each time it looks."""

    places: int = 0
    kept: Kept[Stream] = field(default_factory=Kept)
    line: deque[tuple[Callable[[], None], asyncio.Future[None]]] = field(default_factory=deque)
    opened: int = 0
    asked: int = 0

    async def opens(self, full: Callable[[], None]) -> Stream:
        self.asked += 1
        if not self.places:
            place = asyncio.get_running_loop().create_future()
            self.line.append((full, place))
            full()
            try:
                await place
            except asyncio.CancelledError:
                self._look()
                raise
        self.places -= 1
        self.opened += 1
        return Stream(of=self)

    def free(self) -> None:
        self.places += 1
        self.line = deque(each for each in self.line if not each[1].done())
        if self.line:
            self.line.popleft()[1].set_result(None)
        self._look()

    def _look(self) -> None:
        self.line = deque(each for each in self.line if not each[1].done())
        if self.line:
            self.line[0][0]()

    def asks(
        self, wanted: Wanted = ECHO, by: str = "client", *, takes_used: bool = True
    ) -> asyncio.Task[Stream]:
        return asyncio.create_task(
            self.kept.stream(wanted, by, self.opens, takes_used=takes_used), name=by
        )

    def give_back(self, stream: Stream, wanted: Wanted = ECHO) -> None:
        self.kept.give_back(wanted.service, wanted.on_behalf, stream)

    @property
    def waiting(self) -> int:
        """At the node."""
        return sum(not place.done() for _, place in self.line)


def told(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        try:
            await story(world)
        finally:
            world.kept.close()
            everyone = asyncio.all_tasks() - {asyncio.current_task()}
            for task in everyone:
                task.cancel()
            await asyncio.gather(*everyone, return_exceptions=True)

    asyncio.run(main())


async def settled() -> None:
    """All that can go on without time has."""
    for _ in range(20):
        await asyncio.sleep(0)


async def waits(*tasks: asyncio.Task[Stream]) -> None:
    await settled()
    assert not any(each.done() for each in tasks)


def test_a_stream_that_is_given_back_goes_to_one_that_waits_callers_by_turns() -> None:
    async def story(world: World) -> None:
        of_bob = [world.asks(by="bob") for _ in range(2)]
        of_carol = world.asks(by="carol")
        await waits(*of_bob, of_carol)
        stream = Stream()
        for task in (of_bob[0], of_carol, of_bob[1]):
            world.give_back(stream)
            assert await task is stream
            assert stream.is_used
        world.give_back(stream)
        assert await world.asks() is stream

    told(story)


@pytest.mark.parametrize("places", [1, 16, 49, 50])
def test_a_place_goes_from_one_request_to_the_next_without_a_gap(places: int) -> None:
    """While requests wait each stream is in use, and hardly any is opened for nothing."""
    clients, turns = 50, 40

    async def story(world: World) -> None:
        world.places = places
        used: set[Stream] = set()
        served = 0

        async def client(number: int) -> None:
            nonlocal served
            for _ in range(turns):
                stream = await world.asks(by=f"client {number}")
                assert stream not in used
                used.add(stream)
                await asyncio.sleep(0)
                used.remove(stream)
                world.give_back(stream)
                served += 1

        await asyncio.gather(*(client(number) for number in range(clients)))
        await settled()
        assert served == clients * turns
        assert world.opened == places, "each of the first requests opened one"
        assert world.waiting == 0, "what nothing needs is given up"
        if places < clients - 1:  # else each that waits is the only one
            assert world.asked < served / 10

    told(story)


@pytest.mark.parametrize("places", [1, 16, 50])
def test_requests_that_take_no_used_stream_get_the_places_of_those_that_are_idle(
    places: int,
) -> None:
    """Nothing waits for a time to pass: the whole story takes steps of the loop alone."""
    clients, turns = 50, 10

    async def story(world: World) -> None:
        world.places = places
        served = 0

        async def client(number: int) -> None:
            nonlocal served
            for turn in range(turns):
                takes_used = (number + turn) % 2 == 0
                stream = await world.asks(by=f"client {number}", takes_used=takes_used)
                assert takes_used or not stream.is_used
                await asyncio.sleep(0)
                world.give_back(stream)
                served += 1

        clients_ = asyncio.gather(*(client(number) for number in range(clients)))
        for _ in range(20_000):
            if clients_.done():
                break
            await asyncio.sleep(0)
        assert served == clients * turns

    told(story)


def test_one_waits_for_the_replica_that_it_had_until_no_replica_has_a_place() -> None:
    async def story(world: World) -> None:
        had: list[Callable[[], None]] = []

        async def opens(full: Callable[[], None]) -> Stream:
            had.append(full)
            stream: Stream = await asyncio.get_running_loop().create_future()
            return stream

        wanted = Wanted("echo", sticky="alice")
        task = asyncio.create_task(world.kept.stream(wanted, "client", opens))
        await waits(task)
        of_bob = Stream("bob")
        world.give_back(of_bob)
        await waits(task)
        had[0]()
        assert await task is of_bob

    told(story)


def test_for_one_that_needs_another_stream_one_is_given_up() -> None:
    async def story(world: World) -> None:
        idle, used, other = Stream(), Stream(), Stream()
        world.give_back(idle)
        of_bob = world.asks(BOBS)
        await waits(of_bob)
        assert idle.is_closed
        once = world.asks(takes_used=False)
        await waits(of_bob, once)
        # One each: that which was idle, and the next that is given back.
        world.give_back(used)
        assert used.is_closed
        world.give_back(other)
        assert await world.asks() is other

    told(story)


def test_as_long_as_replicas_have_places_none_is_given_up() -> None:
    async def story(world: World) -> None:
        world.places = 2
        idle = Stream()
        world.give_back(idle)
        for wanted in (BOBS, ECHO):
            assert await world.asks(wanted, takes_used=False) is not idle
        assert not idle.is_closed

    told(story)


def test_what_is_handed_to_a_client_that_leaves_goes_to_the_next() -> None:
    async def story(world: World) -> None:
        leaves, stays = world.asks(), world.asks()
        await waits(leaves, stays)
        stream = Stream()
        world.give_back(stream)
        leaves.cancel()
        assert await stays is stream

    told(story)


def test_a_client_that_leaves_takes_its_opening_along() -> None:
    async def story(world: World) -> None:
        leaves = world.asks()
        await waits(leaves)
        assert world.waiting == 1
        leaves.cancel()
        await settled()
        assert world.waiting == 0

    told(story)


def test_of_two_streams_that_come_at_once_the_other_is_kept() -> None:
    async def story(world: World) -> None:
        task = world.asks()
        await waits(task)
        used = Stream()
        world.free()
        world.give_back(used)
        assert await task is used
        await settled()
        again = await world.asks()
        assert again is not used
        assert not again.is_used

    told(story)


def test_one_that_cannot_be_opened_says_why_to_the_request_that_has_it() -> None:
    async def story(world: World) -> None:
        async def refused(full: Callable[[], None]) -> Stream:
            raise ServiceError("all are full", ServiceRefusal.BUSY)

        other = world.asks()
        await waits(other)
        with pytest.raises(ServiceError, match="all are full"):
            await world.kept.stream(Wanted("echo", sticky="alice"), "client", refused)
        await waits(other)
        stream = Stream()
        world.give_back(stream)
        assert await other is stream

    told(story)


def test_the_first_in_line_has_the_stream_that_was_opened_for_another() -> None:
    """Who has waited for long does not wait on because its own opening takes longer."""

    async def story(world: World) -> None:
        first, second = world.asks(by="bob"), world.asks(by="carol")
        await waits(first, second)
        world.line.reverse()
        world.free()
        assert not (await first).is_used
        await waits(second)
        world.free()
        await second

    told(story)


def test_streams_that_have_ended_or_are_old_or_too_many_are_not_kept() -> None:
    async def story(world: World) -> None:
        ended, old = Stream(), Stream(opened_s=time.monotonic() - REUSE_S - 1)
        world.give_back(old)
        assert old.is_closed
        world.give_back(ended)
        ended.has_broken = True
        waiting = world.asks()
        await waits(waiting)
        assert ended.is_closed
        streams = [Stream() for _ in range(MAX_KEPT + 2)]
        for each in streams:
            world.give_back(each)
        assert await waiting is streams[0]
        assert [each.is_closed for each in streams] == [False] * (MAX_KEPT + 1) + [True]

    told(story)


def test_a_replica_that_breaks_a_stream_has_none_kept() -> None:
    async def story(world: World) -> None:
        of_alice, of_bob = Stream("alice"), Stream("bob")
        for each in (of_alice, of_bob):
            world.give_back(each)
        world.kept.failed("echo", "alice")
        assert [of_alice.is_closed, of_bob.is_closed] == [True, False]

    told(story)


def test_of_services_without_streams_nothing_is_kept() -> None:
    """Anyone may ask for names that no service has."""

    async def story(world: World) -> None:
        async def missing(full: Callable[[], None]) -> Stream:
            full()
            raise ServiceError("there is none", ServiceRefusal.NOT_HERE)

        for number in range(3):
            wanted = Wanted(f"none-{number}")
            with pytest.raises(ServiceError, match="there is none"):
                await world.kept.stream(wanted, "client", missing)
            world.kept.failed(wanted.service, "alice")
        assert not world.kept._idle

    told(story)
