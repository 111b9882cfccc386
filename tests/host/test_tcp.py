"""Sockets that were closed here, and what those who still wait on them are told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from formation_p2p.core.units import MIB
from formation_p2p.net.transport.errors import ConnectionClosedError
from formation_p2p.net.transport.raw import MAX_READ_BYTES
from formation_p2p.net.transport.tcp import TOGETHER_BYTES, TcpStream
from tests.support.waiting import IDLE_S, in_trio


@asynccontextmanager
async def both_ends() -> AsyncIterator[tuple[TcpStream, trio.SocketStream]]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
            await listener.accept() as other,
        ):
            yield TcpStream(stream), other


@asynccontextmanager
async def loopback() -> AsyncIterator[TcpStream]:
    """One end of a connection whose other end does nothing."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            yield TcpStream(stream)


Use = Callable[[TcpStream], Awaitable[Any]]
USES: dict[str, Use] = {
    "fill": lambda stream: stream.fill(),
    "flush": lambda stream: stream.flush(),
    "read": lambda stream: stream.read(1),
    "write": lambda stream: stream.write(b"x"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@in_trio
async def test_whatever_is_done_with_closed_sockets_says_that_they_are_closed(use: Use) -> None:
    """All closed sockets have the same number, for which several may wait at once."""
    for _ in range(3):
        async with loopback() as stream:
            await stream.close()
            with pytest.raises(ConnectionClosedError):
                await use(stream)


@pytest.mark.parametrize("use", [USES["fill"], USES["flush"]], ids=["fill", "flush"])
@in_trio
async def test_who_waits_on_a_socket_hears_that_it_is_closed(use: Use) -> None:
    async with loopback() as stream, trio.open_nursery() as nursery:
        while stream.write_now(bytes(65_536)):  # until the kernel takes no more
            pass

        async def wait() -> None:
            with pytest.raises(ConnectionClosedError):
                await use(stream)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await stream.close()


@in_trio
async def test_what_is_sure_to_come_is_waited_for_together_and_no_more_than_that() -> None:
    async with both_ends() as (stream, other):
        came: list[bytes] = []

        async def read(size: int | None = None) -> None:
            came.append(await stream.read(size))

        stream.expect(2 * TOGETHER_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await other.send_all(bytes(1000))
            await trio.sleep(0.1)
            assert came == []
            await other.send_all(bytes(TOGETHER_BYTES))
        stream.expect(0)  # what is left of it is not waited for with others
        while (left := 1000 + TOGETHER_BYTES - sum(map(len, came))) > 0:
            await read(min(left, MAX_READ_BYTES))
        await other.send_all(b"x")
        await read()
        assert came[-1] == b"x"


@in_trio
async def test_a_write_after_one_that_was_torn_is_refused() -> None:
    async with loopback() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, bytes(64 * MIB))
            await wait_all_tasks_blocked(IDLE_S)  # no more of it is taken
            nursery.cancel_scope.cancel()
        with pytest.raises(ConnectionClosedError):
            await stream.write(b"the rest?")


@in_trio
async def test_a_message_in_many_small_segments_is_read_whole() -> None:
    async with both_ends() as (stream, other), trio.open_nursery() as nursery:

        async def drip() -> None:
            for _ in range(300):
                await other.send_all(b"x")
                await trio.sleep(0.001)

        nursery.start_soon(drip)
        assert await stream.read(300) == b"x" * 300
