"""Round trips and bulk tests between stacks: what is measured, and who is refused."""

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, RemoteError, Unreachable
from formation_p2p.net.connection import Connection
from formation_p2p.net.handlers import PING_BYTES, PING_PROTOCOL
from formation_p2p.net.protocols import rate
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.core.paths import Path
from formation_p2p.reach.probing import measure_rate, ping
from tests.support.stacks import Node, running
from tests.support.waiting import HANGS_S, in_trio

GRANT = b"a grant"


def serving(rate_s: float = rate.RATE_S) -> Node:
    """It admits those that show the grant, and nobody else."""
    node = Node()
    server = rate.RateServer(
        lambda peer, grant: None if grant == GRANT else "its grant is of another network", rate_s
    )
    node.stack.serve(rate.PROTOCOL, server.serve)
    return node


@in_trio
async def test_a_round_trip_is_measured_over_the_connection_of_the_moment() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        trip = await ping(alice.stack, bob.contact)
        again = await ping(alice.stack, Contact(bob.peer_id))  # it is connected now
    for each in (trip, again):
        assert (each.peer_id, each.path, each.via) == (bob.peer_id, Path.DIRECT, None)
        assert 0 < each.rtt_us < 5_000_000


@in_trio
async def test_a_peer_that_is_gone_or_echoes_otherwise_is_told_of() -> None:
    async def garble(stream: MuxedStream, connection: Connection) -> None:
        await stream.read_into(memoryview(bytearray(PING_BYTES)))
        await stream.write(bytes(PING_BYTES))

    alice, bob, gone = Node(), Node(), Node()
    bob.stack.served.by_protocol[PING_PROTOCOL] = garble
    async with running(gone):
        contact = gone.contact
    async with running(alice, bob):
        with pytest.raises(ProtocolViolation, match="other bytes"):
            await ping(alice.stack, bob.contact)
        with pytest.raises(Unreachable):
            await ping(alice.stack, contact)


@in_trio
async def test_a_bulk_test_tells_how_fast_bytes_come_and_is_for_members_one_at_a_time() -> None:
    alice, mallory, bob = Node(), Node(), serving()
    async with running(alice, mallory, bob):
        with pytest.raises(RemoteError, match="of another network"):
            await measure_rate(mallory.stack, bob.contact, b"another")
        measured = await measure_rate(alice.stack, bob.contact, GRANT)
        assert (measured.peer_id, measured.path) == (bob.peer_id, Path.DIRECT)
        assert 0 < measured.size_bytes <= rate.RATE_BYTES
        # The next one begins so much later, whoever asks.
        with pytest.raises(RemoteError, match="ask again in"):
            await measure_rate(mallory.stack, bob.contact, GRANT)


@in_trio
async def test_a_peer_that_reads_nothing_is_sent_little_and_not_for_long() -> None:
    alice, bob = Node(), serving(rate_s=0.3)
    ended = trio.Event()
    serve = bob.stack.served.by_protocol[rate.PROTOCOL]

    async def watched(stream: MuxedStream, connection: Connection) -> None:
        await serve(stream, connection)
        ended.set()

    bob.stack.served.by_protocol[rate.PROTOCOL] = watched
    async with running(alice, bob):
        stream = await alice.stack.open(bob.contact, rate.PROTOCOL, timeout_s=HANGS_S)
        await stream.write(encode_frame(GRANT))
        await ended.wait()
        assert len(stream.unread) < rate.RATE_BYTES


@in_trio
async def test_a_peer_that_agrees_and_sends_nothing_is_at_fault() -> None:
    async def silent(stream: MuxedStream, connection: Connection) -> None:
        await stream.write(encode_frame(b""))

    alice, bob = Node(), Node()
    bob.stack.served.by_protocol[rate.PROTOCOL] = silent
    async with running(alice, bob):
        with pytest.raises(ProtocolViolation, match="sent nothing"):
            await measure_rate(alice.stack, bob.contact, GRANT)
        with pytest.raises(Unreachable):  # who does not speak it
            await measure_rate(bob.stack, alice.contact, GRANT)
