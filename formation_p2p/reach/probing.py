"""The way to a peer, measured: one echo, or a short bulk test. For the node's thread."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, Unreachable
from formation_p2p.net.handlers import PING_BYTES, PING_PROTOCOL
from formation_p2p.net.protocols import rate
from formation_p2p.net.transport.errors import IOException
from formation_p2p.reach.core.paths import Rate, RoundTrip

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.transport.stream import MuxedStream
    from formation_p2p.reach.stack import Stack

T = TypeVar("T")

# To dial, directly and over a gate, and to agree on a protocol.
OPEN_S: Final = 15.0
ECHO_S: Final = 5.0


async def ping(stack: Stack, to: Contact) -> RoundTrip:
    """Over the best connection of the moment. Raises Unreachable, ProtocolViolation, NodeClosed."""

    async def echo(stream: MuxedStream) -> int:
        sent, came = secrets.token_bytes(PING_BYTES), bytearray(PING_BYTES)
        began_s = trio.current_time()
        with trio.fail_after(ECHO_S):
            await stream.write(sent)
            await stream.read_into(memoryview(came))
        if bytes(came) != sent:
            raise ProtocolViolation(f"{to.peer_id} echoes other bytes than it was sent")
        return max(round((trio.current_time() - began_s) * 1_000_000), 1)

    connection, rtt_us = await _over(stack, to, PING_PROTOCOL, echo)
    return RoundTrip(to.peer_id, connection.path, connection.via, rtt_us)


async def measure_rate(stack: Stack, to: Contact, grant: bytes) -> Rate:
    """Raises RemoteError, Unreachable, ProtocolViolation, NodeClosed."""
    connection, (size_bytes, took_s) = await _over(
        stack, to, rate.PROTOCOL, lambda stream: rate.received(stream, grant)
    )
    took_us = max(round(took_s * 1_000_000), 1)
    return Rate(to.peer_id, connection.path, connection.via, size_bytes, took_us)


async def _over(
    stack: Stack, to: Contact, protocol: str, do: Callable[[MuxedStream], Awaitable[T]]
) -> tuple[Connection, T]:
    try:
        with trio.fail_after(OPEN_S):
            connection = await stack.swarm.dialler.dial(to)
            stream = await connection.open(protocol)
        try:
            done = await do(stream)
        finally:
            stream.abort("it was measured")
    except (IOException, trio.TooSlowError) as error:
        raise Unreachable(f"{to.peer_id} does not answer: {error}") from None
    return connection, done
