"""AutoNAT v2 between two of our nodes, in a network of their own with public addresses."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from formation_p2p.core.errors import RemoteError
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.reach.core import autonat as messages
from formation_p2p.reach.core.autonat import (
    BACK_PROTOCOL,
    MAX_DATA_BYTES,
    MIN_DATA_BYTES,
    REQUEST_PROTOCOL,
    DialDataRequest,
    DialRequest,
)
from tests.support.own_network import in_own_network
from tests.support.stacks import Node, running
from tests.support.waiting import told_by, until

GATE, HOME, AWAY, SHUT = "11.0.0.1", "11.0.0.2", "11.0.0.3", "11.0.0.4"


def story(test: Callable[[Node, Node], Awaitable[None]]) -> None:
    """Alice listens at two addresses, and knows the gate."""

    async def inside() -> None:
        gate = Node((f"/ip4/{GATE}/tcp/0",))
        alice = Node((f"/ip4/{HOME}/tcp/4001", f"/ip4/{AWAY}/tcp/4002"))
        async with running(gate, alice):
            await test(gate, alice)

    in_own_network(inside, f"{GATE}/32", f"{HOME}/32", f"{AWAY}/32", f"{SHUT}/32")


in_world = told_by(story)


async def connected(alice: Node, gate: Node) -> Connection:
    connection = await alice.stack.swarm.dialler.dial(gate.contact)
    await connection.wait_identified()
    return connection


@in_world
async def test_a_node_learns_at_which_address_it_is_dialled(gate: Node, alice: Node, /) -> None:
    connection = await connected(alice, gate)
    ask = alice.stack.autonat.ask
    assert REQUEST_PROTOCOL in connection.protocols
    # It comes from another address than each of these: it sends data first.
    for address in (f"/ip4/{HOME}/tcp/4001", f"/ip4/{AWAY}/tcp/4002"):
        assert await ask(connection, (address,)) == (address, True)
    shut = f"/ip4/{SHUT}/tcp/4001"
    assert await ask(connection, (shut,)) == (shut, False)
    # The fourth in a minute.
    assert await ask(connection, (f"/ip4/{HOME}/tcp/4001",)) is None
    await trio.sleep(0.1)
    assert len(list(alice.stack.swarm.all())) == 1  # what was dialled back is closed


def test_a_gate_is_asked_where_a_guess_leads() -> None:
    """Alice listens at one address, and the gate sees her at another one."""

    async def inside() -> None:
        gate = Node((f"/ip4/{GATE}/tcp/0",))
        alice = Node((f"/ip4/{HOME}/tcp/4001",), gates=(gate.peer_id,))
        seen_as = f"/ip4/{AWAY}/tcp/4001"
        async with running(gate, alice):
            own = alice.stack.own
            await connected(alice, gate)
            own.observed(gate.peer_id, GATE, seen_as, is_exact=True)
            assert seen_as in own.direct
            assert seen_as not in own.announced
            async with trio.open_nursery() as nursery:
                listening = await trio.open_tcp_listeners(4001, host=AWAY)
                nursery.start_soon(trio.serve_listeners, alice_behind(), listening)
                await until(lambda: seen_as in own.announced)
                nursery.cancel_scope.cancel()

    def alice_behind() -> Callable[[trio.SocketStream], Awaitable[None]]:
        """A router that forwards a port."""

        async def forward(outside: trio.SocketStream) -> None:
            async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
                async for data in source:
                    await target.send_all(data)
                nursery.cancel_scope.cancel()

            inside = await trio.open_tcp_stream(HOME, 4001)
            async with outside, inside, trio.open_nursery() as nursery:
                nursery.start_soon(copy, outside, inside)
                nursery.start_soon(copy, inside, outside)

        return forward

    in_own_network(inside, f"{GATE}/32", f"{HOME}/32", f"{AWAY}/32")


async def said(connection: Connection, protocol: str, *frames: bytes) -> bytes:
    stream = await connection.open(protocol)
    for frame in frames:
        await stream.write(encode_frame(frame))
    return await read_frame(stream, messages.MAX_MESSAGE_BYTES)


@in_world
async def test_who_sends_little_at_a_time_has_nobody_dialled(gate: Node, alice: Node, /) -> None:
    connection = await connected(alice, gate)
    stream = await connection.open(REQUEST_PROTOCOL)
    request = DialRequest((f"/ip4/{SHUT}/tcp/1",), 7)
    await stream.write(encode_frame(messages.encode_request(request)))
    wanted = messages.parse_answer(await read_frame(stream, messages.MAX_MESSAGE_BYTES))
    assert isinstance(wanted, DialDataRequest)
    assert MIN_DATA_BYTES <= wanted.size_bytes <= MAX_DATA_BYTES
    await stream.write(encode_frame(messages.encode_chunk(10)))
    with pytest.raises((IOException, RemoteError)):
        await read_frame(stream, messages.MAX_MESSAGE_BYTES)


@in_world
async def test_a_nonce_that_was_not_asked_for_is_refused(gate: Node, alice: Node, /) -> None:
    connection = await connected(alice, gate)
    with pytest.raises((IOException, RemoteError)):
        await said(connection, BACK_PROTOCOL, messages.encode_back(7))
