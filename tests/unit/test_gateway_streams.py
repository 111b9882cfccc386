"""Streams to replicas that are full go from one request to the next."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from formation_p2p.features.gateway.sources import ServiceUnavailable, Upstream
from formation_p2p.features.gateway.streams import MAX_KEPT, Kept, Stream
from formation_p2p.features.services.api.http import Awaited
from tests.support.waiting import until

ECHO = ("echo", b"")
BOBS = ("echo", b"bob's grant")


async def to(replica: str = "alice") -> Stream:
    end, other = socket.socketpair()
    _far_ends.append(other)
    reader, writer = await asyncio.open_connection(sock=end)
    return Stream(Upstream(reader, writer, replica))


_far_ends: list[socket.socket] = []


def is_closed(stream: Stream) -> bool:
    return stream.to.writer.is_closing()


async def never() -> Upstream:
    await asyncio.Event().wait()
    raise AssertionError("it waits for ever")


def asks(
    kept: Kept,
    of: tuple[str, bytes] = ECHO,
    *,
    by: str = "client",
    sticky: str | None = None,
    opening: Coroutine[Any, Any, Upstream] | None = None,
    takes_used: bool = True,
) -> asyncio.Task[Stream]:
    opened = kept.opened(of, by, sticky, opening or never(), takes_used=takes_used)
    return asyncio.create_task(opened)


def told(story: Callable[[Kept], Awaitable[None]]) -> None:
    async def main() -> None:
        kept = Kept()
        try:
            await story(kept)
        finally:
            kept.close()
            everyone = asyncio.all_tasks() - {asyncio.current_task()}
            for task in everyone:
                task.cancel()
            await asyncio.gather(*everyone, return_exceptions=True)
            for end in _far_ends:
                end.close()
            _far_ends.clear()

    asyncio.run(main())


async def waits(*tasks: asyncio.Task[Stream]) -> None:
    """Until each has begun to, which is a step of the loop."""
    await asyncio.sleep(0)
    assert not any(each.done() for each in tasks)


def test_a_stream_that_is_given_back_goes_to_one_that_waits_callers_by_turns() -> None:
    async def story(kept: Kept) -> None:
        of_bob = [asks(kept, by="bob") for _ in range(2)]
        of_carol = asks(kept, by="carol")
        await waits(*of_bob, of_carol)
        stream = await to()
        for task in (of_bob[0], of_carol, of_bob[1]):
            kept.give_back(ECHO, stream)
            assert await task is stream
            assert stream.is_used
        kept.give_back(ECHO, stream)
        assert kept.take(ECHO, None) is stream

    told(story)


def test_one_waits_for_the_replica_that_it_had_and_then_takes_any() -> None:
    async def story(kept: Kept) -> None:
        task = asks(kept, sticky="alice")
        await waits(task)
        of_bob = await to("bob")
        kept.give_back(ECHO, of_bob)
        await waits(task)
        assert await task is of_bob, "it has waited for long"

    told(story)


def test_for_one_that_waits_long_for_another_stream_one_is_closed() -> None:
    async def story(kept: Kept) -> None:
        idle, used, other = await to(), await to(), await to()
        kept.give_back(ECHO, idle)
        of_bob = asks(kept, BOBS)
        once = asks(kept, takes_used=False)
        await waits(of_bob, once)
        await until(lambda: is_closed(idle))
        # Each of the two has one: the first that was idle, and the next that is given back.
        kept.give_back(ECHO, used)
        await until(lambda: is_closed(used))
        kept.give_back(ECHO, other)
        assert kept.take(ECHO, None) is other

    told(story)


def test_what_is_handed_to_a_client_that_leaves_goes_to_the_next() -> None:
    async def story(kept: Kept) -> None:
        leaves, stays = asks(kept), asks(kept)
        await waits(leaves, stays)
        stream = await to()
        kept.give_back(ECHO, stream)
        leaves.cancel()
        assert await stays is stream

    told(story)


def test_of_two_streams_that_come_at_once_the_other_is_kept() -> None:
    async def story(kept: Kept) -> None:
        new, used = await to(), await to()

        async def opening() -> Upstream:
            return new.to

        task = asks(kept, opening=opening())
        await asyncio.sleep(0)
        kept.give_back(ECHO, used)
        assert await task is used
        again = kept.take(ECHO, None)
        assert again is not None
        assert again.to is new.to

    told(story)


def test_one_that_cannot_be_opened_says_why() -> None:
    async def story(kept: Kept) -> None:
        async def refused() -> Upstream:
            raise ServiceUnavailable("all are full", 1)

        with suppress(ServiceUnavailable):
            await asks(kept, opening=refused())
            raise AssertionError("it was opened")
        stream = await to()
        kept.give_back(ECHO, stream)
        assert kept.take(ECHO, None) is stream, "nobody waits for it"

    told(story)


def test_streams_that_have_ended_or_are_too_many_are_not_kept() -> None:
    async def story(kept: Kept) -> None:
        ended = await to()
        ended.close()
        kept.give_back(ECHO, ended)
        assert kept.take(ECHO, None) is None
        streams = [await to() for _ in range(MAX_KEPT + 1)]
        for each in streams:
            kept.give_back(ECHO, each)
        assert [is_closed(each) for each in streams] == [False] * MAX_KEPT + [True]

    told(story)


# -- what is kept gives way to requests that wait ------------------------------------------------


def test_who_waits_for_long_has_what_is_kept_given_up() -> None:
    async def story() -> None:
        given_up = asyncio.Event()
        awaited = Awaited(given_up.set)
        with awaited.waiting():
            assert not awaited
            await given_up.wait()
            assert awaited
            with awaited.waiting():
                pass  # one that is served at once changes nothing
            assert awaited
        assert not awaited

    asyncio.run(story())
